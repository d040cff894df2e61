"""The tables of `headway top`: what each view shows of a snapshot."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headway.cli.display.map_drawing import draw
from headway.cli.display.texts import local_time, printable, shown_bytes
from headway.cli.options.due_times import describe_ms
from headway.cli.top.quantities import UNKNOWN, bar, rate, short_duration
from headway.cli.top.view_state import ViewState
from headway.inspection.snapshot import (
    DeadLetterStatus,
    LevelStatus,
    MemberStatus,
    PartitionStatus,
    QueueStatus,
    Snapshot,
    StuckRecord,
)

_MAP_WIDTH = 24
_BAR_WIDTH = 12
_LATE = 5.0  # seconds


class Heading(NamedTuple):
    """A column of a view.

    Columns with a `ratio` share the width that is left. On a narrow screen, the columns with the highest `rank` are
    left out first; those with the rank 0 stay.
    """

    title: str
    justify: Literal["left", "right"] = "left"
    ratio: int = 0
    rank: int = 0


class Cell(NamedTuple):
    """A cell: its text, the value by which rows are sorted, and how it stands out: "", "warn" or "bad"."""

    text: str
    order: float | str = ""
    tone: str = ""


ViewRow = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class TableView:
    """A view as a table. `empty` is the sentence that is shown if it has no rows."""

    headings: tuple[Heading, ...]
    rows: tuple[ViewRow, ...]
    empty: str

    def arranged(self, state: ViewState) -> "TableView":
        """Return the rows that match the filter, in the order that the user has chosen."""
        wanted = (state.typed if state.typed is not None else state.filter).lower()
        rows = [row for row in self.rows if any(wanted in cell.text.lower() for cell in row)]
        if state.column is not None and state.column < len(self.headings):
            at = state.column
            numbers_first = self.headings[at].justify == "right"
            rows.sort(key=lambda row: _rank(row[at].order, row[at].text), reverse=numbers_first)
        if state.reverse:
            rows.reverse()
        empty = f"No row contains {printable(wanted)!r}. Esc clears the filter." if self.rows and wanted else self.empty
        return TableView(self.headings, tuple(rows), empty)


def _rank(order: float | str, text: str) -> tuple[bool, float, str]:
    return (False, 0.0, text) if isinstance(order, str) else (True, order, text)


def _text(text: str, tone: str = "") -> Cell:
    return Cell(printable(text), "", tone)


def _number(value: int | None, tone: str = "") -> Cell:
    return Cell(UNKNOWN if value is None else f"{value:,}", -1 if value is None else value, tone)


def _seconds(value: float | None, tone: str = "") -> Cell:
    return Cell(short_duration(value), -1 if value is None else value, tone)


def _rate(value: float | None) -> Cell:
    return Cell(rate(value), -1 if value is None else value)


def _level(level: int | None) -> Cell:
    return Cell(UNKNOWN, -1) if level is None else Cell(str(level), level)


def _since(since: float | None, now: float, *, was_there: bool) -> Cell:
    if since is None:
        return Cell(UNKNOWN, -1)
    return Cell(f"{'>' if was_there else ''}{short_duration(max(0.0, now - since))}", now - since)


def shown_member(member: MemberStatus | None) -> str:
    """Return the name under which a member is shown."""
    return UNKNOWN if member is None else printable(f"{member.client_id}@{member.host}")


def levels(snapshot: Snapshot) -> TableView:
    """Return a row for each level: its backlog, and how fast it is handled."""
    members = Counter(each.group for each in snapshot.members)
    found = list(snapshot.levels)
    most = max((level.not_done for _, level in found), default=0)
    headings = (
        *(Heading("topic", ratio=2), Heading("level", "right"), Heading("group", ratio=2, rank=1)),
        *(Heading(title, "right") for title in ("not done", "oldest", "work")),
        *(Heading("in/s", "right", rank=2), Heading("done/s", "right", rank=2)),
        *(Heading("members", "right"), Heading("stuck", "right"), Heading("", rank=3)),
    )
    rows = tuple(_level_row(snapshot, queue, level, members[level.group], most) for queue, level in found)
    return TableView(headings, rows, _NO_QUEUES)


_NO_QUEUES = (
    "No group with an offset map or with levels was found. Name the groups to watch: headway top --group billing."
)


def _level_row(snapshot: Snapshot, queue: QueueStatus, level: LevelStatus, members: int, most: int) -> ViewRow:
    stuck = len(level.stuck)
    waits = level.not_done > 0
    stands = waits and level.seconds_of_work is None and level.done_per_second == 0
    work = Cell("no progress", 1e18, "bad") if stands else _seconds(level.seconds_of_work)
    return (
        _text(queue.topic),
        _level(level.level),
        _text(level.group),
        _number(level.not_done),
        _seconds(level.oldest_seconds if waits else None),
        work,
        _rate(level.arrived_per_second),
        _rate(level.done_per_second),
        _number(members, "bad" if waits and not members else ""),
        _number(stuck, "warn" if stuck else ""),
        Cell(bar(level.not_done, most, _BAR_WIDTH), level.not_done),
    )


def partitions(snapshot: Snapshot) -> TableView:
    """Return the state of each partition, with its offset map drawn."""
    headings = (
        *(Heading("Kafka topic", ratio=2), Heading("p", "right"), Heading("group", ratio=2, rank=3)),
        *(Heading("not done", "right"), Heading("done ahead", "right", rank=1)),
        *(Heading("committed", "right", rank=2), Heading("log end", "right", rank=4)),
        *(Heading("offset map"), Heading("member", ratio=3), Heading("since", "right", rank=5)),
    )
    names = {each.member_id: each for each in snapshot.members}
    rows = tuple(
        (
            _text(level.kafka_topic),
            Cell(str(each.partition), each.partition),
            _text(level.group),
            _number(each.not_done),
            _number(each.stuck.done_ahead if each.stuck else 0),
            _number(each.committed),
            _number(each.log_end),
            _map(each),
            Cell(shown_member(names.get(each.member or "")), "", "" if each.member or not each.not_done else "bad"),
            _since(each.since, snapshot.taken_at, was_there=each.was_there),
        )
        for _, level in snapshot.levels
        for each in level.partitions
    )
    return TableView(headings, rows, _NO_QUEUES)


def _map(partition: PartitionStatus) -> Cell:
    if partition.reason is not None:
        return Cell("not readable", "", "bad")
    return Cell(draw(partition.offset_map, _MAP_WIDTH))


def stuck(snapshot: Snapshot) -> TableView:
    """Return the records that hold back a commit, those that do so for the longest time first."""
    headings = (
        *(Heading("Kafka topic", ratio=2), Heading("p:offset"), Heading("key", ratio=2)),
        *(Heading("stuck for", "right"), Heading("age", "right", rank=2), Heading("tries", "right")),
        *(Heading("behind", "right"), Heading("same key", "right"), Heading("done ahead", "right", rank=3)),
        *(Heading("last error", ratio=2, rank=4), Heading("member", ratio=2, rank=1)),
    )
    names = {each.member_id: each for each in snapshot.members}
    found = [(level, each, record) for _, level in snapshot.levels for each, record in level.stuck]
    found.sort(key=lambda each: (each[2].since, each[2].timestamp or 0.0))
    rows = tuple(
        _stuck_row(level, each, record, snapshot.taken_at, names.get(each.member or ""))
        for level, each, record in found
    )
    empty = "No record holds back the commit of its partition."
    return TableView(headings, rows, empty)


def _stuck_row(
    level: LevelStatus, partition: PartitionStatus, record: StuckRecord, now: float, member: MemberStatus | None
) -> ViewRow:
    age = None if record.timestamp is None else max(0.0, now - record.timestamp)
    at_least = record.looked_at and record.looked_at < partition.log_end - record.offset - 1
    same_key = (
        Cell(UNKNOWN, -1)
        if record.behind_same_key is None
        else Cell(f"{record.behind_same_key:,}{'+' if at_least else ''}", record.behind_same_key)
    )
    return (
        _text(level.kafka_topic),
        Cell(f"{partition.partition}:{record.offset:,}", record.offset),
        Cell(shown_bytes(record.key) if record.timestamp is not None else UNKNOWN),
        _seconds(max(0.0, now - record.since), "bad" if now - record.since >= 60 else "warn"),
        _seconds(age),
        _number(record.attempts),
        _number(record.behind),
        same_key,
        _number(record.done_ahead),
        _text(record.last_error or UNKNOWN),
        Cell(shown_member(member), "", "" if member else "bad"),
    )


def members(snapshot: Snapshot) -> TableView:
    """Return the members of the groups, and what waits in their partitions."""
    headings = (
        *(Heading("group", ratio=1), Heading("member", ratio=2)),
        *(Heading(title, "right") for title in ("partitions", "not done", "stuck", "since")),
    )
    waits, held = Counter[str | None](), Counter[str | None]()
    for _, level in snapshot.levels:
        for each in level.partitions:
            waits[each.member] += each.not_done
        for each, _ in level.stuck:
            held[each.member] += 1
    rows = tuple(
        (
            _text(each.group),
            Cell(shown_member(each)),
            _number(each.partitions, "" if each.partitions else "warn"),
            _number(waits[each.member_id]),
            _number(held[each.member_id], "warn" if held[each.member_id] else ""),
            _since(each.since, snapshot.taken_at, was_there=each.was_there),
        )
        for each in snapshot.members
    )
    return TableView(headings, rows, "The groups have no members: nothing is handled.")


def tenants(snapshot: Snapshot) -> TableView:
    """Return the use of each tenant, as the members report it."""
    headings = (
        *(Heading("group", ratio=1), Heading("tenant", ratio=1)),
        *(Heading(title, "right") for title in ("slots used", "handler time", "waiting")),
    )
    rows = tuple(
        (
            _text(each.group),
            _text(each.tenant),
            _rate(each.handler_seconds_per_second),
            _seconds(each.handler_seconds),
            _number(each.waiting),
        )
        for each in snapshot.tenants
    )
    return TableView(
        headings, rows, "Only members know tenants. Give their metrics: --metrics http://HOST:PORT/metrics."
    )


def dead(snapshot: Snapshot) -> TableView:
    """Return the open dead letters, grouped by cause."""
    headings = (
        *(Heading("dead-letter topic", ratio=2), Heading("exception", ratio=2), Heading("from", ratio=2, rank=2)),
        *(Heading("letters", "right"), Heading("last", "right"), Heading("newest", rank=1)),
        Heading("message", ratio=4),
    )
    rows = tuple(row for topic in snapshot.dead_letters for row in _dead_rows(topic, snapshot.taken_at))
    return TableView(headings, rows, "There are no dead letters.")


def _dead_rows(topic: DeadLetterStatus, now: float) -> Iterator[ViewRow]:
    """Yield a row for each cause, after one for all letters if not all of them were read."""
    name = _text(topic.topic)
    if topic.read < topic.total:
        what = f"By cause, only the newest {topic.read:,} of {topic.total:,} letters follow."
        yield name, _text("all open ones"), Cell(""), _number(topic.open), Cell(""), Cell(""), _text(what)
    for each in topic.causes:
        yield (
            name,
            _text(each.exception.removeprefix("builtins.") or "not a dead letter"),
            _text(each.topic or UNKNOWN),
            _number(each.count),
            _seconds(max(0.0, now - each.last)),
            Cell(f"{each.newest[0]}:{each.newest[1]}"),
            _text(each.message),
        )


def relays(snapshot: Snapshot) -> TableView:
    """Return the schedules that are due in each hour, and the lateness of relays."""
    headings = (
        *(Heading("scheduler", ratio=1), Heading("what", ratio=2)),
        *(Heading("schedules", "right"), Heading("")),
    )
    return TableView(headings, tuple(_relay_rows(snapshot)), "There is no scheduler.")


def _relay_rows(snapshot: Snapshot) -> Iterator[ViewRow]:
    for each in snapshot.schedulers:
        name = _text(each.name)
        tone = "bad" if each.late_seconds >= _LATE else ""
        late = f"overdue, the oldest for {short_duration(each.late_seconds)}" if each.overdue else "overdue"
        yield name, Cell("relays"), _number(each.relays, "bad" if each.pending and not each.relays else ""), Cell("")
        yield name, Cell(late, "", tone), _number(each.overdue, tone), Cell("")
        yield name, Cell("commands that wait"), _number(each.commands_waiting), Cell("")
        most = max((count for _, count in each.hours), default=0)
        for hour, count in each.hours:
            yield (
                name,
                Cell(f"due in the hour of {local_time(round(hour * 1000), zone=False)[:16]}"),
                _number(count),
                Cell(bar(count, most, _BAR_WIDTH)),
            )
        if each.counted < each.pending:
            yield name, Cell("due at times that were not read"), _number(each.pending - each.counted), Cell("")
        for topic in each.delay_topics:
            where = f"in the delay topic of {describe_ms(topic.delay_ms)}" if topic.delay_ms else "about to be due"
            yield name, Cell(where), _number(topic.pending), Cell("")


def rules(snapshot: Snapshot) -> TableView:
    """Return the rules that operators have made."""
    headings = (
        *(Heading("group", ratio=1), Heading("rule", ratio=1, rank=2), Heading("does", ratio=1)),
        *(Heading("where", ratio=2), Heading("why", ratio=2), Heading("by", ratio=1, rank=1)),
        *(Heading("held", "right"), Heading("since", "right"), Heading("ends in", "right")),
    )
    now = snapshot.taken_at
    rows = tuple(
        (
            _text(each.group),
            _text(each.id),
            _text(each.does or "not known", "" if each.does else "bad"),
            _text(each.where or ("" if each.problem else "all records")),
            _text(each.why or each.problem or ""),
            _text(each.by),
            _number(each.held),
            _seconds(None if each.since is None else max(0.0, now - each.since)),
            _seconds(None if each.until is None else max(0.0, each.until - now)),
        )
        for each in snapshot.rules
    )
    return TableView(headings, rows, "No group has rules. `headway rules` makes them.")


def changes(snapshot: Snapshot) -> TableView:
    """Return the changes that were seen, the newest first."""
    rows = tuple((_seconds(max(0.0, snapshot.taken_at - each.at)), _text(each.what)) for each in snapshot.changes)
    return TableView((Heading("ago", "right"), Heading("what", ratio=1)), rows, "Nothing has changed so far.")


VIEW_OF: dict[str, Callable[[Snapshot], TableView]] = {
    "levels": levels,
    "partitions": partitions,
    "stuck": stuck,
    "members": members,
    "tenants": tenants,
    "dead": dead,
    "relays": relays,
    "changes": changes,
    "rules": rules,
}
"""The function of each view."""


def summary_cells(snapshot: Snapshot) -> Sequence[Cell]:
    """Return the most important figures of all views."""
    waiting = sum(each.not_done for each in snapshot.queues)
    held = sum(len(level.stuck) for _, level in snapshot.levels)
    letters = sum(each.open for each in snapshot.dead_letters)
    found = [
        Cell(f"{waiting:,} not done"),
        Cell(f"{held:,} stuck", "", "warn" if held else ""),
        Cell(f"{len(snapshot.members):,} members"),
        Cell(f"{letters:,} dead", "", "warn" if letters else ""),
    ]
    if snapshot.schedulers:
        late = max(each.late_seconds for each in snapshot.schedulers)
        pending = sum(each.pending for each in snapshot.schedulers)
        found.append(Cell(f"{pending:,} scheduled"))
        found.append(
            Cell(f"relay late by {short_duration(late)}", "", "bad") if late >= _LATE else Cell("relays in time")
        )
    return found
