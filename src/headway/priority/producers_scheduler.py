"""The schedulers of producers. While a transaction of the producer is open, schedules are part of it."""

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Protocol

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


class ProducersScheduler(Scheduler):
    """A scheduler that stores schedules with its own client, or in the open transaction of its producer.

    Commands, and schedules that a relay has to answer, cannot be in a transaction, because relays see them only once
    the transaction is committed.

    Args:
        config: The settings, as for any scheduler.
        name: The scheduler's name.
        transactions: The transactions of the producer.
        send: Sends a record with the client of the producer.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        transactions: ProducerTransactions,
        send: Callable[[OutgoingRecord, OnDelivery | None], DeliveryFuture],
    ) -> None:
        super().__init__(config, name=name)
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
                "if_pending is 'refuse', which a relay has to answer, and relays see a transaction only when it is "
                "committed. Use 'keep' or 'replace', or schedule before the transaction begins. Nothing was sent."
            )
        return super()._expect_answer()

    def _parts(self, handle: ScheduleHandle | str, timeout: float) -> HandleParts:
        if self._transactions.is_open:
            raise ConfigError(
                f"The schedule {handle} cannot be cancelled or moved while a transaction of this producer is open: a "
                "relay answers at once, and an abort would not undo that. Call it after the transaction, or with a "
                "separate Scheduler. Nothing was changed."
            )
        return super()._parts(handle, timeout)


class InTurn(Protocol):
    """A function that makes calls on a thread, one after the other."""

    def __call__(self, call: Callable[[], T]) -> Awaitable[T]: ...


class AsyncProducersScheduler(AsyncScheduler):
    """The scheduler of a producer for asyncio. Its calls and those of the producer run one after the other.

    Args:
        make: Returns the scheduler of the producer.
        in_turn: Makes a call on the thread for records with a due time.
    """

    def __init__(self, make: Callable[[], Scheduler], in_turn: InTurn) -> None:
        super().__init__({})
        self._make = make
        self._in_turn = in_turn

    def _may_block(self, scheduler: Scheduler, when: When) -> bool:
        return True  # in a transaction a schedule may wait for buffer space

    def _call(self, call: Callable[[], T]) -> Awaitable[T]:
        return self._in_turn(call)
