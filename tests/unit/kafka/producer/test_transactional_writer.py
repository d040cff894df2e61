"""Records in a transaction: what a rejection names, and what becomes of records that are neither stored nor refused."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import confluent_kafka as ck
import pytest

from headway.core.outgoing_record import OutgoingRecord
from headway.errors import DeliveryError, KafkaError
from headway.kafka.producer.transactional_writer import FORBIDDEN, NotStoredError, Rejection, TransactionalWriter

RECORDS = [
    OutgoingRecord("orders", b"0", b"k"),
    OutgoingRecord("bills", b"1", b"k"),
    OutgoingRecord("bills", b"2", b""),
]
TOO_LARGE = ck.KafkaError(ck.KafkaError.MSG_SIZE_TOO_LARGE)
PURGED = ck.KafkaError(ck.KafkaError._PURGE_QUEUE)
FOR_EVER = 3600.0


class Reported(NamedTuple):
    """A message as a delivery report has it: without an offset, librdkafka only assumes that it was stored."""

    value: bytes
    at: int | None = 7

    def offset(self) -> int | None:
        return self.at

    def topic(self) -> str:
        return next(each.topic for each in RECORDS if each.value == self.value)


class Client:
    """A client whose records are reported on with these errors, by value, at the next flush; None says stored."""

    def __init__(self, fates: dict[bytes, ck.KafkaError | None], room: int = 100) -> None:
        self.batches_of_one = False
        self.reports = self
        self.fates = fates
        self.room = room
        self.refusal: Exception | None = None
        self.aborted: KafkaError | None = None
        self.waiting: list[tuple[bytes, Callable[[Any, Any], None]]] = []
        self.sent: list[bytes] = []
        self.without_offset: set[bytes] = set()

    def produce(self, record: OutgoingRecord, report: Any, checks_offset: bool) -> None:
        assert checks_offset
        value = record.value
        if self.refusal and value == b"1":
            raise self.refusal
        if len(self.waiting) == self.room:
            raise BufferError
        self.sent.append(value)
        self.waiting.append((value, report))

    def serve(self, timeout: float) -> None:
        self.flush(timeout)

    def flush(self, timeout: float) -> int:
        reported = [each for each in self.waiting if each[0] in self.fates]
        self.waiting = [each for each in self.waiting if each[0] not in self.fates]
        for value, report in reported:
            report(self.fates[value], Reported(value, None if value in self.without_offset else 7))
        return len(self.waiting)

    def why_aborted(self) -> KafkaError | None:
        return self.aborted


def writer_of(client: Client, silent_for: float = FOR_EVER) -> TransactionalWriter:
    def why_not(topic: str) -> str | None:
        return "The topic bills cannot be written: this client is not authorized." if topic == "bills" else None

    writer = TransactionalWriter(cast(Any, client), why_not, silent_for)
    writer.transactions = cast(Any, client)
    return writer


def ignore(position: int, message: Any) -> None:
    pass


def test_each_stored_record_is_told_with_its_position_however_little_room_there_is() -> None:
    client = Client(dict.fromkeys([b"0", b"1", b"2"]), room=1)
    stored: list[tuple[int, Any]] = []
    assert writer_of(client).write(RECORDS, lambda position, message: stored.append((position, message))) is None
    assert stored == [(0, Reported(b"0")), (1, Reported(b"1")), (2, Reported(b"2"))]


def test_with_noted_positions_only_those_records_are_told() -> None:
    client = Client(dict.fromkeys([b"0", b"1", b"2"]), room=1)
    stored: list[int] = []
    assert writer_of(client).write(RECORDS, lambda position, _: stored.append(position), noted=[1]) is None
    assert stored == [1]


@pytest.mark.parametrize("noted", [None, [0, 1, 2], [0]])
def test_a_record_that_is_only_assumed_to_be_stored_is_not_stored(noted: list[int] | None) -> None:
    client = Client(dict.fromkeys([b"0", b"1", b"2"]))
    client.without_offset = {b"2"}
    with pytest.raises(NotStoredError, match="A record for bills was not stored") as raised:
        writer_of(client).write(RECORDS, ignore, noted=noted)
    assert 2 in raised.value.positions


def test_a_rejection_of_a_record_that_is_not_noted_is_still_found() -> None:
    client = Client({b"0": None, b"1": TOO_LARGE, b"2": None})
    assert writer_of(client).write(RECORDS, ignore, noted=[0]) == Rejection(None, "MSG_SIZE_TOO_LARGE", TOO_LARGE.str())
    client.batches_of_one = True
    assert writer_of(client).write(RECORDS, ignore, noted=[0]) == Rejection(1, "MSG_SIZE_TOO_LARGE", TOO_LARGE.str())


def test_of_records_that_are_not_noted_the_number_without_reports_is_known() -> None:
    client = Client({b"0": None, b"1": None})
    with pytest.raises(NotStoredError, match=r"stopped acknowledging records\. 1 records for bills, orders") as raised:
        writer_of(client, silent_for=-1.0).write(RECORDS, ignore, noted=[0])
    assert list(raised.value.positions) == [0, 1, 2]


def test_which_record_of_a_batch_kafka_rejects_is_known_only_with_batches_of_one() -> None:
    client = Client({b"0": None, b"1": TOO_LARGE, b"2": None})
    reason = TOO_LARGE.str()
    assert writer_of(client).write(RECORDS, ignore) == Rejection(None, "MSG_SIZE_TOO_LARGE", reason)
    client.batches_of_one = True
    assert writer_of(client).write(RECORDS, ignore) == Rejection(1, "MSG_SIZE_TOO_LARGE", reason)
    client.batches_of_one = False
    assert writer_of(client).write(RECORDS[1:2], ignore) == Rejection(0, "MSG_SIZE_TOO_LARGE", reason)


def test_a_record_that_the_client_does_not_take_is_rejected_by_its_position() -> None:
    client = Client({b"0": None})
    client.refusal = DeliveryError("A record for bills could not be handed over.")
    assert writer_of(client).write(RECORDS, ignore) == Rejection(1, "", str(client.refusal))


def test_nothing_is_sent_after_a_rejection() -> None:
    client = Client({b"0": TOO_LARGE}, room=1)
    assert writer_of(client).write(RECORDS, ignore)
    assert client.sent == [b"0"]


def test_a_forbidden_topic_is_found_though_all_records_are_reported_as_given_up() -> None:
    client = Client(dict.fromkeys([b"0", b"1", b"2"], PURGED))
    client.aborted = _caused_by(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    rejection = writer_of(client).write(RECORDS, ignore)
    assert rejection == Rejection(1, FORBIDDEN, "The topic bills cannot be written: this client is not authorized.")


def test_records_given_up_for_another_cause_are_not_stored_for_that_cause() -> None:
    client = Client(dict.fromkeys([b"0", b"1", b"2"], PURGED))
    client.aborted = _caused_by(ck.KafkaError.INVALID_PRODUCER_EPOCH)
    with pytest.raises(NotStoredError) as raised:
        writer_of(client).write(RECORDS, ignore)
    assert list(raised.value.positions) == [0, 1, 2]
    assert raised.value.__cause__ is client.aborted.__cause__


def test_a_record_that_may_be_stored_later_is_an_error_that_names_its_topic() -> None:
    client = Client({b"0": None, b"1": ck.KafkaError(ck.KafkaError._MSG_TIMED_OUT), b"2": None})
    with pytest.raises(NotStoredError, match="A record for bills was not stored") as raised:
        writer_of(client).write(RECORDS, ignore)
    assert raised.value.positions == [1]


@pytest.mark.parametrize("room", [1, 100])
@pytest.mark.parametrize(("silent_for", "is_given_up"), [(-1.0, False), (FOR_EVER, True)])
def test_records_without_reports_are_waited_for_until_it_takes_too_long_or_nobody_wants_them(
    room: int, silent_for: float, is_given_up: bool
) -> None:
    client = Client({b"0": None}, room)
    with pytest.raises(
        NotStoredError, match=r"stopped acknowledging records\. 2 records for bills are not stored"
    ) as raised:
        writer_of(client, silent_for).write(RECORDS, ignore, lambda: is_given_up and b"1" in client.sent)
    assert raised.value.positions == [1, 2]


def _caused_by(code: int) -> KafkaError:
    error = KafkaError("Kafka refused.")
    error.__cause__ = ck.KafkaException(ck.KafkaError(code))
    return error
