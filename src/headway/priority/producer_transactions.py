"""The transactions of a producer (KIP-98): consumers read either all records of a transaction, or none of them."""

import time
from typing import TYPE_CHECKING

from headway.errors import DeliveryError, KafkaError
from headway.kafka.producer.client_transactions import ClientTransactions
from headway.kafka.producer.sender import Sender
from headway.priority.destinations import Destinations

if TYPE_CHECKING:
    from headway.priority.consumer import PriorityConsumer


class ProducerTransactions:
    """The transactions of a producer with a `transactional.id`.

    `is_open` is True from the start of a transaction until librdkafka has committed or aborted it.
    """

    def __init__(self, sender: Sender, destinations: Destinations) -> None:
        self._sender = sender
        self._destinations = destinations
        self._client = ClientTransactions(sender.client)
        self.is_open = False
        # The number of records that had failed when the transaction began, or None while no transaction accepts
        # records.
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
        """Commit the consumer's offsets as part of the transaction, for the consumer groups of all levels."""
        self._hand_all_over(timeout)
        for part in consumer.transaction_offsets():
            try:
                self._client.send_offsets(part.offsets, part.group_metadata, timeout)
            except KafkaError as error:
                consumer.hear_refusal(min(part.levels), error)
                raise

    def commit(self, timeout: float) -> None:
        """Commit the transaction. Raises `KafkaError` if the transaction must be aborted."""
        self._hand_all_over(timeout)
        deadline = time.monotonic() + timeout
        # librdkafka's own flush before a commit is not enough: librdkafka commits even if a record might not have been
        # stored. So this flushes and checks for such records first.
        self._sender.client.flush(timeout)
        self._raise_if_in_doubt()
        self._failed_before = None  # records that fail from now on are not part of the transaction
        self._client.commit(max(0.0, deadline - time.monotonic()))
        self.is_open = False

    def abort(self, timeout: float) -> None:
        """Abort the transaction."""
        self._sender.purge(self._destinations.queues(), "its transaction was aborted")
        self._client.abort(timeout)
        self._failed_before = None
        self.is_open = False

    def _hand_all_over(self, timeout: float) -> None:
        """Hand all waiting records to librdkafka, because only records that it has are part of the transaction."""
        if left := self._sender.hand_all_over(timeout):
            raise DeliveryError(
                f"{left} records of the transaction could not be handed to librdkafka within {timeout:g} seconds. "
                "Abort the transaction, or commit with a longer timeout."
            )
        # librdkafka cannot detect records that failed before they were handed over, so check for them here.
        if failed := self._failed():
            # If librdkafka aborted the transaction, the futures say only that records were purged. So the error names
            # the cause instead.
            cause = self._client.why_aborted()
            why = "their futures say why" if cause is None else str(cause).rstrip(".")
            raise DeliveryError(
                f"{failed} records of the transaction were not sent: {why}. Abort the transaction."
            ) from cause

    def _raise_if_in_doubt(self) -> None:
        """Raise `DeliveryError` if records have failed and librdkafka would commit the transaction anyway."""
        failed = self._failed()
        if failed and self._client.why_aborted() is None:
            raise DeliveryError(
                f"{failed} records of the transaction might not have been stored; their futures say why. Abort the "
                "transaction."
            )

    def _failed(self) -> int:
        """Return the number of the transaction's records that have failed. Outside a transaction, the number is 0."""
        return 0 if self._failed_before is None else self._destinations.failed() - self._failed_before
