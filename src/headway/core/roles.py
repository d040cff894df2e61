"""The permissions that each role needs.

The documentation, the command `headway acls` and the tests all use this table.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from headway.core.permissions import Permission, least

_PLACEHOLDER = re.compile(r"<([^>]+)>")


class RolePart(NamedTuple):
    """The permissions that a role needs in one case.

    `case` is empty for permissions that the role always needs. `said` is the description of the case in the
    documentation.
    """

    case: str
    said: str
    permissions: tuple[str, ...]


class Role(NamedTuple):
    """A role: its title in the documentation, and the permissions for each case. Names in `<>` are placeholders."""

    title: str
    parts: tuple[RolePart, ...]


_SCHEDULING = (
    "Read Topic <scheduler>.ladder",
    "Describe Topic <scheduler>.state",
    "Describe Topic <scheduler>.commands",
    "Write Topic <scheduler>.line-*",
)
_CREATE_SCHEDULER = RolePart(
    "create",
    "on first use, and for `schedule init` and `schedule fit --apply`",
    ("Create Topic <scheduler>.*", "Describe Topic <scheduler>.*", "Write Topic <scheduler>.ladder"),
)
_DUE = RolePart("due", "with `due`", _SCHEDULING)
_IDS = RolePart("ids", "with `due` and an `id`", ("Write Topic <scheduler>.commands",))
_MEMBER = ("Read Topic <topic>", "Read Group <group>")
_PARALLEL = (
    RolePart("", "", _MEMBER),
    RolePart(
        "rates",
        "with `rate_limit` or `tenant_rate_limit`",
        ("Read Topic <rates>", "Write Topic <rates>", "Create Topic <rates>"),
    ),
    RolePart(
        "steered",
        "with `steered=True`",
        (
            "Read Topic headway-rules",
            "Create Topic headway-rules",
            "Read Topic headway-requests",
            "Write Topic headway-requests",
            "Create Topic headway-requests",
            "Write TransactionalId <transactional id>",
        ),
    ),
    RolePart("outputs", "with outputs", ("Write Topic <output>",)),
    RolePart("dead letters", "with dead letters", ("Write Topic <dead letters>",)),
    RolePart("results", "with `result_topic`", ("Write Topic <results>", "Create Topic <results>")),
    RolePart("transactional", "with `commit_mode='transactional'`", ("Write TransactionalId <transactional id>",)),
    RolePart("due", "with `RetryLater`, or outputs with `due`", _SCHEDULING),
    _IDS,
)
_PENDING = (
    *(f"Read Topic <scheduler>.{each}" for each in ("ladder", "state", "line-*", "commands")),
    "Describe Group <scheduler>",
)
_WATCHING = (
    RolePart("", "", ("Read Topic <topic>", "Describe Group <group>", "Read Topic headway-rules")),
    RolePart(
        "dead letters",
        "that shows dead letters",
        ("Read Topic <dead letters>", "Describe Group headway-dead-<dead letters>"),
    ),
    RolePart("schedules", "that shows schedules", _PENDING),
)
_CONTROL = (
    RolePart("control", "to receive requests to stop", ("Read Topic headway-control", "Write Topic headway-control")),
    RolePart("create", "on first use", ("Create Topic headway-control",)),
)

ROLES: Final[Mapping[str, Role]] = {
    "producer": Role(
        "`Producer`, `headway produce`",
        (
            RolePart("", "", ("Write Topic <topic>",)),
            RolePart("transactional", "with a `transactional.id`", ("Write TransactionalId <transactional id>",)),
            RolePart("calls", "with `Calls`", ("Read Topic <results>", "Create Topic <results>")),
            _DUE,
            _IDS,
        ),
    ),
    "consumer": Role("`PriorityConsumer`, `headway consume`", (RolePart("", "", _MEMBER),)),
    "parallel": Role("`ParallelConsumer`", _PARALLEL),
    "worker": Role("`@worker`, `headway worker`", _PARALLEL),
    "scheduler": Role(
        "`Scheduler`, `headway schedule add`",
        (
            RolePart("", "", _SCHEDULING),
            RolePart(
                "cancel",
                "that cancels, reschedules, or uses `every` or an `id`; "
                "`schedule cancel`, `reschedule`, `cancel_where`",
                ("Write Topic <scheduler>.commands", "Read Topic <scheduler>.answers"),
            ),
            _CREATE_SCHEDULER,
        ),
    ),
    "relay": Role(
        "`Relay`, `headway relay`",
        (
            RolePart(
                "",
                "",
                (
                    "Read Group <scheduler>",
                    *(f"Read Topic <scheduler>.{each}" for each in ("commands", "ladder", "line-*", "state")),
                    *(f"Write Topic <scheduler>.{each}" for each in ("answers", "line-*", "state", "dead")),
                    *(f"Delete Topic <scheduler>.{each}" for each in ("line-*", "commands")),
                    "Write Topic <topic>",
                    "Write TransactionalId <scheduler>-relay-*",
                ),
            ),
            RolePart("fit", "with `fit`", ("Write Topic <scheduler>.ladder", "Create Topic <scheduler>.line-*")),
        ),
    ),
    "spark source": Role(
        "`spark.read`, `spark.readStream`",
        (
            RolePart("", "", ("Read Topic <topic>",)),
            RolePart("group", "with the option `group.id`", ("Read Group <group>",)),
        ),
    ),
    "spark sink": Role(
        "`df.write`, `df.writeStream`, `outputs`",
        (
            RolePart("", "", ("Write Topic <topic>",)),
            RolePart(
                "exactly-once",
                "exactly once, the default",
                ("Write TransactionalId headway-sink-*", "Read Topic <markers>", "Write Topic <markers>"),
            ),
            _DUE._replace(said="with a column `due`"),
            RolePart("create", "on first use", ("Create Topic <markers>",)),
        ),
    ),
    "spark workers": Role("`run_workers`", (*_PARALLEL, *_CONTROL)),
    "schedule": Role(
        "`headway schedule list`, `stats`, `fit`, `report`; `headway.spark.delay`",
        (
            RolePart(
                "",
                "",
                (
                    *(f"Read Topic <scheduler>.{each}" for each in ("ladder", "state", "line-*")),
                    "Describe Topic <scheduler>.commands",
                ),
            ),
            RolePart(
                "commands", "that counts the commands that wait for a relay", ("Read Topic <scheduler>.commands",)
            ),
        ),
    ),
    "topics": Role(
        "`headway topics list`",
        (
            RolePart("", "", ("Describe Topic <topic>",)),
            RolePart("create", "`topics create`", ("Create Topic <topic>",)),
            RolePart("delete", "`topics delete`", ("Delete Topic <topic>",)),
        ),
    ),
    "offsets": Role(
        "`headway offsets show`",
        (
            RolePart("", "", ("Describe Group <group>", "Describe Topic <topic>")),
            RolePart("change", "`offsets copy`, `reset`", ("Read Group <group>", "Read Topic <topic>")),
        ),
    ),
    "dead": Role(
        "`headway dead list`, `show`",
        (
            RolePart("", "", ("Read Topic <topic>", "Describe Group headway-dead-<topic>")),
            RolePart("settle", "`settle`", ("Read Group headway-dead-<topic>",)),
            RolePart("send again", "`send-again`", ("Read Group headway-dead-<topic>", "Write Topic <target>")),
        ),
    ),
    "top": Role("`headway top`", _WATCHING),
    "dashboard": Role(
        "`headway dashboard`",
        (
            RolePart("", "", (*_WATCHING[0].permissions, "Read Topic headway-marks")),
            *_WATCHING[1:],
            RolePart(
                "actions",
                "with `--allow-actions`",
                (
                    *("Write Topic headway-rules", "Create Topic headway-rules"),
                    *("Read Group headway-dead-<dead letters>", "Write Topic <target>"),
                    *("Write Topic <scheduler>.commands", "Read Topic <scheduler>.answers"),
                ),
            ),
        ),
    ),
    "marks": Role(
        "`headway dashboard mark`",
        (RolePart("", "", tuple(f"{each} Topic headway-marks" for each in ("Read", "Write", "Create"))),),
    ),
    "rules": Role(
        "`headway rules list`",
        (
            RolePart("", "", ("Read Topic headway-rules",)),
            RolePart(
                "change",
                "the other commands of `headway rules`",
                ("Write Topic headway-rules", "Create Topic headway-rules"),
            ),
        ),
    ),
}
"""The roles and their permissions. The keys are the names that `headway acls` uses for the roles."""


def permissions_of(role: str, cases: Collection[str], names: Mapping[str, Sequence[str]]) -> list[Permission]:
    """Return the permissions that a role needs in these cases, and those that it always needs.

    Duplicates, and permissions that others include, are left out. `names` has the values of each placeholder. A value
    that ends with `*` stands for all names with this prefix.

    >>> names = {"topic": ["orders-0", "orders-1"], "group": ["billing"]}
    >>> [str(each) for each in permissions_of("consumer", [], names)]
    ['Read on Topic orders-0', 'Read on Topic orders-1', 'Read on Group billing']
    """
    texts = (text for part in ROLES[role].parts if part.case in {"", *cases} for text in part.permissions)
    return least(Permission.parse(each) for text in texts for each in _filled(text, names))


def _filled(text: str, names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    placeholder = _PLACEHOLDER.search(text)
    if placeholder is None:
        yield text
        return
    for name in names.get(placeholder[1], ()):
        yield from _filled(text.replace(placeholder[0], name), names)


def literal_beginning(pattern: str) -> str:
    """Return the name for a permission on all topics that match a pattern: their common prefix, followed by `*`.

    >>> literal_beginning("^shop_.*"), literal_beginning("^(a|b)c"), literal_beginning("^orders$")
    ('shop_*', '*', 'orders')
    """
    text = pattern.removeprefix("^")
    found = re.match(r"(?:[A-Za-z0-9_-]|\\\.)*", text)
    beginning = found[0] if found else ""
    rest = text[len(beginning) :]
    if rest == "$":
        return beginning.replace("\\", "")
    if rest[:1] in ("*", "?", "{"):  # a quantifier, which makes the character before it optional
        beginning = beginning[:-1]
    if "|" in _without_groups(rest):
        beginning = ""
    return beginning.replace("\\", "") + "*"


def _without_groups(text: str) -> str:
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text
