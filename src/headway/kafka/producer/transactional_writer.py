"""Writes records in transactions, and finds the record that Kafka refuses.

Kafka refuses whole batches. To find the record that caused the refusal, the caller writes the same records in another
transaction, with one record per batch, after calling `renew(batches_of_one=True)`.
"""

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import confluent_kafka as ck

from headway.core.outgoing_record import OutgoingRecord
from headway.core.permissions import permission_for
from headway.errors import DeliveryError, KafkaError, SerializationError
from headway.kafka.binding.capi import CommittedOffsets
from headway.kafka.binding.error_causes import error_name, is_purged, is_the_records_own, refuses_all
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.time_limits import TRANSACTION_CALL_ANSWERED_WITHIN
from headway.kafka.producer.client import IN_DOUBT, ProducerClient
from headway.kafka.producer.client_transactions import ClientTransactions
from headway.runtime.gc_pause import GcPause

# Seconds between checks whether records are still being acknowledged and whether the write was given up.
_REPORTS_WITHIN = 0.05
# When librdkafka purges records because another record was refused, the delivery report of the refused record is
# awaited for this many seconds.
_CAUSE_WITHIN = 0.5

FORBIDDEN = "TOPIC_AUTHORIZATION_FAILED"

OnStored = Callable[[int, ck.Message], None]
"""A callback for a stored record: (its position, the message with its partition, offset and timestamp)."""


class Rejection(NamedTuple):
    """A record that Kafka refuses permanently.

    Args:
        position: The record's position among the records to write. None if it is not known, because Kafka refuses whole
            batches.
        error: librdkafka's name for the error. Empty if Headway itself refuses the record.
        reason: The reason, as text for people.
    """

    position: int | None
    error: str
    reason: str


class NotStoredError(KafkaError):
    """Some records were not stored, but may be stored when they are written again.

    `positions` has the positions of these records, or all positions if it is not known which records were not stored.
    """

    def __init__(self, reason: str, positions: Collection[int]) -> None:
        super().__init__(reason)
        self.positions = positions


def _never() -> bool:
    return False


class TransactionalWriter:
    """Writes the consecutive transactions of one producer, in each of which Kafka may reject a record.

    Calls to brokers are repeated as long as their errors are transient. All methods raise `KafkaError`.

    Args:
        client: The producer's client, with a `transactional.id`.
        why_not: Returns a sentence that says why records cannot be written to a topic, or None if they can.
        silent_for: The number of seconds without any acknowledgement after which records count as not stored.
    """

    def __init__(self, client: ProducerClient, why_not: Callable[[str], str | None], silent_for: float) -> None:
        self.client = client
        self.transactions = ClientTransactions(client)
        self._why_not = why_not
        self._silent_for = silent_for

    @property
    def is_searching(self) -> bool:
        """True if each record is sent in a batch of its own. `renew` can switch back to normal batches."""
        return self.client.batches_of_one

    def fence(self, is_over: Callable[[], bool] = _never) -> None:
        """Fence off an earlier producer with the same `transactional.id`, and abort its open transaction."""
        retrying(self.transactions.init, TRANSACTION_CALL_ANSWERED_WITHIN, is_over=is_over)

    def renew(self, batches_of_one: bool = False) -> None:
        """Replace the producer with a new one. Then call `fence` to fence off the old producer.

        After a rejection, the old producer is unusable, because librdkafka would leave a gap in the sequence numbers
        where the refused records were.
        """
        self.client.renew(batches_of_one)

    def begin(self) -> None:
        """Begin a transaction."""
        self.transactions.begin()

    def send_offsets(
        self, offsets: CommittedOffsets, member: bytes, within: float, is_over: Callable[[], bool] = _never
    ) -> None:
        """Add offsets to the transaction, with the metadata of the consumer's group. This call never hangs."""
        retrying(partial(self.transactions.send_offsets, offsets, member), within, is_over=is_over)

    def add_offsets(self, offsets: CommittedOffsets, member: bytes) -> None:
        """Add offsets to the transaction. This call may hang, so make it on a separate thread."""
        retrying(partial(self.transactions.add_offsets, offsets, member), TRANSACTION_CALL_ANSWERED_WITHIN)

    def write(
        self,
        records: Sequence[OutgoingRecord],
        stored: OnStored,
        is_given_up: Callable[[], bool] = _never,
        noted: Collection[int] | None = None,
    ) -> Rejection | None:
        """Write all records in the open transaction. Returns the rejection if Kafka rejects a record.

        `stored` is called for each record. With `noted`, it is called only for the records at these positions, and all
        other records share a callback, because creating one for each record takes as long as queueing the record.

        The position of the rejection is None unless each record has its own batch (`is_searching`), or the client
        itself refuses the record. Raises `NotStoredError` if records are not stored for another reason, or when
        `is_given_up` returns True.
        """
        is_certain = self.client.batches_of_one or len(records) == 1
        reports = _WriteReports(records, stored, None if is_certain else noted, certain=is_certain)
        with GcPause():
            rejection = self._send(reports, is_given_up)
            left = 0 if rejection else self.client.flush(_REPORTS_WITHIN)
        if rejection:
            return rejection
        while left and not reports.is_decided():
            self._raise_if_silent(reports, is_given_up)
            left = self.client.flush(_REPORTS_WITHIN)
        if reports.rejection:
            return reports.rejection
        if reports.failure:
            raise reports.failure
        return self._forbidden(records) if reports.purged_at is not None else None

    def _send(self, reports: "_WriteReports", is_given_up: Callable[[], bool]) -> Rejection | None:
        """Queue the records until an error is reported. Returns a rejection if the client itself refuses a record."""
        client, noted, report, count = self.client, reports.noted, reports.report, reports.count
        for position, record in enumerate(reports.records):
            reported = partial(report, position) if noted is None or position in noted else count
            try:
                while not reports.is_broken:
                    try:
                        client.produce(record, reported, checks_offset=True)
                        break
                    except BufferError:
                        client.reports.serve(_REPORTS_WITHIN)
                        self._raise_if_silent(reports, is_given_up)
                else:
                    return None
            except (DeliveryError, SerializationError) as error:
                if not refuses_all(error):
                    return Rejection(position, error_name(error), str(error))
                reports.note_purged()
        return None

    def _forbidden(self, records: Sequence[OutgoingRecord]) -> Rejection:
        """Return the rejection of the first record whose topic this client is not permitted to write to.

        Raises `NotStoredError` if the records were purged for another reason.
        """
        cause = self.transactions.why_aborted() or KafkaError("The transaction was aborted by the client.")
        if error_name(cause) == FORBIDDEN:
            for topic, position in {
                each.topic: position for position, each in reversed(list(enumerate(records)))
            }.items():
                if reason := self._why_not(topic):
                    return Rejection(position, FORBIDDEN, reason)
        raise NotStoredError(str(cause), range(len(records))) from cause.__cause__

    def _raise_if_silent(self, reports: "_WriteReports", is_given_up: Callable[[], bool]) -> None:
        """Raise `NotStoredError` if no record has been acknowledged for too long, or if the write was given up."""
        if reports.silent_for() < self._silent_for and not is_given_up():
            return
        if left := reports.left():
            waiting = reports.waiting()
            topics = ", ".join(sorted({reports.records[position].topic for position in waiting}))
            raise NotStoredError(
                f"Kafka has stopped acknowledging records. {left} records for {topics} are not stored.", waiting
            )

    def commit(self, within: float = TRANSACTION_CALL_ANSWERED_WITHIN, is_over: Callable[[], bool] = _never) -> None:
        """Commit the transaction."""
        retrying(self.transactions.commit, within, is_over=is_over)

    def abort(self, within: float = TRANSACTION_CALL_ANSWERED_WITHIN, is_over: Callable[[], bool] = _never) -> None:
        """Abort the transaction."""
        retrying(self.transactions.abort, within, is_over=is_over)


class _WriteReports:
    """The reports of the records in one transaction.

    Of the records whose positions are not in `noted`, only the number of missing reports is known.
    """

    def __init__(
        self, records: Sequence[OutgoingRecord], stored: OnStored, noted: Collection[int] | None, *, certain: bool
    ) -> None:
        self.records = records
        self.noted = noted
        self.rejection: Rejection | None = None
        self.failure: NotStoredError | None = None
        self.purged_at: float | None = None
        self.is_broken = False  # True if no further record should be sent
        self._stored = stored
        self._is_certain = certain
        self._waits = bytearray(b"\1" if noted is None else b"\0") * len(records)
        for position in noted or ():
            self._waits[position] = 1
        self._counted = self._waits.count(0)  # how many of the other records have no report yet
        self._silent_since = time.monotonic()
        self._left = len(records)  # the number of unacknowledged records at the last check

    def report(self, position: int, error: ck.KafkaError | None, message: ck.Message) -> None:
        """Note the delivery report of the record at this position."""
        if error is None and message.offset() is not None:
            self._waits[position] = 0
            self._stored(position, message)
        else:
            self._refused(position, self.records[position].topic, IN_DOUBT if error is None else error)

    def count(self, error: ck.KafkaError | None, message: ck.Message) -> None:
        """Note the delivery report of a record whose position does not matter."""
        if error is None and message.offset() is not None:
            self._counted -= 1
        else:
            self._refused(None, message.topic() or "", IN_DOUBT if error is None else error)

    def _refused(self, position: int | None, topic: str, error: ck.KafkaError) -> None:
        self.is_broken = True
        if is_the_records_own(error):
            permission = permission_for(error.name(), "Write", topic=topic)
            reason = permission.missing() if permission else error.str()
            self.rejection = self.rejection or Rejection(position if self._is_certain else None, error.name(), reason)
        elif is_purged(error):
            self.note_purged()
        elif self.failure is None:
            positions = range(len(self.records)) if position is None else [position]
            self.failure = NotStoredError(f"A record for {topic} was not stored: {error.str()}.", positions)
            self.failure.__cause__ = ck.KafkaException(error)

    def note_purged(self) -> None:
        """Note that librdkafka purged records because of another record, whose report may follow."""
        self.is_broken = True
        self.purged_at = time.monotonic() if self.purged_at is None else self.purged_at

    def is_decided(self) -> bool:
        """Return whether the outcome is known, so that further reports can be ignored."""
        if self.rejection or self.failure:
            return True
        return self.purged_at is not None and time.monotonic() > self.purged_at + _CAUSE_WITHIN

    def waiting(self) -> Collection[int]:
        """Return the positions of the records that are not stored yet, or all positions if these are not known."""
        if self._counted:
            return range(len(self.records))
        return [position for position, waits in enumerate(self._waits) if waits]

    def left(self) -> int:
        """Return the number of records that are not stored yet."""
        return self._waits.count(1) + self._counted

    def silent_for(self) -> float:
        """Return the number of seconds since a call of this method last found a new acknowledgement."""
        now, left = time.monotonic(), self.left()
        if left < self._left:
            self._left, self._silent_since = left, now
        return now - self._silent_since
