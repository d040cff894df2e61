"""Commit ticks: offsets, offset maps and outputs that are committed together or not at all.

Invariants: a tick is a snapshot of one moment. The outputs of a finished attempt stay in its assignment until they are
in Kafka. So every tick that marks a record's offset as done also has the outputs of that record, even if earlier ticks
failed. A tick can be acknowledged more than once. Records that a shortened map leaves out are delivered again after a
restart, so the outputs of these records wait for a tick whose map includes the records. If a batch has outputs, a tick
marks all of its records as done, or none of them.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from headway.core.engine.assignment import Assignment, OutputSet
from headway.core.offsets.commit_metadata import Done, without_done
from headway.core.offsets.offset_map import Commit, OffsetMap
from headway.records.record_types import TopicPartition


class TickPart(NamedTuple):
    """The part of a tick that comes from one assignment.

    `finished` is the value of the assignment's counter of changes at the moment of the tick. `outputs` is the
    assignment's list of output sets, of which the first `sets` existed at that moment. The sets in `withheld` are not
    in the tick; the other sets take `size` bytes. `remembered` has the offsets that are marked as done in Kafka after
    the tick is committed.
    """

    assignment: Assignment[Any]
    finished: int
    outputs: list[OutputSet]
    sets: int
    size: int
    withheld: list[OutputSet]
    remembered: OffsetMap


class CommitTick(NamedTuple):
    """The offset and the offset map of each partition, and the outputs of the records that are marked as done."""

    commits: dict[TopicPartition, Commit]
    outputs: list[Any]
    parts: list[TickPart]


def take(assignments: Iterable[Assignment[Any]]) -> CommitTick:
    """Return a tick with everything that these assignments have to commit.

    The assignments keep their outputs and progress, so nothing is lost if the tick is never committed.
    """
    tick = CommitTick({}, [], [])
    for each in assignments:
        if each.finished > each.saved:
            snapshot = each.progress.snapshot()
            commit = each.commit_of(snapshot)
            taken, withheld = each.outputs, list[OutputSet]()
            if commit.kept is not None:
                snapshot, commit = _with_whole_sets(each, snapshot, commit)
                done = Done(commit.kept or snapshot)
                taken = [one for one in each.outputs if one[0][0] in done]
                withheld = [one for one in each.outputs if one[0][0] not in done]
            tick.commits[each.partition] = commit
            tick.outputs.extend(output for _, _, outputs in taken for output in outputs)
            size = each.of_outputs - sum(size for _, size, _ in withheld)
            sets = len(each.outputs)
            tick.parts.append(
                TickPart(each, each.finished, each.outputs, sets, size, withheld, commit.kept or snapshot)
            )
    return tick


def _with_whole_sets(assignment: Assignment[Any], snapshot: OffsetMap, commit: Commit) -> tuple[OffsetMap, Commit]:
    """Return a snapshot and its commit in which all records of each batch with outputs are done, or none of them.

    A shortened map can include only some records of a batch. In that case, all records of this batch are marked as not
    done. That can make the map longer again, so the map is shortened repeatedly until nothing changes.
    """
    batches = [one[0] for one in assignment.outputs if len(one[0]) > 1]
    while batches and commit.kept is not None:
        done = Done(commit.kept)
        known = [[offset in done for offset in offsets] for offsets in batches]
        left_out = [offsets for offsets, each in zip(batches, known, strict=True) if not all(each)]
        if not any(any(each) and not all(each) for each in known):
            break
        snapshot = without_done(snapshot, [offset for offsets in left_out for offset in offsets])
        commit = assignment.commit_of(snapshot)
        batches = [offsets for offsets, each in zip(batches, known, strict=True) if all(each)]
    return snapshot, commit


def acknowledge(tick: CommitTick) -> Iterator[tuple[Assignment[Any], int]]:
    """Record that the tick was committed, and yield each assignment with the bytes of its committed outputs."""
    for assignment, finished, outputs, sets, size, withheld, remembered in tick.parts:
        if finished >= assignment.saved:
            assignment.saved = finished
            assignment.remembered = remembered
        if assignment.outputs is outputs:  # otherwise this tick was acknowledged before
            assignment.outputs = withheld + outputs[sets:]
            yield assignment, size
