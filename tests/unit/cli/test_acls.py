"""`headway acls`: what it prints for each role, and the page that shows the same table."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headway import cli
from headway.core.permissions import Permission, kafka_acls, least
from headway.core.roles import ROLES, RolePart, literal_beginning, permissions_of

PAGE = Path(__file__).parents[3] / "docs" / "secured.md"
HERE = ("--bootstrap-servers", "kafka:9092")
WORKERS = """
from headway import worker

@worker("orders", group="billing", levels=2, dead_letter_topic="orders-dead", commit_mode="transactional")
def bill(record, context): ...

@worker(["^shop_.*", "clicks"], group="shops", config={"scheduler.name": "later"})
def shop(record, context): ...

@worker("parcels", group="parcels", commit_mode="transactional", producer_config={"transactional.id": "own"})
def ship(record, context): ...
"""


def acls(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli.headway, ["acls", *arguments, *HERE])
    assert result.exit_code == code, result.output
    return result


def granted(*arguments: str) -> list[str]:
    """The rights, in the short form of the table."""
    said = json.loads(acls(*arguments, "--principal", "User:app", "--json").stdout)
    found = [
        Permission(r["operation"], r["resource"], r["name"], r["pattern"] == "prefixed") for r in said["permissions"]
    ]
    return [f"{permission.operation} {permission.resource} {permission.shown_name}" for permission in found]


def test_each_line_is_a_command_that_grants_rights_that_are_alike() -> None:
    printed = acls("consumer", "orders", "--levels", "2", "--group", "billing", "--principal", "User:CN=a b").stdout
    start = ["kafka-acls", "--bootstrap-server", "kafka:9092", "--command-config", "admin.properties"]
    allow = ["--add", "--allow-principal", "User:CN=a b", "--operation", "Read"]
    assert [shlex.split(line) for line in printed.splitlines()] == [
        [*start, *allow, "--topic", "orders-0", "--topic", "orders-1"],
        [*start, *allow, "--group", "billing-0", "--group", "billing-1"],
    ]


def test_names_that_begin_alike_are_granted_by_a_prefix() -> None:
    [line] = acls("producer", "orders-*", "--principal", "User:app").stdout.splitlines()
    assert line.endswith("--operation Write --topic orders- --resource-pattern-type prefixed")


@pytest.mark.parametrize(
    ("arguments", "permissions"),
    [
        (["producer", "a", "--transactional-id", "t"], ["Write Topic a", "Write TransactionalId t"]),
        (["parallel", "a", "--group", "g", "--transactional"],
         ["Read Topic a", "Read Group g", "Write TransactionalId g-*"]),
        (["parallel", "a", "--group", "g", "--output", "o", "--dead-letters", "d"],
         ["Read Topic a", "Read Group g", "Write Topic o", "Write Topic d"]),
        (["spark", "source", "a", "--levels", "1", "--group", "g"], ["Read Topic a-0", "Read Group g-0"]),
        (["spark", "sink", "a", "--delivery", "at_least_once", "--create"], ["Write Topic a"]),
        (["spark", "sink", "a", "--unnamed", "--create"],
         ["Write Topic a", "Write TransactionalId headway-sink-*", "Read Topic headway-markers-unnamed",
          "Write Topic headway-markers-unnamed", "Create Topic headway-markers-unnamed"]),
        (["dead", "d", "--settle"], ["Read Topic d", "Read Group headway-dead-d"]),
        (["dead", "d", "--send-again-to", "a"], ["Read Topic d", "Read Group headway-dead-d", "Write Topic a"]),
        (["dead", "d"], ["Read Topic d", "Describe Group headway-dead-d"]),
        (["offsets", "g", "a", "--levels", "1"], ["Describe Group g-0", "Describe Topic a-0"]),
        (["offsets", "g", "a", "--levels", "1", "--one-group", "--change"], ["Read Group g", "Read Topic a-0"]),
        (["top", "a", "--levels", "1", "--group", "g", "--group", "h", "--dead-letters", "d", "--scheduler", "n"],
         ["Read Topic a-0", "Describe Group g-0", "Describe Group h-0", "Read Topic headway-rules", "Read Topic d",
          "Describe Group headway-dead-d", "Read Topic n.ladder", "Read Topic n.state", "Read Topic n.line-*",
          "Read Topic n.commands", "Describe Group n"]),
        (["dashboard", "a", "--group", "g"],
         ["Read Topic a", "Describe Group g", "Read Topic headway-rules", "Read Topic headway-marks"]),
        (["dashboard", "a", "--group", "g", "--actions", "--dead-letters", "d", "--send-again-to", "a"],
         ["Read Topic a", "Describe Group g", "Read Topic headway-rules", "Read Topic headway-marks", "Read Topic d",
          "Write Topic headway-rules", "Create Topic headway-rules", "Read Group headway-dead-d", "Write Topic a"]),
        (["marks"], ["Read Topic headway-marks", "Write Topic headway-marks", "Create Topic headway-marks"]),
        (["rules", "--change"],
         ["Read Topic headway-rules", "Write Topic headway-rules", "Create Topic headway-rules"]),
        (["topics", "a", "--create", "--delete"], ["Create Topic a", "Delete Topic a"]),
        (["schedule", "--name", "n"],
         ["Read Topic n.ladder", "Read Topic n.state", "Read Topic n.line-*", "Read Topic n.commands"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_role_has_the_rights_of_the_table_with_its_names(arguments: list[str], permissions: list[str]) -> None:
    assert granted(*arguments) == permissions


def test_workers_need_what_they_are_declared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acls_workers.py").write_text(WORKERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert granted("worker", "acls_workers:bill") == [
        *("Read Topic orders-0", "Read Topic orders-1", "Read Group billing-0", "Read Group billing-1"),
        *("Write Topic orders-dead", "Write TransactionalId billing-*"),
    ]
    assert granted("worker", "acls_workers:shop", "--retry-later") == [
        *("Read Topic clicks", "Read Topic shop_*", "Read Group shops"),
        *("Read Topic later.ladder", "Describe Topic later.state", "Describe Topic later.commands"),
        "Write Topic later.line-*",
    ]
    assert granted("worker", "acls_workers:ship")[-1] == "Write TransactionalId own-*"
    all_of_them = granted("spark", "workers", "acls_workers", "--create")
    assert {"Read Group billing-1", "Read Group shops", "Read Group parcels"} < set(all_of_them)
    assert [permission for permission in all_of_them if "headway-control" in permission] == [
        "Read Topic headway-control",
        "Write Topic headway-control",
        "Create Topic headway-control",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["producer", "orders"], 2, "Add --principal User:NAME, which gets the permissions"),
        (["producer", "orders", "--check", "--principal", "User:a"], 2, "Leave out --principal"),
        (["producer", "orders", "--principal", "app"], 1, "write it like User:app"),
        (["producer", "or/ders", "--principal", "User:a"], 1, "is not a valid name of a Kafka topic"),
        (["scheduler", "--name", "a b", "--principal", "User:a"], 1, "is not a valid scheduler name"),
        (["worker", "no_such_module", "--principal", "User:a"], 1, "There is no module no_such_module"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_a_sentence(arguments: list[str], code: int, sentence: str) -> None:
    assert sentence in acls(*arguments, code=code).output


# The table


def test_a_right_that_another_one_includes_is_left_out() -> None:
    texts = ("Describe Topic a.x", "Describe Topic a.*", "Read Topic a.x", "Read Topic a.x", "Describe Group a.x")
    permissions = least(map(Permission.parse, texts))
    assert [str(permission) for permission in permissions] == [
        "Describe on Topic a.*",
        "Read on Topic a.x",
        "Describe on Group a.x",
    ]
    assert not Permission.parse("Read Topic a").covers(Permission.parse("Read Topic a*"))
    assert not Permission.parse("Create Topic a").covers(Permission.parse("Describe Topic a"))
    assert Permission.parse("Write Topic *").covers(Permission.parse("Describe Topic a"))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("^shop_.*", "shop_*"),
        (r"^shop\.eu", "shop.eu*"),
        ("^orders$", "orders"),
        ("^ab*", "a*"),
        ("^a|b", "*"),
        ("^a(b|c)", "a*"),
        ("^", "*"),
    ],
)
def test_the_right_for_a_pattern_is_on_what_its_names_begin_with(pattern: str, name: str) -> None:
    assert literal_beginning(pattern) == name


@pytest.mark.parametrize("role", ROLES)
def test_each_right_of_the_table_is_in_the_words_of_kafka_acls(role: str) -> None:
    names = {
        name: ["x"] for part in ROLES[role].parts for text in part.permissions for name in re.findall("<(.+?)>", text)
    }
    permissions = permissions_of(role, [part.case for part in ROLES[role].parts], names)
    assert {permission.operation for permission in permissions} <= {"Read", "Write", "Create", "Delete", "Describe"}
    assert all("<" not in permission.name for permission in permissions)
    assert kafka_acls(permissions, "User:app")


def row(title: str, part: RolePart) -> str:
    """A row of the page's table."""
    alike: dict[str, list[str]] = {}
    for text in part.permissions:
        operation, resource, name = text.split(" ", 2)
        alike.setdefault(f"{operation} {resource}", []).append(f"`{name}`")
    said = f"… {part.said}" if part.case else title
    listed = "; ".join(f"{words} {', '.join(names)}" for words, names in alike.items())
    return f"| {said} | {listed} |"


def test_the_page_shows_the_table() -> None:
    same = ROLES["parallel"].parts[1:]  # a sentence of the page says that workers need the same in these cases
    assert ROLES["worker"].parts == ROLES["parallel"].parts
    rows = [
        row(role.title, part)
        for name, role in ROLES.items()
        if name != "worker"
        for part in role.parts
        if name != "spark workers" or part not in same
    ]
    page = PAGE.read_text()
    shown = [line for line in page.splitlines() if re.match(r"\| .*(Read|Write|Create|Delete|Describe) \w+ `", line)]
    assert shown == rows, "\n" + "\n".join(rows)


def test_each_command_that_the_page_shows_prints_what_stands_below_it() -> None:
    page = PAGE.read_text()
    shown = re.findall(r"^\$ headway (acls .*)\n((?:kafka-acls .*\n)+)", page, re.MULTILINE)
    assert shown
    for command, output in shown:
        printed = CliRunner().invoke(cli.headway, [*shlex.split(command), *HERE])
        assert printed.exit_code == 0, printed.output
        assert printed.stdout == output
