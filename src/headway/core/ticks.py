"""Commit ticks: offsets, maps and outputs that are committed together or not at all.

Invariants: a tick is one moment; the outputs of a finished work are in its assignment until they are in Kafka, so
every tick that has its offset has them too, whatever became of the ticks before; that a tick was committed may be said
again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from headway.core.assignment import Assignment
from headway.core.offset_map import Commit
from headway.records import TopicPartition


class Part(NamedTuple):
    """What a tick has of an assignment: all until `finished`, with as many of its output sets, of so many bytes."""

    assignment: Assignment[Any]
    finished: int
    outputs: list[Sequence[Any]]
    sets: int
    size: int


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
            tick.commits[each.partition] = each.commit()
            tick.outputs.extend(output for outputs in each.outputs for output in outputs)
            tick.parts.append(Part(each, each.finished, each.outputs, len(each.outputs), each.of_outputs))
    return tick


def settle(tick: Tick) -> Iterator[tuple[Assignment[Any], int]]:
    """It is in Kafka; gives the assignments with how many bytes of their outputs are to be kept no more."""
    for assignment, finished, outputs, sets, size in tick.parts:
        assignment.saved = max(assignment.saved, finished)
        if assignment.outputs is outputs:  # otherwise this was said before
            assignment.outputs = outputs[sets:]
            yield assignment, size
