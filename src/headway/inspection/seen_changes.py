"""What changed from one snapshot to the next, in sentences for a user."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from headway.inspection.snapshot import LevelStatus, SeenChange, Snapshot

_LETTERS_EVERY = 60.0  # seconds


class LetterCounts:
    """Reports new dead letters of a topic at most once a minute, because they would displace all other changes."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[float, int]] = {}  # when, and how many letters there were

    def see(self, snapshot: Snapshot) -> list[SeenChange]:
        """Take in a snapshot, and return the changes since the last report."""
        found = []
        for each in snapshot.dead_letters:
            at, total = self._reported.get(each.topic, (-math.inf, each.total))
            new = each.total - total
            if new > 0 and snapshot.taken_at - at >= _LETTERS_EVERY:
                what = f"{new:,} dead letter{'' if new == 1 else 's'} arrived in {each.topic}."
                found.append(SeenChange(snapshot.taken_at, what))
                at = snapshot.taken_at
                total = each.total
            self._reported[each.topic] = at, min(total, each.total)  # fewer if the topic was created again
        return found


def changes_between(before: Snapshot, after: Snapshot) -> list[SeenChange]:
    """Return the changes of members, of the partitions that they have, of stuck records and of rules."""
    return [SeenChange(after.taken_at, sentence) for sentence in _sentences(before, after)]


def _sentences(before: Snapshot, after: Snapshot) -> Iterator[str]:
    yield from _members(before, after)
    levels = {(level.group, level.kafka_topic): level for _, level in before.levels}
    for _, level in after.levels:
        if (earlier := levels.pop((level.group, level.kafka_topic), None)) is None:
            yield f"{level.kafka_topic} is now read by {level.group}."
        else:
            yield from _stuck(earlier, level)
    yield from _rules(before, after)


def _rules(before: Snapshot, after: Snapshot) -> Iterator[str]:
    was = {(each.group, each.id): replace(each, held=None) for each in before.rules}
    now = {(each.group, each.id): replace(each, held=None) for each in after.rules}
    for each in (rule for name, rule in now.items() if rule != was.get(name)):
        by = f" by {each.by}" if each.by else ""
        what = f"{each.does or 'not known'}, {each.where or 'all records'}"
        yield f"The rule {each.id} of {each.group} was made{by}: {what}."
    for group, id_ in was.keys() - now.keys():
        yield f"The rule {id_} of {group} has ended."


def _members(before: Snapshot, after: Snapshot) -> Iterator[str]:
    earlier = {each.member_id: each for each in before.members}
    now = {each.member_id: each for each in after.members}
    gone = Counter((each.group, f"{each.client_id}@{each.host}") for id_, each in earlier.items() if id_ not in now)
    new = Counter((each.group, f"{each.client_id}@{each.host}") for id_, each in now.items() if id_ not in earlier)
    for (group, name), count in gone.items():
        yield f"{_counted(name, count)} left {group}."
    for (group, name), count in new.items():
        yield f"{_counted(name, count)} joined {group}."
    moved = Counter(
        (each.group, f"{each.client_id}@{each.host}", each.partitions, earlier[id_].partitions)
        for id_, each in now.items()
        if id_ in earlier and each.partitions != earlier[id_].partitions
    )
    for group, name, partitions, had in moved:
        yield f"{name} has {partitions} partition{'' if partitions == 1 else 's'} in {group}, and had {had}."


def _counted(name: str, count: int) -> str:
    return name if count == 1 else f"{count} members {name}"


def _stuck(earlier: LevelStatus, level: LevelStatus) -> Iterator[str]:
    was, now = _stuck_offsets(earlier), _stuck_offsets(level)
    for partition, offset in now.items():
        if was.get(partition) != offset:
            yield f"Offset {offset:,} of {level.kafka_topic}, partition {partition}, is stuck."
    for partition, offset in was.items():
        if now.get(partition) != offset:
            yield f"Offset {offset:,} of {level.kafka_topic}, partition {partition}, is no longer stuck."


def _stuck_offsets(level: LevelStatus) -> dict[int, int]:
    return {each.partition: record.offset for each, record in level.stuck}
