"""Transactions of a producer (KIP-98): of the records sent in one, readers get all or none."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headway.declarations import checked_timeout
from headway.errors import ClosedError, DeliveryError, KafkaError
from headway.kafka.binding.error_causes import is_fenced
from headway.priority.base_producer import REQUEST_TIMEOUT, BaseProducer

if TYPE_CHECKING:
    from headway.priority.consumer import PriorityConsumer


class TransactionalProducer(BaseProducer):
    """A producer with transactions, which need a `transactional.id`."""

    # The records that had failed at the transaction's beginning; None while no record can be added to a transaction.
    _failed_before: int | None = None
    _transaction_is_open = False  # until librdkafka has ended it

    def init_transactions(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Fence off earlier producers with the same `transactional.id`; call it once, before the first transaction."""
        timeout = checked_timeout(timeout)
        self.check_open()
        self.client.init_transactions(timeout)

    def begin_transaction(self) -> None:
        """Start a transaction: of the records sent from now on, readers get all or none."""
        self.check_open()
        self.client.begin_transaction()
        self._failed_before = self._failed()
        self._transaction_is_open = True

    def send_offsets(self, consumer: "PriorityConsumer", timeout: float = REQUEST_TIMEOUT) -> None:
        """Commit with the transaction the offsets that the consumer has returned, in the groups of all its levels."""
        timeout = checked_timeout(timeout)
        self.check_open()
        self._hand_all_over(timeout)
        for part in consumer.transaction_offsets():
            try:
                self.client.send_offsets(part.offsets, part.group_metadata, timeout)
            except KafkaError as error:
                consumer.hear_refusal(min(part.levels), error)
                raise

    def commit_transaction(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Make the transaction readable; raises `KafkaError` if it must be aborted."""
        timeout = checked_timeout(timeout)
        self.check_open()
        self._hand_all_over(timeout)
        deadline = time.monotonic() + timeout
        self.client.flush(timeout)  # as a commit does; but it would not see that a record might not be stored
        self._raise_if_in_doubt()
        self._failed_before = None  # a record that is refused from now on is not part of it
        self.client.commit_transaction(max(0.0, deadline - time.monotonic()))
        self._transaction_is_open = False

    def abort_transaction(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Drop the transaction."""
        timeout = checked_timeout(timeout)
        self.check_open()
        self._sender.purge([each.queues for each in self._those()], "its transaction was aborted")
        self.client.abort_transaction(timeout)
        self._failed_before = None
        self._transaction_is_open = False

    def _is_in_transaction(self) -> bool:
        return self._transaction_is_open

    def _hand_all_over(self, timeout: float) -> None:
        """Hand all waiting records to librdkafka: a record is not part of the transaction before librdkafka has it."""
        if left := self._sender.hand_all_over(timeout):
            raise DeliveryError(
                f"{left} records of the transaction could not be handed over within {timeout:g} seconds. Abort it, or "
                "give it more time."
            )
        if self._failed_before is None:  # librdkafka says what is out of place
            return
        if failed := self._failed() - self._failed_before:  # librdkafka knows only of the records that it was given
            cause = self.client.why_aborted()  # then the futures only say that records were given up
            why = "their futures say why" if cause is None else str(cause).rstrip(".")
            raise DeliveryError(
                f"{failed} records of the transaction were not sent: {why}. Abort it, which is all that can be done "
                "with it."
            ) from cause

    def _raise_if_in_doubt(self) -> None:
        """Raise `DeliveryError` for records that have failed and with which librdkafka would commit."""
        failed = 0 if self._failed_before is None else self._failed() - self._failed_before
        if failed and self.client.why_aborted() is None:
            raise DeliveryError(
                f"{failed} records of the transaction might not be stored: their futures say why. Abort it, which is "
                "all that can be done with it."
            )

    @contextmanager
    def transaction(self, timeout: float = REQUEST_TIMEOUT) -> Iterator[None]:
        """Run a `with` block as a transaction: committed at its end, aborted on an error."""
        timeout = checked_timeout(timeout)
        self.begin_transaction()
        try:
            yield
            self.commit_transaction(timeout)
        except BaseException as error:
            self.abort_after(error, timeout)
            raise

    def abort_after(self, error: BaseException, timeout: float) -> None:
        """Abort the transaction that an error has ended; raising that error matters more than a working abort."""
        try:
            self.abort_transaction(timeout)
        except ClosedError:
            pass  # closing the producer in the block has ended its transaction, too
        except KafkaError as refused:
            if not is_fenced(refused):  # otherwise the producer that took over has aborted it already
                error.add_note(f"The transaction could not be aborted: {refused}")

    def _failed(self) -> int:
        return sum(each.counts().failed for each in self._those())
