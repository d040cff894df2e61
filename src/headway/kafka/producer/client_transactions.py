"""Makes the transactional calls of a producer's client (KIP-98).

librdkafka's `send_offsets_to_transaction` might never return. So `send_offsets` makes this call on a separate thread,
and stops waiting for it after a while.
"""

import time
from collections.abc import Callable
from functools import partial

from headway.errors import KafkaError
from headway.kafka.binding.capi import CommittedOffsets, await_connection, send_offsets_to_transaction
from headway.kafka.binding.error_causes import is_out_of_place, is_retriable, refused
from headway.kafka.missing_permissions import raise_if_refused
from headway.kafka.producer.client import SLICE, ProducerClient
from headway.runtime.background import in_background
from headway.runtime.deferred_signals import defer_signals, heed_signals

HANGS_AFTER = 10.0
"""A call with a time limit of `SLICE` counts as hanging after this many seconds."""

_BEGUN_WITHIN = 1.0
"""How long an abort waits until the transaction's records are acknowledged, in seconds."""


class ClientTransactions:
    """The transactions of a client with a `transactional.id`.

    Only one thread at a time may make these calls, with one exception: `add_offsets`, which may hang, can be called on
    a separate thread. That thread holds the client's lock `calling`, and no other lock. Commits and aborts hold
    `ReportPump.serving`.
    """

    def __init__(self, client: ProducerClient) -> None:
        self._client = client

    def init(self, timeout: float) -> None:
        """Fence off earlier producers with the same `transactional.id`.

        Raises `AuthorizationError` if this client is not permitted to use that id.
        """
        client = self._client
        try:
            client.call_in_slices(self._init, timeout)
        except KafkaError as error:
            transactional_id = str(client.config.get("transactional.id"))
            raise_if_refused(error, "Write", client.config, transactional_id=transactional_id)
            raise

    def _init(self, timeout: float) -> None:
        # Without a connection, librdkafka's first search for the coordinator fails, and the second search begins only
        # 0.5 s later.
        await_connection(self._client.producer, timeout)
        self._client.producer.init_transactions(timeout)

    def begin(self) -> None:
        """Start a transaction."""
        self._client.call(self._client.producer.begin_transaction)

    def why_aborted(self) -> KafkaError | None:
        """Return why the open transaction can only be aborted, or None if it can still be committed.

        Delivery reports do not name the reason: for example, if the client is not permitted to write to a topic, all of
        them are "Purged in queue". But every later transactional call raises the original error. This method calls
        `begin_transaction` again, because a second call does no harm.
        """
        try:
            self.begin()
        except KafkaError as error:
            return None if is_out_of_place(error) else error
        return None

    def send_offsets(self, offsets: CommittedOffsets, group_metadata: bytes, timeout: float) -> None:
        """Commit a consumer's offsets with the transaction.

        Raises `KafkaError` after a time limit if the call of librdkafka does not return.

        librdkafka ignores the timeout while it waits for the broker that it considers to be the group's coordinator. If
        that broker has left the cluster, or if all brokers were unreachable for a moment, librdkafka waits forever
        (issues 5456 and 5511 of librdkafka).
        """
        sent = in_background(partial(self.add_offsets, offsets, group_metadata, timeout))
        longest = max(timeout, HANGS_AFTER)
        try:
            sent.result(longest)
        except TimeoutError as late:
            raise KafkaError(
                f"The offsets could not be added to the transaction within {longest:g} s. If this error persists, "
                "create a new producer with the same transactional.id, which aborts the open transaction of this "
                "producer."
            ) from late

    def add_offsets(self, offsets: CommittedOffsets, group_metadata: bytes, timeout: float) -> None:
        """Commit a consumer's offsets with the transaction. This may hang, so call it on a separate thread."""
        with self._client.calling:
            # While records are in flight, the broker answers CONCURRENT_TRANSACTIONS, and librdkafka then sleeps.
            self._client.flush(timeout)
            send_offsets_to_transaction(self._client.producer, offsets, group_metadata, timeout)

    def hangs(self) -> bool:
        """Return whether a call of `add_offsets` hangs.

        If the call hangs, only the client's `renew` can end the transaction.
        """
        calling = self._client.calling
        with defer_signals():  # an interrupt between `acquire` and `release` would leave the lock held forever
            if not calling.acquire(timeout=SLICE):
                return True
            calling.release()
            return False

    def commit(self, timeout: float) -> None:
        """Commit the transaction, or raise an error."""
        self._end(self._client.producer.commit_transaction, timeout)

    def abort(self, timeout: float) -> None:
        """Abort the transaction."""
        # Right after a commit, Kafka may need some milliseconds before the next transaction can begin. If librdkafka
        # aborts the next transaction earlier, Kafka answers that there is no transaction, and librdkafka treats this
        # answer as a fatal error (librdkafka's issue 4849).
        deadline = time.monotonic() + timeout
        if self._client.queued() and self.why_aborted() is None:
            self._client.flush(min(_BEGUN_WITHIN, timeout))
        self._end(self._client.producer.abort_transaction, max(0.0, deadline - time.monotonic()))

    def _end(self, end: Callable[[float], None], timeout: float) -> None:
        """Commit or abort the transaction.

        librdkafka's commit and abort both flush, which takes delivery reports. So this method must hold `serving`.
        """
        deadline = time.monotonic() + timeout
        with self._client.reports.try_hold(timeout) as is_held:
            # After a fatal error, librdkafka would treat this call as a repetition of the call that failed.
            if fatal := self._client.fatal:
                raise refused(fatal) from fatal
            if not is_held:
                raise KafkaError(
                    f"The transaction could not be ended within {timeout:g} s, because a callback was running all "
                    "that time. Make sure that callbacks return quickly."
                )
            while not self._ends(end, deadline - time.monotonic()):
                heed_signals()

    def _ends(self, end: Callable[[float], None], seconds: float) -> bool:
        """Return whether the transaction has ended.

        Raises an error if the transaction cannot be ended, or if ending it takes more than `seconds`.
        """
        try:
            self._client.call(end, max(0.0, min(SLICE, seconds)))
            return True
        except KafkaError as error:
            if seconds <= SLICE or not is_retriable(error):
                raise
            return False
        finally:
            self._client.owner.reports_taken()
