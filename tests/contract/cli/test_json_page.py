"""docs/json.md has exactly the fields that the commands print."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from headway import ConsumerRecord, FatalError, ParallelConsumer, RetriableError, Retries, Scheduler, cli, fixed_backoff
from headway.broker import LocalBroker
from tests.contract.conftest import Cluster

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[3] / "docs" / "json.md"
KINDS: dict[str, type | tuple[type, ...]] = {"text": str, "number": (int, float), "true or false": bool, "object": dict}


def documented(command: str) -> dict[str, tuple[str, str]]:
    """Return the type and the meaning of each field in the section of a command."""
    [section] = re.findall(rf"^## [^\n]*{command}\b.*?(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| (.*) \|$", section, re.MULTILINE)
    return {field: (kind, meaning) for field, kind, meaning in rows}


def fields(thing: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each field of an object with its value, where `[]` stands for each element of a list."""
    if isinstance(thing, list):
        for each in thing:
            yield f"{path}[]", each
            yield from fields(each, f"{path}[]")
    elif isinstance(thing, dict):
        for name, value in thing.items():
            here = f"{path}.{name}" if path else name
            yield here, value
            yield from fields(value, here)


def check(command: str, lines: list[dict[str, Any]]) -> None:
    """Compare the fields of some lines with those on the page."""
    assert lines, command
    page = documented(command)
    objects = tuple(field for field, (kind, _) in page.items() if kind == "object")
    seen = set()
    for field, value in (pair for line in lines for pair in fields(line)):
        field = field.replace("_base64", "")  # noqa: PLW2901
        seen.add(field)
        inside = any(field.startswith((f"{each}.", f"{each}[")) for each in objects)
        is_on_the_way = any(each.startswith((f"{field}.", f"{field}[")) for each in page)
        assert field in page or inside or is_on_the_way, f"{command}: {field} is not on the page"
        if field in page and value is not None:
            assert isinstance(value, KINDS[page[field][0]]), f"{command}: {field} is {value!r}"
    wanted = {field for field, (_, meaning) in page.items() if not meaning.startswith("*sometimes*")}
    # Elements of lists that can be empty are not demanded.
    assert sorted(field for field in wanted - seen if "[]" not in field and "." not in field) == [], command


@pytest.fixture(scope="module")
def queue(kafka_cluster: Cluster) -> str:
    """A topic and its group of the same name: one record fails, one is a dead letter, the others are done."""
    topic = kafka_cluster.topic()
    kafka_cluster.create_topics([f"{topic}-dead"])
    with kafka_cluster.producer() as producer:
        for value in ("fails", "is refused", *["is done"] * 20):
            producer.send(topic, value, level=1, partition=0, headers=[("trace", b"1")])
    config = kafka_cluster.config({"group.id": topic, "levels": 3, "auto.offset.reset": "earliest"})
    done: list[bytes] = []

    def handle(record: ConsumerRecord) -> None:
        if record.value == b"fails":
            raise RetriableError("later")
        if record.value == b"is refused":
            raise FatalError("no")
        done.append(record.value)
        if len(done) == 20:
            consumer.stop()

    with ParallelConsumer(
        config, ordering="unordered", retries=Retries(fixed_backoff(60)), dead_letter_topic=f"{topic}-dead"
    ) as consumer:
        consumer.subscribe(topic)
        consumer.run(handle)
    return topic


def printed(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli.headway, [*arguments, "-b", cluster.bootstrap_servers])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_page_has_the_fields_of_queues(kafka_cluster: Cluster, queue: str) -> None:
    check("topics list", printed(kafka_cluster, "topics", "list", "--json"))
    shown = printed(kafka_cluster, "offsets", "show", queue, "--levels", "3", "--json")
    assert any("failed" in partition for group in shown for partition in group["partitions"])
    check("offsets show", shown)
    check("headway top", printed(kafka_cluster, "top", "--json", "--group", queue))
    copied = ("offsets", "copy", f"{queue}-1", f"{queue}-other", "--dry-run", "--json")
    check("offsets copy", printed(kafka_cluster, *copied))
    check("waiting list", printed(kafka_cluster, "waiting", "list", queue, queue, "--json"))
    acls = ("acls", "consumer", queue, "--group", queue, "--principal", "User:x", "--json")
    check("acls", printed(kafka_cluster, *acls))


def test_the_page_has_the_fields_of_records_and_dead_letters(kafka_cluster: Cluster, queue: str) -> None:
    letters = printed(kafka_cluster, "dead", "list", f"{queue}-dead", "--json")
    check("dead list", letters)
    place = f"{letters[0]['partition']}:{letters[0]['offset']}"
    assert printed(kafka_cluster, "dead", "show", f"{queue}-dead", place, "--json") == letters
    consume = ("consume", queue, "--group", f"{queue}-2", "--max", "1", "--timeout", "20", "--format", "json-lines")
    check("consume", printed(kafka_cluster, *consume))


def test_the_page_has_the_fields_of_schedules_and_rules(kafka_cluster: Cluster, queue: str) -> None:
    name = f"{queue}-delay"
    with Scheduler(kafka_cluster.config({}), name=name) as scheduler:
        scheduler.send_later("key", b"value", f"{queue}-1", 3600)
    check("schedule list", printed(kafka_cluster, "schedule", "list", "--name", name, "--json"))
    check("schedule stats", printed(kafka_cluster, "schedule", "stats", "--name", name, "--json"))
    ruled = ["rules", "hold", queue, "--where", "level = 0", "--for", "1m", "-b", kafka_cluster.bootstrap_servers]
    assert CliRunner().invoke(cli.headway, ruled).exit_code == 0
    check("rules list", printed(kafka_cluster, "rules", "list", queue, "--json"))


def test_each_command_with_json_is_on_the_page() -> None:
    def commands(command: click.Command, name: str) -> Iterator[str]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for each in command.list_commands(context):
                found = command.get_command(context, each)
                assert found is not None
                yield from commands(found, f"{name} {each}".strip())
        elif any("--json" in option.opts for option in command.params):
            yield name

    left = [name for name in commands(cli.headway, "") if f"headway {name}" not in PAGE.read_text()]
    assert [name for name in left if name.split()[0] not in ("acls", "experiment")] == []


def test_the_page_has_the_fields_of_this_machine(headway_broker: LocalBroker) -> None:
    shares = CliRunner().invoke(cli.headway, ["levels", "--levels", "3", "--capacity", "50", "--json"])
    check("levels", [json.loads(shares.stdout)])
    status = CliRunner().invoke(cli.headway, ["broker", "status", "--data-dir", str(headway_broker.data_dir), "--json"])
    check("broker status", [json.loads(line) for line in status.stdout.splitlines()])
