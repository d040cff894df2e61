"""The ideal with which the ways to consume are compared: a fluid that flows through all slots by the shares.

No real consumer can reach it, because a slot handles one whole record at a time. It never leaves a slot free while a
record waits, and at each moment it divides all slots by the weights of those levels that have records.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from headway.experiments.level_setup import WEIGHTS, LevelSetup

_NOTHING = 1e-9  # records that are left because numbers are rounded


class FluidPhase(NamedTuple):
    """A time in which the rates do not change: from when to when, and the records per second of each level."""

    begins: float
    ends: float
    rates: tuple[float, ...]


def ideal_phases(setup: LevelSetup) -> list[FluidPhase]:
    """Return the phases of the ideal, in their order.

    >>> from headway.experiments.level_setup import all_at_once
    >>> [(round(each.begins), round(each.ends), [round(rate) for rate in each.rates])
    ...  for each in ideal_phases(all_at_once(100_000))]
    [(0, 636, [39, 79, 157]), (636, 909, [92, 183, 0]), (909, 1091, [275, 0, 0])]
    """
    waiting = [0.0] * len(WEIGHTS)
    coming = sorted(setup.waves)
    now, phases = 0.0, list[FluidPhase]()
    while coming or any(waiting):
        while coming and coming[0].at <= now:
            wave = coming.pop(0)
            waiting = [count + wave.records for count in waiting]
        rates = _rates(waiting, setup.capacity)
        drained = [count / rate for count, rate in zip(waiting, rates, strict=True) if rate]
        ends = min([now + min(drained, default=math.inf), *(wave.at for wave in coming)])
        phases.append(FluidPhase(now, ends, tuple(rates)))
        left = (count - rate * (ends - now) for count, rate in zip(waiting, rates, strict=True))
        waiting = [count if count > _NOTHING * setup.records else 0.0 for count in left]
        now = ends
    return phases


def _rates(waiting: Sequence[float], capacity: float) -> list[float]:
    active = [weight if count else 0 for weight, count in zip(WEIGHTS, waiting, strict=True)]
    return [capacity * weight / sum(active) if weight else 0.0 for weight in active]


def ideal_drained(phases: Sequence[FluidPhase]) -> list[float]:
    """Return when each level is worked off for the last time, lowest level first."""
    return [max(each.ends for each in phases if each.rates[level]) for level in range(len(WEIGHTS))]
