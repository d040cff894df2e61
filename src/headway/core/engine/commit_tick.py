"""Commit ticks: offsets, maps and outputs that are committed together or not at all.

Invariants: a tick is one moment; the outputs of a finished work are in its assignment until they are in Kafka, so
every tick that has its offset has them too, whatever became of the ticks before; that a tick was committed may be said
again. What a shortened map leaves out comes again after a restart, so its outputs wait for a tick that remembers it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from headway.core.engine.assignment import Assignment
from headway.core.offsets.commit_metadata import Done
from headway.core.offsets.offset_map import Commit, OffsetMap
from headway.records import TopicPartition


class Part(NamedTuple):
    """What a tick has of an assignment: all until `finished`, with as many of its output sets, of so many bytes.

    Of these sets it leaves out the `withheld` ones. What it counts as done is `remembered` when it is committed.
    """

    assignment: Assignment[Any]
    finished: int
    outputs: list[tuple[int, int, Sequence[Any]]]
    sets: int
    size: int
    withheld: list[tuple[int, int, Sequence[Any]]]
    remembered: OffsetMap


class Tick(NamedTuple):
    """What to commit together: per partition offset and map, and the outputs of what they count as done."""

    commits: dict[TopicPartition, Commit]
    outputs: list[Any]
    parts: list[Part]


def take(assignments: Iterable[Assignment[Any]]) -> Tick:
    """What is due of these; nothing changes by it, so one that nobody came to commit is no loss."""
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
            tick.parts.append(Part(each, each.finished, each.outputs, sets, size, withheld, commit.kept or snapshot))
    return tick


def settle(tick: Tick) -> Iterator[tuple[Assignment[Any], int]]:
    """It is in Kafka; gives the assignments with how many bytes of their outputs are to be kept no more."""
    for assignment, finished, outputs, sets, size, withheld, remembered in tick.parts:
        if finished >= assignment.saved:
            assignment.saved = finished
            assignment.remembered = remembered
        if assignment.outputs is outputs:  # otherwise this was said before
            assignment.outputs = withheld + outputs[sets:]
            yield assignment, size
