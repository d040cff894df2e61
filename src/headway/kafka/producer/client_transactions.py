"""The transactions of a producer's client, and what to do when librdkafka does not return from a call (KIP-98)."""

import time
from collections.abc import Callable
from functools import partial

from headway.errors import KafkaError
from headway.kafka.binding.capi import Offsets, await_connection, send_offsets_to_transaction
from headway.kafka.binding.error_causes import is_out_of_place, is_retriable, refused
from headway.kafka.missing_rights import raise_if_refused
from headway.kafka.producer.client import SLICE, ProducerClient
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import defer_signals, heed_signals

HANGS_AFTER = 10.0
"""The seconds after which a call that was to take `SLICE` is thought never to return."""

_BEGUN_WITHIN = 1.0
"""The seconds after which a record that is not acknowledged is no reason to wait with an abort."""


class ClientTransactions:
    """The transactions of a client with a `transactional.id`.

    One thread at a time makes these calls, except that `add_offsets` may hang on a thread of its own. That thread holds
    the client's `calling`, and no other lock. A commit or an abort takes the turn at reports.
    """

    def __init__(self, client: ProducerClient) -> None:
        self._client = client

    def init(self, timeout: float) -> None:
        """Fence off earlier producers with the same `transactional.id`.

        Raises `AuthorizationError` if this client may not use that id.
        """
        client = self._client
        try:
            client.call_in_slices(self._init, timeout)
        except KafkaError as error:
            transactional_id = str(client.config.get("transactional.id"))
            raise_if_refused(error, "Write", client.config, transactional_id=transactional_id)
            raise

    def _init(self, timeout: float) -> None:
        # A client that looks for the coordinator before any broker is connected looks again after half a second.
        await_connection(self._client.producer, timeout)
        self._client.producer.init_transactions(timeout)

    def begin(self) -> None:
        """Start a transaction."""
        self._client.call(self._client.producer.begin_transaction)

    def why_aborted(self) -> KafkaError | None:
        """Return why the open transaction can only be aborted, if librdkafka knows that it can.

        Its reports do not say so: if a topic may not be written, all of them are "Purged in queue". Every later call
        about the transaction raises the cause, and this call can do no harm.
        """
        try:
            self.begin()
        except KafkaError as error:
            return None if is_out_of_place(error) else error
        return None

    def send_offsets(self, offsets: Offsets, group_metadata: bytes, timeout: float) -> None:
        """Commit a consumer's offsets with the transaction; raises `KafkaError` also if librdkafka does not return.

        librdkafka ignores the timeout while it waits for the broker that it knows as the group's coordinator. It waits
        forever if that broker has left the cluster, or all brokers were away for a moment (its issues 5456 and 5511).
        """
        sent = in_background(partial(self.add_offsets, offsets, group_metadata, timeout))
        longest = max(timeout, HANGS_AFTER)
        try:
            sent.result(longest)
        except TimeoutError as late:
            raise KafkaError(
                f"The offsets could not be added to the transaction within {longest:g} s. If it stays so, make a new "
                "producer with the same transactional.id, which ends what this one has open."
            ) from late

    def add_offsets(self, offsets: Offsets, group_metadata: bytes, timeout: float) -> None:
        """Commit a consumer's offsets with the transaction, on a thread that may hang."""
        with self._client.calling:
            # With records on their way the broker answers "concurrent transactions", and librdkafka then sleeps.
            self._client.flush(timeout)
            send_offsets_to_transaction(self._client.producer, offsets, group_metadata, timeout)

    def hangs(self) -> bool:
        """Return whether `add_offsets` does not return: then only the client's `renew` can end the transaction."""
        calling = self._client.calling
        with defer_signals():  # one between the two calls would leave the lock taken for good
            if not calling.acquire(timeout=SLICE):
                return True
            calling.release()
            return False

    def commit(self, timeout: float) -> None:
        """Commit the transaction, or raise an error."""
        self._end(self._client.producer.commit_transaction, timeout)

    def abort(self, timeout: float) -> None:
        """Abort the transaction."""
        # Right after a commit Kafka may begin the next transaction some milliseconds later. If librdkafka aborts it
        # before, Kafka knows of none, and librdkafka takes that answer for a fatal error (its issue 4849).
        deadline = time.monotonic() + timeout
        if self._client.queued() and self.why_aborted() is None:
            self._client.flush(min(_BEGUN_WITHIN, timeout))
        self._end(self._client.producer.abort_transaction, max(0.0, deadline - time.monotonic()))

    def _end(self, end: Callable[[float], None], timeout: float) -> None:
        """End the transaction, in this thread's turn at reports: both ways flush, and so take reports."""
        deadline = time.monotonic() + timeout
        with self._client.reports.turn(timeout) as mine:
            if fatal := self._client.fatal:  # librdkafka would mistake this call for a second one beside the failed one
                raise refused(fatal) from fatal
            if not mine:
                raise KafkaError(f"A transaction could not be ended within {timeout:g} s: a callback takes that long.")
            while not self._ends(end, deadline - time.monotonic()):
                heed_signals()

    def _ends(self, end: Callable[[float], None], seconds: float) -> bool:
        """Return whether the transaction has ended; raises if it cannot, or not within `seconds`."""
        try:
            self._client.call(end, max(0.0, min(SLICE, seconds)))
            return True
        except KafkaError as error:
            if seconds <= SLICE or not is_retriable(error):
                raise
            return False
        finally:
            self._client.after_reports()
