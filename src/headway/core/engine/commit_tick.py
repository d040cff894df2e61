"""Commit ticks: offsets, maps and outputs that are committed together or not at all.

Invariants: a tick is a snapshot of one moment. The outputs of a finished work stay in its assignment until they are in
Kafka. So every tick with its offset has them too, whatever became of earlier ticks. That a tick was committed may be
said again. The records that a shortened map leaves out come again after a restart, so their outputs wait for a tick
that remembers them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from headway.core.engine.assignment import Assignment
from headway.core.offsets.commit_metadata import Done
from headway.core.offsets.offset_map import Commit, OffsetMap
from headway.records import TopicPartition


class TickPart(NamedTuple):
    """The part of a tick from one assignment: all until `finished`, with `sets` output sets of `size` bytes.

    The tick leaves the `withheld` sets out. `remembered` is the state that counts as done once the tick is committed.
    """

    assignment: Assignment[Any]
    finished: int
    outputs: list[tuple[int, int, Sequence[Any]]]
    sets: int
    size: int
    withheld: list[tuple[int, int, Sequence[Any]]]
    remembered: OffsetMap


class Tick(NamedTuple):
    """Offset and map of each partition, and the outputs of the records that they cover, to commit together."""

    commits: dict[TopicPartition, Commit]
    outputs: list[Any]
    parts: list[TickPart]


def take(assignments: Iterable[Assignment[Any]]) -> Tick:
    """Return what is due of these assignments; it changes nothing, so a tick that is never committed is no loss."""
    tick = Tick({}, [], [])
    for each in assignments:
        if each.finished > each.saved:
            snapshot = each.progress.snapshot()
            tick.commits[each.partition] = commit = each.commit_of(snapshot)
            taken, withheld = each.outputs, list[tuple[int, int, Sequence[Any]]]()
            if commit.kept is not None:
                done = Done(commit.kept)
                taken = [one for one in each.outputs if one[0] in done]
                withheld = [one for one in each.outputs if one[0] not in done]
            tick.outputs.extend(output for _, _, outputs in taken for output in outputs)
            size = each.of_outputs - sum(size for _, size, _ in withheld)
            sets = len(each.outputs)
            tick.parts.append(
                TickPart(each, each.finished, each.outputs, sets, size, withheld, commit.kept or snapshot)
            )
    return tick


def settle(tick: Tick) -> Iterator[tuple[Assignment[Any], int]]:
    """Note that the tick is in Kafka, and yield each assignment with the bytes of outputs that it need not keep."""
    for assignment, finished, outputs, sets, size, withheld, remembered in tick.parts:
        if finished >= assignment.saved:
            assignment.saved = finished
            assignment.remembered = remembered
        if assignment.outputs is outputs:  # otherwise this tick was settled before
            assignment.outputs = withheld + outputs[sets:]
            yield assignment, size
