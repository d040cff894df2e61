"""The handle that a scheduler returns for each schedule."""

from concurrent.futures import Future

from headway.core.delay.changes import Settled
from headway.core.delay.schedule import CHOSEN, HandleParts, Schedule
from headway.declarations import checked_timeout
from headway.delay.commands import ANSWER_WITHIN, settled_within
from headway.errors import IdPendingError
from headway.kafka.producer.delivery import DeliveryFuture
from headway.runtime.lifecycle import time_left_of


class ScheduleHandle:
    """The handle of a schedule that was sent.

    Any process can cancel or reschedule the schedule if it has the handle's text, `str(handle)`.

    The handle is available at once; `wait` returns when the schedule is stored. If the user chose the schedule's id,
    the text is `id:` followed by the id.
    """

    __slots__ = ("_partition", "_schedule", "answer", "future")

    def __init__(
        self, partition: int, schedule: Schedule, future: DeliveryFuture, answer: Future[Settled] | None = None
    ) -> None:
        self._partition = partition
        self._schedule = schedule
        self.future = future
        self.answer = answer
        """The relay's answer. None unless the schedule must be refused if another schedule with the same id is pending.
        """

    @property
    def id(self) -> str:
        """The schedule's id."""
        return self._schedule.id.removeprefix(CHOSEN)

    @property
    def due(self) -> float:
        """The due time, in seconds since the epoch."""
        return self._schedule.due / 1000

    def wait(self, timeout: float | None = None) -> None:
        """Wait until Kafka has stored the schedule.

        With `if_pending="refuse"`, also wait until a relay has accepted it.

        Raises:
            DeliveryError: Kafka refused the record.
            TimeoutError: The record was not stored within `timeout` seconds.
            IdPendingError: Another schedule with the same id is pending, and `if_pending` is "refuse".
            NoRelayError: No relay has answered within `timeout` seconds, or within half a minute if there is no
                timeout.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        left = time_left_of(timeout)
        self.future.result(timeout)
        if self.answer is not None:
            within = ANSWER_WITHIN if timeout is None else timeout
            self.check(settled_within(self.answer, within, ANSWER_WITHIN if timeout is None else left() or 0.0))

    def check(self, settled: Settled) -> None:
        """Raise `IdPendingError` if the relay refused the schedule."""
        if settled is Settled.REFUSED:
            raise IdPendingError(
                f"A schedule with the id {self.id!r} is pending, so this one was not stored. Cancel the pending one "
                f"(cancel({str(self)!r})), or replace it with if_pending='replace'."
            )

    def __str__(self) -> str:
        return str(HandleParts(self._partition, self._schedule.due, self._schedule.at, self._schedule.id))

    def __repr__(self) -> str:
        return f"ScheduleHandle({str(self)!r})"
