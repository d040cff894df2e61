"""librdkafka's producer in our hands: what becomes of a call that never returns."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka as ck
import pytest

from headway.core.outgoing_record import OutgoingRecord
from headway.errors import DeliveryError, KafkaError, SerializationError
from headway.kafka.binding.factory import make_client
from headway.kafka.producer import client as client_module
from headway.kafka.producer import client_transactions, report_pump
from headway.kafka.producer.client import SERVE_AFTER, ProducerClient
from headway.kafka.producer.client_transactions import ClientTransactions


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until then librdkafka does not return from taking a transaction's offsets."""
    event = threading.Event()

    def hang(*_: Any) -> None:
        event.wait(30)

    monkeypatch.setattr(client_transactions, "send_offsets_to_transaction", hang)
    monkeypatch.setattr(client_transactions, "HANGS_AFTER", 0.05)
    monkeypatch.setattr(client_transactions, "SLICE", 0.05)
    yield event
    event.set()


def client(serving: Any = None) -> ProducerClient:
    config = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t", "log_level": 0}
    return ProducerClient(config, serving=serving)


def test_offsets_that_librdkafka_does_not_take_are_refused_in_time_and_closing_does_not_wait(
    go_on: threading.Event,
) -> None:
    hanging = client()
    transactions = ClientTransactions(hanging)
    assert not transactions.hangs()
    began = time.monotonic()
    with pytest.raises(KafkaError, match=r"could not be added to the transaction within 0\.1 s"):
        transactions.send_offsets({("t", 0): (1, b"")}, b"", 0.1)
    assert transactions.hangs()
    hanging.close(0)
    assert time.monotonic() - began < 10


def test_a_renewed_producer_goes_on_and_the_one_that_hung_is_closed_when_it_returns(go_on: threading.Event) -> None:
    hanging = client()
    transactions = ClientTransactions(hanging)
    before = hanging.producer
    with pytest.raises(KafkaError):
        transactions.send_offsets({}, b"", 0)
    hanging.renew()
    assert not transactions.hangs()
    go_on.set()
    until = time.monotonic() + 10
    while not _is_closed(before):
        assert time.monotonic() < until
        threading.Event().wait(0.01)
    assert hanging.producer is not before
    hanging.close(0)


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ({"headers": [("file", "x\udc80")]}, "has a header .file. whose value cannot be encoded in UTF-8"),
        ({"timestamp": 2**70}, "could not be passed to librdkafka: OverflowError"),
        ({"partition": 2**40}, "could not be passed to librdkafka: OverflowError"),
        ({"value": 5}, "has a field that is not bytes or a string"),
    ],
)
def test_whatever_librdkafka_raises_for_a_field_is_the_records_error(field: dict[str, Any], sentence: str) -> None:
    record: dict[str, Any] = {"value": b"v", "key": b"k", "partition": -1, "timestamp": 0, "headers": []} | field
    sending = client()
    with pytest.raises((DeliveryError, SerializationError), match=f"A record for orders {sentence}"):
        sending.produce(OutgoingRecord("orders", **record), lambda *_: None)
    sending.close(0)


def test_a_record_for_a_closed_producer_is_refused_also_when_reports_are_due() -> None:
    closed = client()
    closed.close(0)
    for _ in range(SERVE_AFTER):
        with pytest.raises(DeliveryError, match=r"A record for orders could not be passed to librdkafka: .*closed"):
            closed.produce(OutgoingRecord("orders", b"v", b"k"), lambda *_: None)


def _is_closed(producer: ck.Producer) -> bool:
    try:
        producer.poll(0)
    except RuntimeError:
        return True
    return False


class Turn:
    """The lock of who takes reports, which says how it is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = threading.Event()
        self.waited: list[bool] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.waited.append(blocking)
        self.asked.set()
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ProducerClient, Turn]]:
    """A client whose stream would take reports at each call."""
    monkeypatch.setattr(report_pump, "SERVE_EVERY", 0)
    turn = Turn()
    sending = client(turn)
    yield sending, turn
    sending.close(0)


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that take reports, of which there are none."""
    names = list[str]()

    class Producer(ck.Producer):
        def poll(self, timeout: float = -1) -> int:
            names.append(threading.current_thread().name)
            return 0

    monkeypatch.setattr(client_module, "make_client", lambda kind, *args: make_client(Producer, *args))
    return names


def test_a_stream_waits_for_who_takes_reports_and_then_takes_them_itself(
    polled: list[str], streaming: tuple[ProducerClient, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, turn = streaming
    monkeypatch.setattr(report_pump, "SHORT_TURN", 30)
    with ThreadPoolExecutor(1, "stream") as pool:
        with turn:
            stream = pool.submit(sending.reports.serve_in_stream)
            assert turn.asked.wait(10)
        stream.result(10)
    assert "stream_0" in polled


def test_a_stream_does_not_wait_again_for_one_that_takes_its_time(
    polled: list[str], streaming: tuple[ProducerClient, Turn]
) -> None:
    sending, turn = streaming
    with turn:
        sending.reports.serve_in_stream()
        sending.reports.serve_in_stream()
    assert turn.waited == [True, False]
    while threading.current_thread().name not in polled:
        sending.reports.serve_in_stream()
    turn.waited.clear()
    sending.reports.serve_in_stream()
    assert turn.waited == [True]


def test_a_stream_does_not_wait_for_one_that_waits_itself(
    streaming: tuple[ProducerClient, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, turn = streaming
    monkeypatch.setattr(report_pump, "SHORT_TURN", 30)
    has_turn, goes_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sending.serve_until, lambda: has_turn.set() or goes_on.is_set(), 10)  # type: ignore[func-returns-value]
        assert has_turn.wait(10)
        turn.waited.clear()
        sending.reports.serve_in_stream()
        assert turn.waited == [False]
        goes_on.set()
        waiting.result(10)
    sending.reports.serve_in_stream()
    assert turn.waited == [False, True]
