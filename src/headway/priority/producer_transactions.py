"""The transactions of a producer (KIP-98): of the records sent in one, readers get all or none."""

import time
from typing import TYPE_CHECKING

from headway.errors import DeliveryError, KafkaError
from headway.kafka.producer.client_transactions import ClientTransactions
from headway.kafka.producer.sender import Sender
from headway.priority.destinations import Destinations

if TYPE_CHECKING:
    from headway.priority.consumer import PriorityConsumer


class ProducerTransactions:
    """The transactions of a producer with a `transactional.id`; `is_open` until librdkafka has ended the last one."""

    def __init__(self, sender: Sender, destinations: Destinations) -> None:
        self._sender = sender
        self._destinations = destinations
        self._client = ClientTransactions(sender.client)
        self.is_open = False
        # The records that had failed when the transaction began; None while no record can be added to a transaction.
        self._failed_before: int | None = None

    def init(self, timeout: float) -> None:
        """Fence off earlier producers with the same `transactional.id`."""
        self._client.init(timeout)

    def begin(self) -> None:
        """Start a transaction."""
        self._client.begin()
        self._failed_before = self._destinations.failed()
        self.is_open = True

    def send_offsets(self, consumer: "PriorityConsumer", timeout: float) -> None:
        """Commit with the transaction the offsets that the consumer has returned, in the groups of all its levels."""
        self._hand_all_over(timeout)
        for part in consumer.transaction_offsets():
            try:
                self._client.send_offsets(part.offsets, part.group_metadata, timeout)
            except KafkaError as error:
                consumer.hear_refusal(min(part.levels), error)
                raise

    def commit(self, timeout: float) -> None:
        """Make the transaction readable; raises `KafkaError` if it must be aborted."""
        self._hand_all_over(timeout)
        deadline = time.monotonic() + timeout
        # As a commit does, which would not see that a record might not have been stored.
        self._sender.client.flush(timeout)
        self._raise_if_in_doubt()
        self._failed_before = None  # a record that is refused from now on is not part of it
        self._client.commit(max(0.0, deadline - time.monotonic()))
        self.is_open = False

    def abort(self, timeout: float) -> None:
        """Drop the transaction."""
        self._sender.purge(self._destinations.queues(), "its transaction was aborted")
        self._client.abort(timeout)
        self._failed_before = None
        self.is_open = False

    def _hand_all_over(self, timeout: float) -> None:
        """Hand all waiting records to librdkafka: a record is not part of the transaction before librdkafka has it."""
        if left := self._sender.hand_all_over(timeout):
            raise DeliveryError(
                f"{left} records of the transaction could not be handed over within {timeout:g} seconds. Abort it, or "
                "give it more time."
            )
        if failed := self._failed():  # librdkafka knows only of the records that it was given
            cause = self._client.why_aborted()  # then the futures only say that records were given up
            why = "their futures say why" if cause is None else str(cause).rstrip(".")
            raise DeliveryError(
                f"{failed} records of the transaction were not sent: {why}. Abort it, which is all that can be done "
                "with it."
            ) from cause

    def _raise_if_in_doubt(self) -> None:
        """Raise `DeliveryError` for records that have failed and with which librdkafka would commit."""
        failed = self._failed()
        if failed and self._client.why_aborted() is None:
            raise DeliveryError(
                f"{failed} records of the transaction might not have been stored; their futures say why. Abort the "
                "transaction."
            )

    def _failed(self) -> int:
        """Return how many records of the transaction have failed; 0 outside one, where librdkafka raises an error."""
        return 0 if self._failed_before is None else self._destinations.failed() - self._failed_before
