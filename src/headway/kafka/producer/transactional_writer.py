"""Records written in a transaction, and the search for the one that Kafka refuses.

Kafka rejects whole batches. To find the culprit the caller writes the same records again, one record per batch: in
another transaction, with `renew(batches_of_one=True)` before it.
"""

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import confluent_kafka as ck

from headway.core.outgoing_record import OutgoingRecord
from headway.core.rights import right_for
from headway.errors import DeliveryError, KafkaError, SerializationError
from headway.kafka.binding.capi import Offsets
from headway.kafka.binding.error_causes import error_name, is_purged, is_the_records_own, refuses_all
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.time_limits import TRANSACTION_CALL_ANSWERED_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.client_transactions import ClientTransactions
from headway.kafka.producer.hand_over import hand_over

_REPORTS_WITHIN = 0.05  # seconds; then it is looked whether the records still arrive, and are still wanted
_CAUSE_WITHIN = 0.5  # seconds to wait for the cause after librdkafka has given up records because of it

FORBIDDEN = "TOPIC_AUTHORIZATION_FAILED"

Stored = Callable[[int, ck.Message], None]
"""The callback for a stored record: (its position, the message with its place and time)."""


class Rejection(NamedTuple):
    """A record that Kafka refuses for good.

    Args:
        position: Its place among the records; None if unknown, as Kafka rejects whole batches.
        error: librdkafka's name for the refusal; empty for one of the client's own.
        reason: The reason for people.
    """

    position: int | None
    error: str
    reason: str


class NotStoredError(KafkaError):
    """Records were not stored, and may be later; `positions` are their places among those to write."""

    def __init__(self, reason: str, positions: Collection[int]) -> None:
        super().__init__(reason)
        self.positions = positions


def _never() -> bool:
    return False


class TransactionalWriter:
    """A producer's transactions, one after the other, each with a rejection or none.

    Calls to brokers are made again while librdkafka says that they may be. All raise `KafkaError`.

    Args:
        client: The producer's client, with a `transactional.id`.
        why_not: Returns a sentence about what keeps records out of a topic, or None.
        silent_for: The seconds without any acknowledgement after which records count as not stored.
    """

    def __init__(self, client: ProducerClient, why_not: Callable[[str], str | None], silent_for: float) -> None:
        self.client = client
        self.transactions = ClientTransactions(client)
        self._why_not = why_not
        self._silent_for = silent_for

    @property
    def is_searching(self) -> bool:
        """Tell whether each record has a batch of its own: whole batches need another `renew`."""
        return self.client.batches_of_one

    def fence(self, is_over: Callable[[], bool] = _never) -> None:
        """Fence off an earlier producer of the same `transactional.id`, and end its open transaction."""
        retrying(self.transactions.init, TRANSACTION_CALL_ANSWERED_WITHIN, is_over=is_over)

    def renew(self, batches_of_one: bool = False) -> None:
        """Go on with a new producer, which has to `fence` off the last one.

        After a rejection the last one cannot go on: librdkafka would leave a gap in the sequence numbers, where the
        refused records were.
        """
        self.client.renew(batches_of_one)

    def begin(self) -> None:
        """Begin a transaction."""
        self.transactions.begin()

    def send_offsets(
        self, offsets: Offsets, member: bytes, within: float, is_over: Callable[[], bool] = _never
    ) -> None:
        """Make offsets a part of the transaction, with a consumer's group metadata; never hang."""
        retrying(partial(self.transactions.send_offsets, offsets, member), within, is_over=is_over)

    def add_offsets(self, offsets: Offsets, member: bytes) -> None:
        """Make offsets a part of the transaction, on a thread that may hang."""
        retrying(partial(self.transactions.add_offsets, offsets, member), TRANSACTION_CALL_ANSWERED_WITHIN)

    def write(
        self, records: Sequence[OutgoingRecord], stored: Stored, is_given_up: Callable[[], bool] = _never
    ) -> Rejection | None:
        """Write all records in the open transaction, and return the rejection, if any.

        Its position is None unless each record has a batch of its own (`is_searching`), or the client itself refuses
        the record. Raises `NotStoredError` if records are not stored for another reason, or if nobody waits for them
        any more.
        """
        attempt = _Attempt(records, stored, certain=self.client.batches_of_one or len(records) == 1)
        if rejection := self._send(attempt, is_given_up):
            return rejection
        while self.client.flush(_REPORTS_WITHIN) and not attempt.is_decided():
            self._raise_if_silent(attempt, is_given_up)
        if attempt.rejection:
            return attempt.rejection
        if attempt.failure:
            raise attempt.failure
        return self._forbidden(records) if attempt.purged_at is not None else None

    def _send(self, attempt: "_Attempt", is_given_up: Callable[[], bool]) -> Rejection | None:
        """Queue the records, up to the first bad report; return the record that the client does not take, if any."""
        client, report = self.client, attempt.report
        for position, record in enumerate(attempt.records):
            try:
                while not attempt.is_broken:
                    try:
                        hand_over(client, record, partial(report, position))
                        break
                    except BufferError:
                        client.reports.serve(_REPORTS_WITHIN)
                        self._raise_if_silent(attempt, is_given_up)
                else:
                    return None
            except (DeliveryError, SerializationError) as error:
                if not refuses_all(error):
                    return Rejection(position, error_name(error), str(error))
                attempt.note_purged()
        return None

    def _forbidden(self, records: Sequence[OutgoingRecord]) -> Rejection:
        """Return the first record whose topic may not be written, which made librdkafka give up all.

        Raises `NotStoredError` if that is not why.
        """
        cause = self.transactions.why_aborted() or KafkaError("The transaction was aborted by the client.")
        if error_name(cause) == FORBIDDEN:
            for topic, position in {
                each.topic: position for position, each in reversed(list(enumerate(records)))
            }.items():
                if reason := self._why_not(topic):
                    return Rejection(position, FORBIDDEN, reason)
        raise NotStoredError(str(cause), range(len(records))) from cause.__cause__

    def _raise_if_silent(self, attempt: "_Attempt", is_given_up: Callable[[], bool]) -> None:
        """Raise an error for the records that wait, if none was stored for long or nobody waits any more."""
        if attempt.silent_for() < self._silent_for and not is_given_up():
            return
        if waiting := attempt.waiting():
            topics = ", ".join(sorted({attempt.records[position].topic for position in waiting}))
            raise NotStoredError(f"Kafka acknowledges {len(waiting)} records for {topics} no more.", waiting)

    def commit(self, within: float = TRANSACTION_CALL_ANSWERED_WITHIN, is_over: Callable[[], bool] = _never) -> None:
        """Commit the transaction."""
        retrying(self.transactions.commit, within, is_over=is_over)

    def abort(self, within: float = TRANSACTION_CALL_ANSWERED_WITHIN, is_over: Callable[[], bool] = _never) -> None:
        """Abort the transaction."""
        retrying(self.transactions.abort, within, is_over=is_over)


class _Attempt:
    """The reports about records in one transaction."""

    def __init__(self, records: Sequence[OutgoingRecord], stored: Stored, *, certain: bool) -> None:
        self.records = records
        self.rejection: Rejection | None = None
        self.failure: NotStoredError | None = None
        self.purged_at: float | None = None
        self.is_broken = False  # nothing more is to be sent
        self._is_certain = certain
        self._waits = waits = bytearray(b"\1") * len(records)
        self._silent_since = time.monotonic()
        self._left = len(records)  # at the last look

        def report(position: int, error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is None:
                waits[position] = 0
                stored(position, message)
            else:
                self._refused(position, error)

        self.report = report
        """Takes what became of a record; a closure, as it is called for each."""

    def _refused(self, position: int, error: ck.KafkaError) -> None:
        self.is_broken = True
        topic = self.records[position].topic
        if is_the_records_own(error):
            right = right_for(error.name(), "Write", topic=topic)
            reason = right.missing() if right else error.str()
            self.rejection = self.rejection or Rejection(position if self._is_certain else None, error.name(), reason)
        elif is_purged(error):
            self.note_purged()
        elif self.failure is None:
            self.failure = NotStoredError(f"A record for {topic} was not stored: {error.str()}.", [position])
            self.failure.__cause__ = ck.KafkaException(error)

    def note_purged(self) -> None:
        """Note that librdkafka gives records up because of another one: its report may come, or not."""
        self.is_broken = True
        self.purged_at = time.monotonic() if self.purged_at is None else self.purged_at

    def is_decided(self) -> bool:
        """Return whether no further report is worth waiting for."""
        if self.rejection or self.failure:
            return True
        return self.purged_at is not None and time.monotonic() > self.purged_at + _CAUSE_WITHIN

    def waiting(self) -> list[int]:
        """Return the positions of the records that are not stored yet."""
        return [position for position, waits in enumerate(self._waits) if waits]

    def silent_for(self) -> float:
        """Return the seconds since a look that saw a new acknowledgement."""
        now, left = time.monotonic(), self._waits.count(1)
        if left < self._left:
            self._left, self._silent_since = left, now
        return now - self._silent_since
