"""The schedulers that belong to producers. While a producer's transaction is open, new schedules are part of it."""

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from headway.core.delay.changes import Settled
from headway.core.delay.schedule import HandleParts
from headway.core.outgoing_record import OutgoingRecord
from headway.delay.async_scheduler import AsyncScheduler, T
from headway.delay.due_time import When
from headway.delay.handle import ScheduleHandle
from headway.delay.schedule_encoder import check_size
from headway.delay.scheduler import Scheduler
from headway.errors import ConfigError
from headway.kafka.producer.delivery import DeliveryFuture, OnDelivery
from headway.priority.producer_transactions import ProducerTransactions
from headway.settings.config import Config
from headway.tracing.tracing import Tracing

if TYPE_CHECKING:
    from headway.priority.producer import Producer


class ProducersScheduler(Scheduler):
    """A scheduler that stores schedules as part of its producer's open transaction.

    Without an open transaction, the scheduler stores them with its own client.

    Cancellations, reschedules, and schedules that a relay must answer cannot be part of a transaction, because relays
    see them only once the transaction is committed.

    Args:
        config: The scheduler's settings.
        name: The scheduler's name.
        transactions: The producer's transactions.
        send: A function that sends a record with the producer's client, for schedules in a transaction.
        tracing: The producer's tracing, if it has one.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        transactions: ProducerTransactions,
        send: Callable[[OutgoingRecord, OnDelivery | None], DeliveryFuture],
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(config, name=name, tracing=tracing)
        self._transactions = transactions
        self._send_in_transaction = send

    def _store(self, record: OutgoingRecord, on_stored: OnDelivery | None) -> DeliveryFuture:
        if not self._transactions.is_open:
            return super()._store(record, on_stored)
        check_size(record)
        return self._send_in_transaction(record, on_stored)

    def _expect_answer(self) -> tuple[str, Future[Settled]]:
        if self._transactions.is_open:
            raise ConfigError(
                "if_pending is 'refuse', so a relay must answer, but relays do not see records of a transaction before "
                "it is committed. Use 'keep' or 'replace', or schedule before the transaction begins. Nothing was sent."
            )
        return super()._expect_answer()

    def _parts(self, handle: ScheduleHandle | str, timeout: float) -> HandleParts:
        if self._transactions.is_open:
            raise ConfigError(
                f"The schedule {handle} cannot be cancelled or rescheduled while a transaction of this producer is "
                "open, because an abort could not undo the change. Make the change after the transaction, or with a "
                "separate Scheduler. Nothing was changed."
            )
        return super()._parts(handle, timeout)


class InTurn(Protocol):
    """A function that runs calls on a thread, one after another."""

    def __call__(self, call: Callable[[], T]) -> Awaitable[T]: ...


class AsyncProducersScheduler(AsyncScheduler):
    """The scheduler of an asyncio producer. Its calls and the producer's blocking calls share a thread.

    Args:
        producer: The producer, which makes its scheduler when that is first used.
        in_turn: A function that runs a call on that thread.
    """

    def __init__(self, producer: "Producer", in_turn: InTurn) -> None:
        super().__init__({})
        self._producer = producer
        self._in_turn = in_turn

    def _make(self) -> Scheduler:
        return self._producer.scheduler

    def _may_block(self, scheduler: Scheduler, when: When) -> bool:
        return True  # storing a schedule in a transaction can wait for buffer space

    def _call(self, call: Callable[[], T]) -> Awaitable[T]:
        return self._in_turn(call)
