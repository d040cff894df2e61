"""The figures of a run with levels: drain times, use of slots, share error, reaction and overshoot."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.experiments.level_setup import LEVELS, WEIGHTS, LevelSetup, Way
from headway.experiments.run_log import RunLog

Floats = npt.NDArray[np.float64]

# How many times per handler's time the state is looked at.
_LOOKS = 10
# A change is answered if the highest waiting level has this fraction of its ideal slots, and this fraction of all slots
# is in use. It is 0.9, because a poll of the original experiments fills 50 of 55 slots.
_ANSWERED = 0.9
# Changes that follow each other within this many handler times count as one.
_ONE_CHANGE = 5
_ALMOST = 1e-6


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """What a run shows.

    Args:
        drained: When the last record of each level was done, in seconds, lowest level first.
        used: The fraction of all slots that was in use while records waited.
        share_error: The fraction of the used slots that another level should have had by the weights, on average over
            the time in which records of several levels waited.
        reaction: The longest time in seconds from a change (records come, or a level has no more) until the highest
            waiting level had 90 % of its ideal slots and 90 % of all slots were in use. None if a change was never
            answered.
        overshoot: By how many records the consumers exceeded what they may handle at a time.
    """

    drained: list[float]
    used: float
    share_error: float
    reaction: float | None
    overshoot: int


@dataclass(frozen=True, slots=True)
class LevelOutcome:
    """One way to consume the load: its log and its figures."""

    way: Way
    log: RunLog
    figures: LevelFigures


class Occupancy:
    """How many records of each level waited and ran, at evenly spaced times."""

    def __init__(self, log: RunLog, setup: LevelSetup) -> None:
        levels = np.array(log.levels)
        columns = [np.array(column) for column in (log.came, log.started, log.ended)]
        step = setup.seconds / _LOOKS
        # Half a step off, because in a simulation many records start and end at exactly the same time.
        self.times: Floats = np.arange(0.5 * step, max(log.ended), step)
        self.waiting: list[Floats] = []
        self.running: list[Floats] = []
        for level in range(LEVELS):
            came, started, ended = (self._before(column[levels == level]) for column in columns)
            self.waiting.append(came - started)
            self.running.append(started - ended)

    def _before(self, moments: Floats) -> Floats:
        return np.searchsorted(np.sort(moments), self.times, side="right").astype(np.float64)


def level_figures(log: RunLog, setup: LevelSetup, limit: int) -> LevelFigures:
    """Return the figures of a run. `limit` is how many records all consumers together may handle at a time."""
    state = Occupancy(log, setup)
    levels, ended = np.array(log.levels), np.array(log.ended)
    drained = [float(ended[levels == level].max()) for level in range(LEVELS)]
    waiting, running = np.array(state.waiting), np.array(state.running)
    waits = waiting > 0
    busy = waits.any(axis=0)
    used = float(running.sum(axis=0)[busy].mean() / setup.all_slots) if busy.any() else 1.0
    return LevelFigures(
        drained, used, _share_error(waits, running), _reaction(state, waits, setup), _overshoot(log, limit)
    )


def _share_error(waits: npt.NDArray[np.bool_], running: Floats) -> float:
    several = (waits.sum(axis=0) > 1) & (running.sum(axis=0) > 0)
    if not several.any():
        return 0.0
    ideal = _ideal_shares(waits[:, several])
    real = running[:, several] / running[:, several].sum(axis=0)
    return float(np.abs(real - ideal).sum(axis=0).mean() / 2)


def _ideal_shares(waits: npt.NDArray[np.bool_]) -> Floats:
    weighted = waits * np.array(WEIGHTS, dtype=np.float64)[:, None]
    return np.asarray(weighted / np.maximum(weighted.sum(axis=0), 1))


def _reaction(state: Occupancy, waits: npt.NDArray[np.bool_], setup: LevelSetup) -> float | None:
    busy = waits.any(axis=0)
    highest = LEVELS - 1 - np.argmax(waits[::-1], axis=0)
    column = np.arange(len(state.times))
    running = np.array(state.running)
    ideal = _ideal_shares(waits)[highest, column] * setup.all_slots
    answered = (running[highest, column] >= (_ANSWERED - _ALMOST) * ideal) & (
        running.sum(axis=0) >= (_ANSWERED - _ALMOST) * setup.all_slots
    )
    longest = 0.0
    changes = _changes(state, waits, setup)
    for begins, ends in zip(changes, [*changes[1:], float("inf")], strict=True):
        within = busy & (state.times >= begins) & (state.times < ends)
        if not within.any():
            continue
        if not (answered & within).any():
            return None
        longest = max(longest, float(state.times[answered & within][0]) - begins)
    return longest


def _changes(state: Occupancy, waits: npt.NDArray[np.bool_], setup: LevelSetup) -> list[float]:
    """Return when waves came, and when a level had no more records while another one still had some."""
    emptied = (waits[:, :-1] & ~waits[:, 1:]).any(axis=0) & waits[:, 1:].any(axis=0)
    found = sorted([*(wave.at for wave in setup.waves), *state.times[1:][emptied].tolist()])
    return [
        at for number, at in enumerate(found) if number == 0 or at - found[number - 1] >= _ONE_CHANGE * setup.seconds
    ]


def _overshoot(log: RunLog, limit: int) -> int:
    moments = np.concatenate([np.array(log.ended), np.array(log.started)])
    changes = np.concatenate([-np.ones(len(log)), np.ones(len(log))])
    order = np.lexsort((changes, moments))  # at the same time, records end before others start
    return max(0, int(np.cumsum(changes[order]).max()) - limit)


def rates_over_time(log: RunLog, setup: LevelSetup, most_bins: int) -> tuple[Floats, list[Floats]]:
    """Return the edges of bins, and how many records of each level were handled per second in each bin.

    The rate is the number of records that ran, divided by the time that one takes. Counting the ends of records would
    alternate between too many and none, because many records end at the same time.
    """
    state = Occupancy(log, setup)
    looks = max(_LOOKS, -(-len(state.times) // most_bins))
    begins = np.arange(0, len(state.times), looks)
    counts = np.diff([*begins, len(state.times)])
    rates = [np.add.reduceat(running, begins) / counts / setup.seconds for running in state.running]
    return np.append(begins, len(state.times)) * setup.seconds / _LOOKS, rates


def done_over_time(log: RunLog, level: int, points: int) -> tuple[Floats, Floats]:
    """Return times, and how many records of a level were done by then."""
    ended = np.sort(np.array(log.ended)[np.array(log.levels) == level])
    chosen = np.unique(np.linspace(0, len(ended) - 1, points).round().astype(int))
    return np.concatenate([[0.0], ended[chosen]]), np.concatenate([[0.0], chosen + 1.0])
