"""A clock that jumps from one due time to the next, so that a test need not wait for them."""

from collections.abc import Iterable
from dataclasses import dataclass

from headway.delay.pending import Pending


@dataclass(slots=True)
class _DueTimes:
    """A schedule's due time in Kafka and its due time by the clock, which is None once the record is delivered."""

    stored: int
    by_clock: int | None
    is_ours: bool = False  # True if Kafka's due time is the result of our own jumps


class AdvancedClock:
    """The due times of schedules by a clock that jumps, while Kafka's own time goes on as usual.

    A schedule that is created or changed after a jump is due as long after that moment, by this clock, as was asked. A
    recurring schedule is due again as its recurrence says, after its last time by this clock. Times are in milliseconds
    since the epoch.

    Args:
        now: The time at which the clock starts.
        advance: How many milliseconds it may jump in total.
    """

    def __init__(self, now: int, advance: int) -> None:
        self._until = now + advance
        self._jumps = [(0, 0)]  # when it jumped, and how far ahead it has been since
        self._dues: dict[tuple[str, int], _DueTimes] = {}

    def see(self, found: Iterable[Pending]) -> None:
        """Take note of the schedules that are pending now."""
        for pending in found:
            due = self._dues.get(identity(pending))
            if due is None:  # a relay may show a schedule long after it was created
                self._dues[identity(pending)] = _DueTimes(
                    pending.due, pending.due + self._ahead_at(pending.schedule.at)
                )
            elif due.stored != pending.due and not due.is_ours:
                self._dues[identity(pending)] = _DueTimes(pending.due, pending.due + self._jumps[-1][1])

    def due_of(self, pending: Pending) -> int | None:
        """Return when a schedule that was seen is due, or None if it has been delivered."""
        return self._dues[identity(pending)].by_clock

    def jump(self, found: Iterable[Pending], now: int) -> list[Pending]:
        """Jump to the next time at which any of these schedules is due, and return those that are due then.

        They then count as delivered. Returns an empty list if the next time is too far away. `now` is the real time.
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
            self._dues[identity(pending)] = _DueTimes(pending.due, again, is_ours=True)
        return reached

    def allow(self, milliseconds: int, now: int) -> int:
        """Allow the clock to jump this much further, and return the latest time that it can then reach."""
        self._until = now + self._jumps[-1][1] + milliseconds
        return self._until

    def reach(self, time: int, now: int) -> None:
        """Set the clock to a time, unless it is past it already. `now` is the real time."""
        self._jumps.append((now, max(self._jumps[-1][1], time - now)))

    def _ahead_at(self, moment: int) -> int:
        return next(ahead for jumped, ahead in reversed(self._jumps) if jumped <= moment)


def identity(pending: Pending) -> tuple[str, int]:
    """Return the key that identifies a schedule, even among those with the same user's own id."""
    return pending.schedule.id, pending.schedule.at
