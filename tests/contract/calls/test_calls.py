"""Calls on a real Kafka: what a handler returns reaches whoever asked for it, and nobody else pays for it."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from headway import (
    AsyncProducer,
    Batches,
    ConsumerRecord,
    Context,
    FatalError,
    ParallelConsumer,
    Producer,
    ProducerRecord,
    Retries,
)
from headway.calls import AsyncCalls, Call, Calls
from headway.core.calls.call_id import CallId
from headway.core.retry import fixed_backoff
from headway.errors import (
    CallFailedError,
    ClosedError,
    ConfigError,
    DeliveryError,
    DeserializationError,
    KafkaError,
    UnreadableError,
)
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, Member, consumer, plain_topic, read, wait_for

pytestmark = pytest.mark.kafka

MODES = ["async", "transactional"]
Handler = Callable[[ConsumerRecord, Context], Any]


@dataclass
class Thumbnail:
    width: int
    data: bytes


def resize(record: ConsumerRecord, context: Context) -> Any:
    what = (record.raw_value or b"").decode()
    if what == "bad":
        raise FatalError("not an image")
    if what == "late" and context.attempt < 3:
        raise ValueError("again")
    if what == "odd":
        return object()
    if what == "huge":
        return "x" * 1_100_000
    return Thumbnail(len(what), what.encode())


async def resize_async(record: ConsumerRecord, context: Context) -> Any:
    await asyncio.sleep(0)
    return resize(record, context)


@dataclass
class Service:
    """A member that answers calls, with what a client needs to call it."""

    cluster: Cluster
    topic: str
    results: str
    dead: str

    @property
    def config(self) -> dict[str, Any]:
        return self.cluster.config({})


@pytest.fixture
def service(kafka_cluster: Cluster) -> Service:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    return Service(kafka_cluster, topic, f"{topic}-results", dead)


@contextmanager
def answering(service: Service, handler: Handler = resize, **options: Any) -> Iterator[ParallelConsumer]:
    """A running member that stores results."""
    own = {"result_topic": service.results, "dead_letter_topic": service.dead, "retries": Retries(fixed_backoff(0.01))}
    member = Member(consumer(service.cluster, service.topic, own | options, **OFTEN), handler)
    try:
        yield member.consumer
    finally:
        member.stop()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("handler", [resize, resize_async])
def test_a_call_returns_what_the_handler_returned_or_why_it_failed(
    service: Service, handler: Handler, mode: str
) -> None:
    with (
        answering(service, handler, commit_mode=mode),
        Producer(service.config) as producer,
        Calls(service.config, service.results) as calls,
    ):
        made = {
            each: calls.call(producer, service.topic, each, each, returns=Thumbnail)
            for each in ("cat", "bad", "late", "odd", "huge")
        }
        assert made["cat"].result(30) == Thumbnail(3, b"cat")
        assert made["late"].result(30) == Thumbnail(4, b"late")
        for each, type_, reason in (
            ("bad", "FatalError", "not an image"),
            ("odd", "FatalError", "returned object, which cannot be stored"),
            ("huge", "FatalError", "can have at most 1,000,000"),
        ):
            with pytest.raises(CallFailedError, match=reason) as failed:
                made[each].result(30)
            assert failed.value.exception == type_
        late = calls.get(made["late"].id)
        assert late is not None
        assert late.attempts == 3
        assert late.value == {"width": 4, "data": "bGF0ZQ=="}


@pytest.mark.parametrize("mode", MODES)
def test_another_process_reads_the_result_later_by_the_id_alone(service: Service, mode: str) -> None:
    with answering(service, commit_mode=mode), Producer(service.config) as producer:
        with Calls(service.config, service.results) as calls:
            made = [calls.call(producer, service.topic, f"image {number}") for number in range(20)]
            values = [call.result(30) for call in made]
        with Calls(service.config, service.results) as later:
            assert [getattr(later.get(call.id), "value", None) for call in made] == values
            assert [later.attach(call.id).result(5) for call in made] == values
            unknown = str(CallId.parse(made[0].id)._replace(random="0" * 20))
            assert later.get(unknown) is None
            started = time.process_time()
            assert [later.get(unknown) for _ in range(1000)] == [None] * 1000
            assert time.process_time() - started < 1


def test_a_pending_call_can_be_attached_to_before_it_is_answered(service: Service) -> None:
    go = threading.Event()

    def wait(record: ConsumerRecord, context: Context) -> str:
        assert go.wait(30)
        return "done"

    with (
        answering(service, wait),
        Producer(service.config) as producer,
        Calls(service.config, service.results) as calls,
        Calls(service.config, service.results) as others,
    ):
        call = calls.call(producer, service.topic, "cat")
        attached = others.attach(call.id)
        assert others.get(call.id) is None
        go.set()
        assert (call.result(30), attached.result(30)) == ("done", "done")
        wait_for(lambda: others.get(call.id))


async def test_an_event_loop_awaits_calls(service: Service) -> None:
    with answering(service, resize_async):
        async with (
            AsyncProducer(service.config) as producer,
            AsyncCalls(service.config, service.results) as calls,
            asyncio.timeout(60),
        ):
            made = [calls.call(producer, service.topic, "x" * size, returns=Thumbnail) for size in range(1, 200)]
            assert [each.width for each in await asyncio.gather(*made)] == list(range(1, 200))
            with pytest.raises(CallFailedError, match="not an image"):
                await calls.call(producer, service.topic, "bad")
            result = await calls.get(made[0].id)
            assert result is not None
            assert result.error is None
            assert await (await calls.attach(made[0].id)) == {"width": 1, "data": "eA=="}


async def test_a_cancelled_call_is_forgotten_and_others_are_answered(service: Service) -> None:
    async with AsyncProducer(service.config) as producer, AsyncCalls(service.config, service.results) as calls:
        waiting = asyncio.ensure_future(_awaited(calls.call(producer, service.topic, "cat")))
        other = calls.call(producer, service.topic, "dog", returns=Thumbnail)
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with answering(service, resize_async):
            assert await other == Thumbnail(3, b"dog")


async def test_tasks_that_await_one_call_do_not_cancel_it_for_each_other(service: Service) -> None:
    async with AsyncProducer(service.config) as producer, AsyncCalls(service.config, service.results) as calls:
        call = calls.call(producer, service.topic, "cat", returns=Thumbnail)
        same = await calls.attach(call.id, returns=Thumbnail)
        others = asyncio.ensure_future(_awaited(same))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(call), 0.1)
        with answering(service, resize_async):
            assert await others == await call == Thumbnail(3, b"cat")


def test_a_cancelled_call_can_be_attached_to_again(service: Service) -> None:
    with Producer(service.config) as producer, Calls(service.config, service.results) as calls:
        call = calls.call(producer, service.topic, "cat", returns=Thumbnail)
        assert call.cancel()
        again = calls.attach(call.id, returns=Thumbnail)
        with answering(service):
            assert again.result(30) == Thumbnail(3, b"cat")


async def _awaited(call: Call) -> Any:
    return await call


@pytest.mark.parametrize("mode", MODES)
def test_an_expired_call_fails_without_being_handled(service: Service, mode: str) -> None:
    with (
        answering(service, commit_mode=mode),
        Producer(service.config) as producer,
        Calls(service.config, service.results) as calls,
    ):
        expired = calls.call(producer, service.topic, "cat", expires=-1.0)
        with pytest.raises(CallFailedError, match="expired") as failed:
            expired.result(30)
        assert failed.value.exception == "ExpiredError"


def test_with_outputs_a_result_has_no_value_and_is_stored_in_the_same_transaction(service: Service) -> None:
    out = plain_topic(service.cluster)

    def copy(record: ConsumerRecord, context: Context) -> ProducerRecord:
        return ProducerRecord(out, record.raw_value)

    options: dict[str, Any] = {"result_topic": service.results, "commit_mode": "transactional"}
    with (
        consumer(service.cluster, service.topic, options, **OFTEN) as parallel,
        Producer(service.config) as producer,
        Calls(service.config, service.results) as calls,
    ):
        running = threading.Thread(target=parallel.run_and_produce, args=(copy,))
        running.start()
        try:
            assert calls.call(producer, service.topic, "cat").result(30) is None
        finally:
            parallel.stop()
            running.join()
    assert [each.value() for each in read(service.cluster, out, 1)] == [b"cat"]


def test_records_that_are_no_calls_and_headers_that_are_forged_store_nothing(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with answering(service), Producer(service.config) as producer, Calls(service.config, service.results) as calls:
        good = calls.expect()
        name, value = calls.header(good)
        assert value is not None
        elsewhere = str(value, "utf-8") if isinstance(value, bytes) else value
        forged: list[str | bytes] = [
            "",
            "nonsense",
            f"other/{good.id}",
            f"{service.results}/99{good.id}",
            "\udcff".encode("utf-8", "replace"),
        ]
        for each in forged:
            producer.send(service.topic, "plain", headers=[(name, each)]).result(30)
        producer.send(service.topic, "plain").result(30)
        last = calls.call(producer, service.topic, "cat", returns=Thumbnail)
        assert last.result(30) == Thumbnail(3, b"cat")
        assert calls.get(good.id) is None
        assert elsewhere.endswith(good.id)
    stored = read(service.cluster, service.results, 1)
    assert [each.key() for each in stored] == [last.id.encode()]
    assert "No result is stored for" in caplog.text


def test_a_call_fails_if_its_record_is_not_delivered_or_the_object_is_closed(service: Service) -> None:
    with (
        Producer({**service.config, "message.timeout.ms": 1000, "topic.metadata.propagation.max.ms": 500}) as producer,
        Calls(service.config, service.results) as calls,
    ):
        lost = calls.call(producer, f"{service.topic}-missing", "cat")
        with pytest.raises(DeliveryError):
            lost.result(30)
        pending = calls.call(producer, service.topic, "cat")
    with pytest.raises(ClosedError, match="closed before the result arrived"):
        pending.result(5)
    with pytest.raises(ClosedError, match="Create a new Calls"):
        calls.get(pending.id)
    with pytest.raises(ClosedError, match="Create a new Calls"):
        calls.expect()


def test_a_callback_of_a_call_can_look_up_make_and_close_calls(service: Service) -> None:
    closed = threading.Event()

    def close(call: Any) -> None:
        assert calls.get(call.id) is not None
        calls.call(producer, service.topic, "dog")
        calls.close()
        closed.set()

    with answering(service), Producer(service.config) as producer:
        calls = Calls(service.config, service.results)
        made = calls.call(producer, service.topic, "cat")
        made.add_done_callback(close)
        assert closed.wait(30)


def test_a_call_that_nobody_keeps_is_not_waited_for(service: Service) -> None:
    with Producer(service.config) as producer, Calls(service.config, service.results) as calls:
        made = [weakref.ref(calls.call(producer, service.topic, "cat")) for _ in range(100)]
        producer.flush()
        gc.collect()
        assert [each() for each in made] == [None] * 100


def test_a_result_of_another_type_or_a_damaged_one_raises_a_sentence(service: Service) -> None:
    with Calls(service.config, service.results) as calls, Producer(service.config) as producer:
        call, damaged = calls.expect(Thumbnail), calls.expect()
        partition = CallId.parse(call.id).partition
        producer.send(service.results, b'{"ended_at":1,"attempts":1,"value":7}', call.id, partition=partition)
        producer.send(service.results, b"\xff{", damaged.id, partition=partition)
        with pytest.raises(DeserializationError, match="cannot be decoded as"):
            call.result(30)
        with pytest.raises(UnreadableError, match="The result of the call"):
            damaged.result(30)
        with pytest.raises(ConfigError, match="is not the id of a call"):
            calls.get("../7")
    with pytest.raises(ConfigError, match="valid name of a topic"):
        Calls(service.config, "a/b")


def test_batches_and_streams_cannot_answer_calls(service: Service) -> None:
    options = {"result_topic": service.results}
    with (
        consumer(service.cluster, service.topic, options) as parallel,
        pytest.raises(ConfigError, match="only handlers of single records"),
    ):
        parallel.run(lambda records: None, batches=Batches(10))
    with pytest.raises(ConfigError, match="result_topic is 'a/b'"):
        consumer(service.cluster, service.topic, {"result_topic": "a/b"})


def test_a_look_up_in_a_partition_that_does_not_exist_says_so(service: Service) -> None:
    with Calls(service.config, service.results) as calls:
        unknown = CallId.parse(calls.expect().id)._replace(partition=77)
        with pytest.raises(KafkaError, match="has no partition 77"):
            calls.get(str(unknown))


PROGRAM = """
import sys
from headway import ParallelConsumer, Retries
from headway.core.retry import fixed_backoff

servers, topic, results, dead = sys.argv[1:]

def handle(record):
    if record.value.endswith(b"7"):
        raise ValueError(record.value.decode())
    return record.value.decode()

config = {"bootstrap.servers": servers, "group.id": topic, "group.instance.id": topic, "auto.offset.reset": "earliest",
          "session.timeout.ms": 6000, "heartbeat.interval.ms": 100, "auto.commit.interval.ms": 20}
with ParallelConsumer(config, max_concurrency=8, rate_limit=500, commit_mode="transactional", result_topic=results,
                      dead_letter_topic=dead, retries=Retries(fixed_backoff(0), max_attempts=2),
                      producer_config={"transactional.id": topic}) as consumer:
    consumer.subscribe(topic)
    consumer.run(handle)
"""


def _are_done(made: list[Call], enough: int) -> bool:
    return sum(each.done() for each in made) >= enough


@pytest.mark.slow
def test_each_call_has_exactly_one_result_though_the_worker_is_killed_again_and_again(service: Service) -> None:
    cluster, count = service.cluster, 1500
    command = [sys.executable, "-c", PROGRAM, cluster.bootstrap_servers, service.topic, service.results, service.dead]
    with Producer(service.config) as producer, Calls(service.config, service.results) as calls:
        made = [calls.call(producer, service.topic, str(number)) for number in range(count)]
        for killed_after in (100, 400, 700, 1000, count):
            with subprocess.Popen(command) as worker:
                wait_for(partial(_are_done, made, killed_after), 120)
                worker.kill()
    for number, call in enumerate(made):
        if number % 10 == 7:
            assert isinstance(call.exception(), CallFailedError)
        else:
            assert call.result(0) == str(number)
    stored = Counter(each.key() for each in read(cluster, service.results, count))
    assert stored == {call.id.encode(): 1 for call in made}
