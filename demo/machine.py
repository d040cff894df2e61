"""Estimates how long the demo takes on this machine. Only what it shows depends on the estimates."""

from dataclasses import dataclass, replace
from datetime import timedelta

from demo.flights import COUNT
from demo.priority import Plan

SAMPLE = 30_000
"""The number of flights that are read and sent to warm up and to measure."""

_READ_S = 0.8  # for the sample, on the quiet machine with two cores on which all figures here were measured
_SHORTEST_S, _YEAR_S = 25.0, 50.0  # the steps after step 1, and the extra time for a year of flights
_SLOWEST = 6.0
_AT_ONCE = 170_000  # a year is then two micro-batches, each of which costs some seconds besides its flights
_STORED_S, _YEAR_STORED_S = 15.0, 10.0  # time to store a micro-batch after its flights were handled


@dataclass(frozen=True, slots=True)
class Machine:
    """How many records per second a machine sends, and its computing time relative to a quiet machine."""

    sent_per_s: float
    slowdown: float

    @classmethod
    def measured(cls, read_s: float, sent_per_s: float) -> "Machine":
        """Estimate from the seconds for reading the sample, and from the records per second that were sent."""
        return cls(sent_per_s, _bounded(read_s / _READ_S))

    def having_sent(self, per_s: float, plan: Plan) -> "Machine":
        """Correct the estimate by the records per second that were sent of the planned ones."""
        return replace(self, slowdown=max(self.slowdown, _bounded(plan.sent_per_s / per_s)))

    def seconds(self, records: int) -> float:
        """Estimate the seconds that the demo takes after the warm-up, with this many flights."""
        sent_per_s = min(self.sent_per_s, Plan(COUNT).sent_per_s / self.slowdown)
        return Plan(records).seconds(sent_per_s) + self.seconds_after_sending(records)

    def seconds_after_sending(self, records: int) -> float:
        """Estimate the seconds without step 1."""
        return self.slowdown * (_SHORTEST_S + _YEAR_S * records / COUNT)

    @property
    def flights_at_once(self) -> int:
        """The flights of a micro-batch, which are handled within a third of the longest time of its transaction."""
        return round(_AT_ONCE / self.slowdown)

    def follow_up_after(self, records: int) -> timedelta:
        """A delay that is longer than the time from handling a flight to storing its follow-up.

        What is stored when it is due already cannot come early, and so shows nothing.
        """
        return timedelta(seconds=round(self.slowdown * (_STORED_S + _YEAR_STORED_S * records / COUNT)))


def _bounded(slowdown: float) -> float:
    """Limit the slowdown, because one measurement says little of a machine that is very busy at that moment."""
    return min(max(1.0, slowdown), _SLOWEST)


def minutes(seconds: float) -> str:
    """Format a time roughly.

    >>> minutes(40), minutes(100), minutes(400)
    ('a minute', '2 minutes', '7 minutes')
    """
    count = max(1, round(seconds / 60))
    return "a minute" if count == 1 else f"{count} minutes"
