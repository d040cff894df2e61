"""A clock that jumps from one due time to the next, so that a test does not have to wait for due records."""

from collections.abc import Iterable
from dataclasses import dataclass

from headway.delay.pending import Pending


@dataclass(slots=True)
class _DueTimes:
    """The due time of a schedule in Kafka, and its due time on the test's clock (None once it is delivered)."""

    stored: int
    by_clock: int | None
    is_ours: bool = False  # True if the due time in Kafka was changed by a jump of this clock


class AdvancedClock:
    """A test's clock that jumps ahead of the real time, and the due times of schedules on this clock.

    A schedule that is created or changed after a jump keeps its full delay: on this clock, it is as far in the future
    as the caller asked. For a recurring schedule, the next due time is calculated from its last due time on this
    clock. Times are in milliseconds since the epoch.

    Args:
        now: The time at which the clock starts.
        advance: How many milliseconds it may jump in total.
    """

    def __init__(self, now: int, advance: int) -> None:
        self._until = now + advance
        self._jumps = [(0, 0)]  # for each jump: when it was in real time, and how far ahead the clock has been since
        self._dues: dict[tuple[str, int], _DueTimes] = {}

    def see(self, found: Iterable[Pending]) -> None:
        """Take note of the schedules that are pending now."""
        for pending in found:
            due = self._dues.get(identity(pending))
            if due is None:  # count from the creation, because a relay may publish a schedule long after it
                self._dues[identity(pending)] = _DueTimes(
                    pending.due, pending.due + self._ahead_at(pending.schedule.at)
                )
            elif due.stored != pending.due and not due.is_ours:
                self._dues[identity(pending)] = _DueTimes(pending.due, pending.due + self._jumps[-1][1])

    def due_of(self, pending: Pending) -> int | None:
        """Return the due time, on this clock, of a schedule that `see` got, or None if the schedule was delivered."""
        return self._dues[identity(pending)].by_clock

    def jump(self, found: Iterable[Pending], now: int) -> list[Pending]:
        """Jump to the next time at which any of these schedules is due. Returns the schedules that are due then.

        From then on these count as delivered. If the clock must not jump that far, it does not jump, and the list is
        empty. `now` is the real time.
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
        """Allow the clock to advance by this many milliseconds. Returns the latest time that it can then reach."""
        self._until = now + self._jumps[-1][1] + milliseconds
        return self._until

    def reach(self, time: int, now: int) -> None:
        """Set the clock to `time`, unless the clock is already later. `now` is the real time."""
        self._jumps.append((now, max(self._jumps[-1][1], time - now)))

    def _ahead_at(self, moment: int) -> int:
        return next(ahead for jumped, ahead in reversed(self._jumps) if jumped <= moment)


def identity(pending: Pending) -> tuple[str, int]:
    """Return a key that identifies a schedule: its id and its time of creation, because users can reuse an id."""
    return pending.schedule.id, pending.schedule.at
