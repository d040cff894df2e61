"""Commit ticks: offsets, maps and outputs that are committed together or not at all.

Invariants: a tick is one moment; the outputs of a finished work are in exactly one of: its assignment, the open tick,
Kafka; no tick is taken while one with outputs is open, so no offset is committed without the outputs below it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headway.core.assignment import Assignment
from headway.core.offset_map import Commit
from headway.records import TopicPartition


class Tick(NamedTuple):
    """What to commit together: per partition offset and map, and the outputs of what they count as done."""

    commits: dict[TopicPartition, Commit]
    outputs: list[Any]
    parts: list[tuple[Assignment[Any], int, list[Sequence[Any]]]]


class Ticks:
    """Takes what is due from assignments, and settles what became of it."""

    def __init__(self) -> None:
        self._open: Tick | None = None

    def take(self, assignments: Iterable[Assignment[Any]]) -> Tick:
        """What is due of these; raises `RuntimeError` while a tick with outputs is neither committed nor aborted."""
        if self._open:
            raise RuntimeError("The last tick's outputs were neither committed nor aborted.")
        tick = Tick({}, [], [])
        for assignment in assignments:
            if assignment.finished > assignment.saved:
                tick.commits[assignment.partition] = assignment.commit()
                tick.outputs.extend(output for outputs in assignment.outputs for output in outputs)
                tick.parts.append((assignment, assignment.finished, assignment.outputs))
                assignment.outputs = []
        self._open = tick if tick.outputs else None
        return tick

    def committed(self, tick: Tick) -> None:
        """It is in Kafka."""
        self._close(tick)
        for assignment, finished, _ in tick.parts:
            assignment.saved = max(assignment.saved, finished)

    def aborted(self, tick: Tick) -> None:
        """It is not: what it took goes back to where it was, unless that is lost."""
        self._close(tick)
        for assignment, _, outputs in tick.parts:
            if assignment.current:
                assignment.outputs[:0] = outputs

    def _close(self, tick: Tick) -> None:
        if tick is self._open:
            self._open = None
