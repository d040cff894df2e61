"""A clock that jumps from one due time to the next, so that a test need not wait for them."""

from collections.abc import Iterable
from dataclasses import dataclass

from headway.delay.pending import Pending


@dataclass(slots=True)
class _Due:
    """A due time that Kafka has, and the one by the clock; that is None once the record has been delivered."""

    stored: int
    by_clock: int | None
    is_ours: bool = False  # whether what Kafka has follows from our jumps


class AdvancedClock:
    """The due times of schedules by a clock that jumps, while Kafka's own time goes on as ever.

    A schedule that is made or changed after a jump is due so much later by this clock as its maker asked. A recurring
    one is due again as its recurrence says, after its last time by this clock. Times are in milliseconds since the
    epoch.

    Args:
        now: The time at which the clock begins.
        advance: The milliseconds by which it jumps at most.
    """

    def __init__(self, now: int, advance: int) -> None:
        self._until = now + advance
        self._jumps = [(0, 0)]  # when, and by how much the clock has been ahead since
        self._dues: dict[tuple[str, int], _Due] = {}

    def see(self, found: Iterable[Pending]) -> None:
        """Note the schedules that are pending now."""
        for pending in found:
            due = self._dues.get(identity(pending))
            if due is None:  # a relay can show a schedule long after it was made
                self._dues[identity(pending)] = _Due(pending.due, pending.due + self._ahead_at(pending.schedule.at))
            elif due.stored != pending.due and not due.is_ours:
                self._dues[identity(pending)] = _Due(pending.due, pending.due + self._jumps[-1][1])

    def due_of(self, pending: Pending) -> int | None:
        """Return when a schedule that was seen is due; None if it has been delivered."""
        return self._dues[identity(pending)].by_clock

    def jump(self, found: Iterable[Pending], now: int) -> list[Pending]:
        """Jump to the next time at which any of these schedules is due, and return those that are due then.

        They count as delivered. Returns none if the next time is too far. `now` is the time without any jump.
        """
        self.see(found := list(found))
        times = [(due, pending) for pending in found if (due := self.due_of(pending)) is not None]
        then = min((due for due, _ in times), default=self._until + 1)
        if then > self._until:
            return []
        self._jumps.append((now, max(self._jumps[-1][1], then - now)))
        reached = [pending for due, pending in times if due == then]
        reached.sort(key=lambda each: (each.schedule.at, each.schedule.order))
        for pending in reached:
            recurrence = pending.schedule.recurrence
            again = None if recurrence is None else recurrence.following(then, then)
            self._dues[identity(pending)] = _Due(pending.due, again, is_ours=True)
        return reached

    def allow(self, milliseconds: int, now: int) -> int:
        """Let the clock jump on by so much at most, from where it is; return the latest time that it can have then."""
        self._until = now + self._jumps[-1][1] + milliseconds
        return self._until

    def reach(self, time: int, now: int) -> None:
        """Let the clock be at a time, if it is not beyond it already; `now` is the time without any jump."""
        self._jumps.append((now, max(self._jumps[-1][1], time - now)))

    def _ahead_at(self, moment: int) -> int:
        return next(ahead for jumped, ahead in reversed(self._jumps) if jumped <= moment)


def identity(pending: Pending) -> tuple[str, int]:
    """Return what tells a schedule from all others, also from an earlier one with the same id of a user's own."""
    return pending.schedule.id, pending.schedule.at
