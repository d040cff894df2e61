"""How long the demo takes on this machine, by what it did so far; nothing but what is shown depends on that."""

from dataclasses import dataclass, replace
from datetime import timedelta

from demo.flights import COUNT
from demo.priority import Plan

SAMPLE = 30_000
"""So many flights are read and sent to warm up and to measure."""

_READ_S = 0.8  # for the sample, on the quiet machine with two cores on which all figures here were measured
_SHORTEST_S, _YEAR_S = 25.0, 50.0  # of what follows step 1, and how much longer that is for a year
_SLOWEST = 6.0
_AT_ONCE = 170_000  # so that a year is two micro-batches, each of which costs seconds besides its flights
_STORED_S, _YEAR_STORED_S = 15.0, 10.0  # within which a micro-batch is stored, once its flights were handled


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that sends so many records a second, and how many times as long as a quiet one it takes to compute."""

    sent_per_s: float
    slowdown: float

    @classmethod
    def measured(cls, read_s: float, sent_per_s: float) -> "Machine":
        """By the seconds in which it read the sample, and by how many records a second it sent then."""
        return cls(sent_per_s, _bounded(read_s / _READ_S))

    def having_sent(self, per_s: float, plan: Plan) -> "Machine":
        """The same, once it has sent so many records a second of those planned."""
        return replace(self, slowdown=max(self.slowdown, _bounded(plan.sent_per_s / per_s)))

    def seconds(self, records: int) -> float:
        """How long the demo may take with so many flights, once it has warmed up."""
        sent_per_s = min(self.sent_per_s, Plan(COUNT).sent_per_s / self.slowdown)
        return Plan(records).seconds(sent_per_s) + self.seconds_after_sending(records)

    def seconds_after_sending(self, records: int) -> float:
        """The same without step 1."""
        return self.slowdown * (_SHORTEST_S + _YEAR_S * records / COUNT)

    @property
    def flights_at_once(self) -> int:
        """How many flights a micro-batch has: they are handled within a third of what its transaction may take."""
        return round(_AT_ONCE / self.slowdown)

    def follow_up_after(self, records: int) -> timedelta:
        """A delay that is longer than it takes from handling a flight to storing its follow-up.

        What is stored when it is due already cannot come early, and so shows nothing.
        """
        return timedelta(seconds=round(self.slowdown * (_STORED_S + _YEAR_STORED_S * records / COUNT)))


def _bounded(slowdown: float) -> float:
    """One look says little of a machine that is very busy just then, and follow-ups wait that much longer."""
    return min(max(1.0, slowdown), _SLOWEST)


def minutes(seconds: float) -> str:
    """About how long that is.

    >>> minutes(40), minutes(100), minutes(400)
    ('a minute', '2 minutes', '7 minutes')
    """
    count = max(1, round(seconds / 60))
    return "a minute" if count == 1 else f"{count} minutes"
