"""What handlers return and what becomes of it, on a real Apache Kafka."""

import asyncio
import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway import ConsumerRecord, Context, ParallelConsumer, ProducerRecord, RecordMetadata, Retries
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError, HandlerError, SerializationError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import committed, consumer, log_ends, plain_topic, read, send, topic_of, wait_for

pytestmark = pytest.mark.kafka

SOON = Retries(fixed_backoff(0.01))
Returns = Callable[[ConsumerRecord], Any]


def forms(outputs: Callable[[ConsumerRecord], list[ProducerRecord]]) -> dict[str, Callable[..., Any]]:
    """Handlers of all kinds with the same outputs."""

    def returns(record: ConsumerRecord, context: Context) -> Any:
        return outputs(record)

    def yields(record: ConsumerRecord, context: Context) -> Iterator[ProducerRecord]:
        yield from outputs(record)

    def returns_a_generator(record: ConsumerRecord, context: Context) -> Any:
        return (output for output in outputs(record))

    async def returns_later(record: ConsumerRecord, context: Context) -> Any:
        await asyncio.sleep(0)
        return outputs(record)

    async def yields_later(record: ConsumerRecord, context: Context) -> Any:
        for output in outputs(record):
            await asyncio.sleep(0)
            yield output

    return {form.__name__: form for form in (returns, yields, returns_a_generator, returns_later, yields_later)}


@pytest.mark.parametrize("form", forms(lambda record: []))
def test_a_handler_of_any_form_makes_no_output_or_one_or_many_and_the_callback_knows_where_they_are(
    kafka_cluster: Cluster, form: str
) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 90
    send(kafka_cluster, topic, [(f"key-{i % 7}", str(i)) for i in range(count)])
    known: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    all_known = threading.Event()

    def outputs(record: ConsumerRecord) -> list[ProducerRecord]:
        return [ProducerRecord(out, f"{record.value.decode()}/{part}") for part in range(int(record.value) % 3)]

    def note(input: ConsumerRecord, output: ProducerRecord, where: RecordMetadata) -> None:
        assert (where.topic, where.level) == (out, 0)
        assert abs(where.timestamp - input.timestamp) < 600_000
        known[where.partition, where.offset] = (input.value, output.value.encode())
        if len(known) == count:
            all_known.set()

    parallel = consumer(kafka_cluster, topic)
    stopper = threading.Thread(target=stop_when_done, args=(parallel, all_known))
    stopper.start()
    parallel.run_and_produce(forms(outputs)[form], note)
    stopper.join()
    stored = {(each.partition(), each.offset()): each.value() for each in read(kafka_cluster, out, count)}
    assert stored == {where: output for where, (_, output) in known.items()}
    assert all(output.split(b"/")[0] == value for value, output in known.values())
    assert sum(offset for offset, _ in committed(kafka_cluster, topic).values()) == count


def stop_when_done(parallel: ParallelConsumer, all_known: threading.Event) -> None:
    assert all_known.wait(30)
    wait_for(lambda: parallel.work_remaining == 0)
    parallel.stop()


def test_an_output_with_a_level_goes_to_that_level_with_its_key_headers_time_and_partition(
    kafka_cluster: Cluster,
) -> None:
    topic, out = plain_topic(kafka_cluster), kafka_cluster.topic()
    send(kafka_cluster, topic, [("a", "1")])
    places: list[RecordMetadata] = []
    parallel = consumer(kafka_cluster, topic)

    def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
        return ProducerRecord(out, b"v", b"k", level=2, headers=[("trace", b"7")], partition=3, timestamp=1_234_567)

    def note(input: ConsumerRecord, output: ProducerRecord, where: RecordMetadata) -> None:
        places.append(where)
        parallel.stop()

    parallel.run_and_produce(handle, note)
    assert places == [RecordMetadata(out, partition=3, level=2, offset=0, timestamp=1_234_567)]
    [stored] = read(kafka_cluster, f"{out}-2", 1)
    assert (stored.key(), stored.value(), stored.headers()) == (b"k", b"v", [("trace", b"7")])
    assert (stored.partition(), stored.timestamp()[1]) == (3, 1_234_567)


def test_serialisers_of_the_producer_config_write_keys_and_values(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])
    settings = {"key.serializer": lambda key: f"#{key}".encode(), "value.serializer": lambda v: json.dumps(v).encode()}
    parallel = consumer(kafka_cluster, topic, {"producer_config": settings})
    parallel.run_and_produce(lambda record, context: ProducerRecord(out, {"n": 1}, 7), lambda *stored: parallel.stop())
    [stored] = read(kafka_cluster, out, 1)
    assert (stored.key(), stored.value()) == (b"#7", b'{"n": 1}')


@pytest.mark.slow
def test_outputs_of_a_key_are_in_the_order_of_its_inputs_though_some_are_tried_again(kafka_cluster: Cluster) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 600
    send(kafka_cluster, topic, [(f"key-{i % 20}", str(i)) for i in range(count)])
    stored = 0
    parallel = consumer(kafka_cluster, topic, {"retries": SOON})

    def handle(record: ConsumerRecord, context: Context) -> list[ProducerRecord]:
        if int(record.value) % 50 == 0 and context.attempt == 1:
            raise OSError("not now")
        return [ProducerRecord(out, record.value + part, record.key) for part in (b"/a", b"/b")]

    def note(input: ConsumerRecord, output: ProducerRecord, where: RecordMetadata) -> None:
        nonlocal stored
        stored += 1
        if stored == 2 * count:
            parallel.stop()

    parallel.run_and_produce(handle, note)
    of_key: dict[Any, list[tuple[int, bytes]]] = defaultdict(list)
    for each in read(kafka_cluster, out, 2 * count):
        number, part = (each.value() or b"").split(b"/")
        of_key[each.key()].append((int(number), part))
    assert len(of_key) == 20
    assert all(outputs == sorted(outputs) for outputs in of_key.values())


# What cannot be stored

TOO_MUCH = b"x" * 2000
IMPOSSIBLE: dict[str, tuple[Callable[[str], Any], str]] = {
    "no record": (lambda out: "an output", "The handler returned str. Return a ProducerRecord, several of them, or"),
    "wrong in a list": (lambda out: [ProducerRecord(out, "v"), 3], "returned list with int in it"),
    "a value of no bytes": (lambda out: ProducerRecord(out, {"n": 1}), "value of a record for .* has the type dict"),
    "a key of no bytes": (lambda out: ProducerRecord(out, b"v", 7), "key of a record for .* has the type int"),
    "wrong headers": (lambda out: ProducerRecord(out, b"v", headers=[("n", 1)]), "whose value is int, not bytes"),  # type: ignore[list-item]
    "a header that no bytes stand for": (
        lambda out: ProducerRecord(out, b"v", headers=[("file", "x\udc80")]),
        "cannot be encoded in UTF-8",
    ),
    "a header's name that no bytes stand for": (
        lambda out: ProducerRecord(out, b"v", headers=[("x\udc80", b"v")]),
        "has a header named .*, which cannot be encoded",
    ),
    "a time after all time": (lambda out: ProducerRecord(out, b"v", timestamp=2**70), "OverflowError"),
    "too large": (lambda out: ProducerRecord(out, TOO_MUCH), "has 2000 bytes, but message.max.bytes is 1500"),
    "no such topic": (lambda out: [ProducerRecord(out, b"v"), ProducerRecord(f"no-{out}")], "no-.* does not exist"),
    "no such level": (lambda out: ProducerRecord(out, b"v", level=7), "-7 of an output does not exist"),
    "no such partition": (
        lambda out: ProducerRecord(out, b"v", partition=9),
        "partition 9 of .*, but that topic has partitions 0 to 3",
    ),
}


@pytest.mark.quick("wrong in a list", "wrong headers", "too large", "no such topic", "no such partition")
@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_an_output_that_cannot_be_stored_is_a_failed_attempt_and_its_record_ends_as_a_dead_letter(
    kafka_cluster: Cluster, what: str
) -> None:
    topic, out, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "good"), ("a", "bad"), ("a", "last")], partition=0)
    make, message = IMPOSSIBLE[what]
    attempts: Counter[bytes] = Counter()
    options = {
        "retries": Retries(fixed_backoff(0.01), max_attempts=2),
        "dead_letter_topic": dead,
        "producer_config": {"message.max.bytes": 1500},
    }
    parallel = consumer(kafka_cluster, topic, options)

    def handle(record: ConsumerRecord, context: Context) -> Any:
        attempts[record.value] += 1
        return make(out) if record.value == b"bad" else ProducerRecord(out, record.value)

    def note(input: ConsumerRecord, output: ProducerRecord, where: RecordMetadata) -> None:
        if input.value == b"last":
            parallel.stop()

    parallel.run_and_produce(handle, note)
    assert attempts == {b"good": 1, b"bad": 2, b"last": 1}
    assert sorted(each.value() or b"" for each in read(kafka_cluster, out, 2)) == [b"good", b"last"]
    assert sum(log_ends(kafka_cluster, out).values()) == 2
    [letter] = read(kafka_cluster, dead, 1)
    headers = dict(letter.headers() or [])
    assert letter.value() == b"bad"
    assert headers["headway.error.reason"] == b"attempt 2 of 2 failed"
    assert re.search(message, str(headers["headway.error.message"]))
    assert committed(kafka_cluster, topic) == {0: (3, b"")}


def test_what_only_the_broker_refuses_is_a_failed_attempt_too_and_nothing_is_committed_past_it(
    kafka_cluster: Cluster,
) -> None:
    topic, out = plain_topic(kafka_cluster), topic_of(kafka_cluster, 1, max_message_bytes="1000")
    send(kafka_cluster, topic, [("a", "1"), ("b", "2"), ("c", "3")], partition=0)
    errors: list[BaseException | None] = []
    parallel = consumer(kafka_cluster, topic, {"retries": SOON})
    others = threading.Semaphore(0)

    def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
        if record.value != b"1":
            return ProducerRecord(out, record.value)
        errors.append(context.last_error)
        if context.attempt == 3:
            assert others.acquire(timeout=20)
            assert others.acquire(timeout=20)
            parallel.stop()
        return ProducerRecord(out, TOO_MUCH)

    parallel.run_and_produce(handle, lambda *stored: others.release())
    assert errors[0] is None
    assert all("was not delivered: Broker: Message size too large" in str(error) for error in errors[1:])
    [(offset, metadata)] = committed(kafka_cluster, topic).values()
    assert offset == 0
    assert metadata  # the two others


def test_a_record_counts_as_done_when_all_its_outputs_are_acknowledged_and_not_before(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1"), ("a", "2")], partition=0)
    begun: list[bytes] = []
    at_first = []
    parallel = consumer(kafka_cluster, topic, {"producer_config": {"linger.ms": 200}})

    def handle(record: ConsumerRecord, context: Context) -> list[ProducerRecord]:
        begun.append(record.value)
        return [ProducerRecord(out, record.value, partition=0), ProducerRecord(out, record.value, partition=1)]

    def note(input: ConsumerRecord, output: ProducerRecord, where: RecordMetadata) -> None:
        at_first.append((parallel.work_remaining, len(begun)))
        if len(at_first) == 4:
            parallel.stop()

    parallel.run_and_produce(handle, note)
    assert at_first == [(2, 1), (2, 1), (1, 2), (1, 2)]
    assert committed(kafka_cluster, topic) == {0: (2, b"")}


def test_a_callback_that_raises_is_logged_and_costs_nothing(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")], partition=0)
    parallel = consumer(kafka_cluster, topic)

    def note(input: ConsumerRecord, output: ProducerRecord, where: RecordMetadata) -> None:
        parallel.stop()
        raise OSError("no disk")

    parallel.run_and_produce(lambda record, context: ProducerRecord(out, record.value), note)
    assert f"on_output callback for a record of {out} raised" in caplog.text
    assert committed(kafka_cluster, topic) == {0: (1, b"")}


def test_a_callback_of_which_nothing_would_run_is_refused(kafka_cluster: Cluster) -> None:
    async def note(input: ConsumerRecord, output: ProducerRecord, where: RecordMetadata) -> None: ...

    parallel = consumer(kafka_cluster, plain_topic(kafka_cluster))
    with pytest.raises(ConfigError, match=r"on_output is .*an async def"):
        parallel.run_and_produce(lambda record, context: None, note)


def test_what_is_on_its_way_at_the_end_is_waited_for_when_it_drains(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")], partition=0)
    parallel = consumer(kafka_cluster, topic, {"producer_config": {"linger.ms": 300}})

    def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
        parallel.stop()
        return ProducerRecord(out, record.value)

    parallel.run_and_produce(handle)
    assert [each.value() for each in read(kafka_cluster, out, 1)] == [b"1"]
    assert committed(kafka_cluster, topic) == {0: (1, b"")}


def test_without_draining_what_is_on_its_way_comes_again(kafka_cluster: Cluster) -> None:
    topic, out = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")], partition=0)
    parallel = consumer(kafka_cluster, topic, {"producer_config": {"linger.ms": 60_000}})

    def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
        parallel.stop(drain=False)
        return ProducerRecord(out, record.value)

    parallel.run_and_produce(handle)
    assert committed(kafka_cluster, topic) == {}


def test_a_handler_that_yields_is_refused_where_its_outputs_would_go_nowhere(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)

    def yields(record: ConsumerRecord, context: Context) -> Iterator[int]:
        yield 1

    parallel = consumer(kafka_cluster, topic)
    with pytest.raises(
        ConfigError, match=r"The handler .*yields is a generator function, because it yields. Only run_and_produce"
    ):
        parallel.run(yields)
    assert isinstance(parallel.failure, ConfigError)


def test_without_a_dead_letter_topic_an_output_that_is_refused_for_good_ends_the_run(kafka_cluster: Cluster) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")], partition=0)
    parallel = consumer(kafka_cluster, topic, {"retries": Retries(fatal=(SerializationError,))})
    with pytest.raises(HandlerError, match=r"SerializationError is not retried.*The handler returned int"):
        parallel.run_and_produce(lambda record, context: 7)
    assert committed(kafka_cluster, topic) == {}


def test_a_transactional_id_without_transactions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"transactional.id is set, but commit_mode is 'async'"):
        ParallelConsumer({"group.id": "g"}, producer_config={"transactional.id": "x"})
