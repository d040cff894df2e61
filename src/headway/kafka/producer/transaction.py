"""The transactions of a producer, and what to do when librdkafka does not return from one of their calls (KIP-98)."""

import time
from collections.abc import Callable
from functools import partial

from headway.errors import KafkaError
from headway.kafka.binding.capi import Offsets, await_connection, send_offsets_to_transaction
from headway.kafka.binding.error_causes import is_out_of_place, is_retriable, refused
from headway.kafka.missing_rights import raise_if_refused
from headway.kafka.producer.renewable_producer import SLICE, RenewableProducer
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import defer_signals, heed_signals

HANGS_AFTER = 10.0
"""The seconds after which a call that was to take `SLICE` is thought never to return."""

_BEGUN_WITHIN = 1.0
"""The seconds after which a record that is not acknowledged is no reason to wait with an abort."""


class TransactionalClient(RenewableProducer):
    """A producer whose records can be part of transactions, if it has a `transactional.id`.

    One thread at a time makes these calls, except that `add_offsets` may hang on a thread of its own. That thread holds
    the producer's `_calling`, and no other lock. A commit or an abort takes the turn at reports.
    """

    def init_transactions(self, timeout: float) -> None:
        """Fence off earlier producers with the same `transactional.id`.

        Raises `AuthorizationError` if this client may not use that id.
        """
        try:
            self._in_slices(self._init_transactions, timeout)
        except KafkaError as error:
            transactional_id = str(self._config.get("transactional.id"))
            raise_if_refused(error, "Write", self._config, transactional_id=transactional_id)
            raise

    def _init_transactions(self, timeout: float) -> None:
        # Who looks for the coordinator before any broker is connected looks again after half a second.
        await_connection(self._producer, timeout)
        self._producer.init_transactions(timeout)

    def begin_transaction(self) -> None:
        """Start a transaction."""
        self._call(self._producer.begin_transaction)

    def why_aborted(self) -> KafkaError | None:
        """Return why the open transaction can only be aborted, if librdkafka knows that it can.

        Its reports do not tell: if a topic may not be written, all of them say "Purged in queue". Every later call
        about the transaction tells, and this call can do no harm.
        """
        try:
            self._call(self._producer.begin_transaction)
        except KafkaError as error:
            return None if is_out_of_place(error) else error
        return None

    def send_offsets(self, offsets: Offsets, group_metadata: bytes, timeout: float) -> None:
        """Commit a consumer's offsets with the transaction; raises `KafkaError` also if librdkafka does not return.

        librdkafka ignores the timeout while it waits for the broker that it knows as the group's coordinator. It waits
        for ever if that broker has left the cluster, or all brokers were away for a moment (its issues 5456 and 5511).
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
        with self._calling:
            # With records on their way the broker answers "concurrent transactions", and librdkafka then sleeps.
            self.flush(timeout)
            send_offsets_to_transaction(self._producer, offsets, group_metadata, timeout)

    def hangs(self) -> bool:
        """Return whether `add_offsets` does not return: then only `renew` can end the transaction."""
        with defer_signals():  # one between the two calls would leave the lock taken for good
            if not self._calling.acquire(timeout=SLICE):
                return True
            self._calling.release()
            return False

    def commit_transaction(self, timeout: float) -> None:
        """Commit the transaction, or raise an error."""
        self._end_transaction(self._producer.commit_transaction, timeout)

    def abort_transaction(self, timeout: float) -> None:
        """Abort the transaction."""
        # Right after a commit Kafka may begin the next transaction some milliseconds later. If librdkafka aborts it
        # before, Kafka knows of none, and librdkafka takes that answer for a fatal error (its issue 4849).
        deadline = time.monotonic() + timeout
        if self.queued() and self.why_aborted() is None:
            self.flush(min(_BEGUN_WITHIN, timeout))
        self._end_transaction(self._producer.abort_transaction, max(0.0, deadline - time.monotonic()))

    def _end_transaction(self, end: Callable[[float], None], timeout: float) -> None:
        """End a transaction, in this thread's turn at reports: both ways flush, and so take reports."""
        deadline = time.monotonic() + timeout
        with self._reports.turn(timeout) as mine:
            if self._fatal:  # librdkafka would mistake this call for a second one beside the failed one
                raise refused(self._fatal) from self._fatal
            if not mine:
                raise KafkaError(f"A transaction could not be ended within {timeout:g} s: a callback takes that long.")
            while not self._ends(end, deadline - time.monotonic()):
                heed_signals()

    def _ends(self, end: Callable[[float], None], seconds: float) -> bool:
        """Return whether a transaction has ended; raises if it cannot, or not within so many seconds."""
        try:
            self._call(end, max(0.0, min(SLICE, seconds)))
            return True
        except KafkaError as error:
            if seconds <= SLICE or not is_retriable(error):
                raise
            return False
        finally:
            self._after_reports()
