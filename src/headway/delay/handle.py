"""The handle that a scheduler returns for each schedule."""

from headway.core.delay.schedule import HandleParts, Schedule
from headway.kafka.producer.delivery import DeliveryFuture


class ScheduleHandle:
    """A schedule: with the plain text `str(handle)` any process can cancel or reschedule it.

    The handle exists at once; `wait` returns when the schedule is stored.
    """

    __slots__ = ("_partition", "_schedule", "future")

    def __init__(self, partition: int, schedule: Schedule, future: DeliveryFuture) -> None:
        self._partition = partition
        self._schedule = schedule
        self.future = future

    @property
    def id(self) -> str:
        """The schedule's id."""
        return self._schedule.id

    @property
    def due(self) -> float:
        """The due time, in seconds since the epoch."""
        return self._schedule.due / 1000

    def wait(self, timeout: float | None = None) -> None:
        """Wait until Kafka has stored the schedule; raise `DeliveryError` if Kafka refused it, or `TimeoutError`."""
        self.future.result(timeout)

    def __str__(self) -> str:
        return str(HandleParts(self._partition, self._schedule.due, self._schedule.at, self._schedule.id))

    def __repr__(self) -> str:
        return f"ScheduleHandle({str(self)!r})"
