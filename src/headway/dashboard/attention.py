"""What an operator should look at first: sentences at the top of the page, the most urgent first."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headway.dashboard.formats import plural, time_span, whole
from headway.inspection.snapshot import Snapshot

MOST_CONCERNS = 8
_LATE = 5.0  # seconds; a relay that keeps up is less than one second late
_LONG_WORK = 3600.0  # seconds of work


class Concern(NamedTuple):
    """Something that needs attention: a sentence, and the address and query of the page that shows more."""

    kind: str
    sentence: str
    path: str
    query: Mapping[str, object]


def concerns(snapshot: Snapshot) -> list[Concern]:
    """Return the things that need attention, the most urgent first. An empty list means that all is well."""
    found = [*_stuck(snapshot), *_unread(snapshot), *_relays(snapshot), *_dead(snapshot), *_unusable(snapshot)]
    return found[:MOST_CONCERNS]


def _stuck(snapshot: Snapshot) -> Iterator[Concern]:
    found = [(queue, level, status, stuck) for queue, level in snapshot.levels for status, stuck in level.stuck]
    found.sort(key=lambda each: each[3].since)
    for queue, level, status, stuck in found[:3]:
        tries = f", after {plural(stuck.attempts, 'failed attempt')}" if stuck.attempts else ""
        holds = any(rule.group == queue.group and rule.does.startswith("hold") for rule in snapshot.rules)
        rule = " A rule holds records of this group." if holds else ""
        behind = f"{plural(stuck.behind, 'record')} behind it {'is' if stuck.behind == 1 else 'are'} not done"
        yield Concern(
            "stuck",
            f"{level.kafka_topic}, partition {status.partition}: offset {whole(stuck.offset)} has been in the way for "
            f"{time_span(snapshot.taken_at - stuck.since)}{tries}. {behind}.{rule}",
            "/partition",
            {"topic": queue.topic, "group": queue.group, "level": level.level, "partition": status.partition},
        )
    if len(found) > 3:
        yield Concern("stuck", f"{plural(len(found) - 3, 'more partition')} with a record in the way.", "/", {})


def _unread(snapshot: Snapshot) -> Iterator[Concern]:
    groups = {each.group for each in snapshot.members}
    for queue, level in snapshot.levels:
        if not level.not_done:
            continue
        if level.group not in groups:
            sentence = (
                f"{level.kafka_topic}: {plural(level.not_done, 'record')} not done, and the group {level.group} has no "
                "members."
            )
        elif missing := [each for each in level.partitions if each.not_done and each.member is None]:
            sentence = f"{level.kafka_topic}: {plural(len(missing), 'partition')} with records has no member."
        else:
            continue
        yield Concern("unread", sentence, "/queue", {"topic": queue.topic, "group": queue.group, "level": level.level})


def _relays(snapshot: Snapshot) -> Iterator[Concern]:
    for each in snapshot.schedulers:
        if each.pending and not each.relays:
            sentence = f"{each.name}: {plural(each.pending, 'schedule')} pending, and no relay is running."
        elif each.late_seconds > _LATE:
            sentence = (
                f"{each.name}: the relay is {time_span(each.late_seconds)} late with {plural(each.overdue, 'record')}."
            )
        else:
            continue
        yield Concern("late", sentence, "/schedules", {})


def _dead(snapshot: Snapshot) -> Iterator[Concern]:
    for each in snapshot.dead_letters:
        if each.open:
            cause = f", most recently {each.causes[0].exception.rpartition('.')[2]}" if each.causes else ""
            yield Concern("dead", f"{each.topic}: {plural(each.open, 'open dead letter')}{cause}.", "/dead", {})


def _unusable(snapshot: Snapshot) -> Iterator[Concern]:
    for queue, level in snapshot.levels:
        for each in level.partitions:
            if each.reason:
                query = {"topic": queue.topic, "group": queue.group, "level": level.level, "partition": each.partition}
                yield Concern(
                    "unusable", f"{level.kafka_topic}, partition {each.partition}: {each.reason}", "/partition", query
                )
