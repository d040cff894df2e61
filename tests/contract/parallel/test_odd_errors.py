"""Whatever a handler raises is its own record's failure, and all others are handled. On librdkafka's mock."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, Context, Ordering, ParallelConsumer, ProducerRecord, Retries, RetryLater
from headway.errors import HandlerError
from tests.contract.conftest import Cluster
from tests.contract.parallel import odd_handlers
from tests.contract.parallel.members import committed, consumer, plain_topic, read, wait_for
from tests.contract.parallel.odd_handlers import NO_ERRORS, ODD

GOOD = 8
Run = Callable[[ParallelConsumer], None]
RUNS: dict[str, Run] = {
    "thread": lambda parallel: parallel.run(odd_handlers.handle),
    "async": lambda parallel: parallel.run(odd_handlers.handle_async),
    "batch": lambda parallel: parallel.run(odd_handlers.handle_batch, batches=Batches(4)),
    "process": lambda parallel: parallel.run(odd_handlers.handle),
    "process, batch": lambda parallel: parallel.run(odd_handlers.handle_batch, batches=Batches(4)),
}


@dataclass
class Orders:
    """A topic of a cluster, and the one for its dead letters."""

    cluster: Cluster
    topic: str
    dead: str

    def send(self, values: Sequence[str], headers: Any = None) -> None:
        """Store records, each of a key of its own."""
        producer = self.cluster.plain_producer()
        for number, value in enumerate(values):
            producer.produce(self.topic, value, str(number), partition=0, headers=headers)
        assert producer.flush(30) == 0

    def consumer(self, executor: Any = None, **options: Any) -> ParallelConsumer:
        """A consumer that tries everything twice."""
        defaults = {"retries": Retries(lambda *_: 0.01, max_attempts=2), "dead_letter_topic": self.dead, "processes": 1}
        common = {"executor": executor, "ordering": Ordering.UNORDERED, "max_concurrency": 4}
        return consumer(self.cluster, self.topic, common | defaults | options)

    def letters(self, count: int) -> dict[str, dict[str, str]]:
        """The headers of so many dead letters, by their values."""
        found = dict[str, dict[str, str]]()
        for message in read(self.cluster, self.dead, count):
            headers: Any = message.headers() or ()
            texts = {name.removeprefix("headway.error."): (value or b"").decode() for name, value in headers}
            found[bytes(message.value() or b"").decode()] = texts
        return found


@pytest.fixture
def orders(mock_cluster: Cluster) -> Orders:
    return Orders(mock_cluster, plain_topic(mock_cluster), plain_topic(mock_cluster))


def run_until(parallel: ParallelConsumer, run: Run, condition: Callable[[], Any]) -> None:
    """Let it run until something is so; raises what ends the run before."""
    raised: list[BaseException] = []

    def running() -> None:
        try:
            run(parallel)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=running, daemon=True)
    thread.start()
    try:
        wait_for(lambda: raised or condition())
    finally:
        parallel.close(timeout=5)
        thread.join(30)
    if raised:
        raise raised[0]


@pytest.mark.parametrize("mode", RUNS)
def test_any_exception_is_a_failed_attempt_of_its_record_and_of_no_other(orders: Orders, mode: str) -> None:
    orders.send([*ODD, *["good"] * GOOD])
    parallel = orders.consumer("process" if mode.startswith("process") else None)
    run_until(parallel, RUNS[mode], lambda: parallel.metrics().done == len(ODD) + GOOD)
    assert parallel.metrics().dead_letters == len(ODD)
    found = orders.letters(len(ODD))
    assert found.keys() == ODD.keys()
    assert all(len(letter["message"]) <= 10_010 for letter in found.values())
    attempts = {value: int(letter["attempts"]) for value, letter in found.items()}
    assert attempts == {value: 1 if value in ("pickle", "nameless") else 2 for value in ODD}  # those are fatal


def test_without_a_topic_for_dead_letters_the_run_ends_with_the_handlers_error(orders: Orders) -> None:
    orders.send(["nameless"])
    parallel = orders.consumer(retries=Retries(), dead_letter_topic=None)
    with pytest.raises(HandlerError, match="failed for good"):
        run_until(parallel, RUNS["thread"], lambda: False)


@pytest.mark.parametrize("executor", [None, "process"])
def test_a_batch_error_names_the_records_that_failed_by_whatever_it_gives_for_them(
    orders: Orders, executor: Any
) -> None:
    orders.send([*NO_ERRORS, *["good"] * GOOD])
    parallel = orders.consumer(executor)
    run: Run = lambda parallel: parallel.run(odd_handlers.handle_batch_without_errors, batches=Batches(20))  # noqa: E731
    run_until(parallel, run, lambda: parallel.metrics().done == len(NO_ERRORS) + GOOD)
    found = orders.letters(len(NO_ERRORS))
    assert found.keys() == NO_ERRORS.keys()
    assert found["text"]["message"] == "it is broken"
    assert found["class"]["reason"] == "FatalError is not retried"
    assert "attempt 2 of 2" in found["none"]["reason"]


def test_of_a_batch_error_that_names_nothing_all_of_its_batch_has_failed(orders: Orders) -> None:
    orders.send(["nonsense"] * 4 + ["good"] * GOOD)
    parallel = orders.consumer()
    run: Run = lambda parallel: parallel.run(odd_handlers.handle_batch_with_nonsense, batches=Batches(1))  # noqa: E731
    run_until(parallel, run, lambda: parallel.metrics().done == 4 + GOOD)
    assert parallel.metrics().dead_letters == 4


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_task_beside_the_handlers_that_ends_its_thread_ends_no_handler(
    orders: Orders, error: type[BaseException]
) -> None:
    orders.send(["task", "callback", "awaited", *["good"] * GOOD])
    raised, handled = asyncio.Event(), list[int]()

    async def fail() -> None:
        raised.set()
        raise error

    async def handle(record: ConsumerRecord, context: Context) -> None:
        if record.value == b"task":
            asyncio.get_running_loop().call_later(0.1, lambda: asyncio.create_task(fail()))
        elif record.value == b"callback":
            asyncio.get_running_loop().call_later(0.15, lambda: (_ for _ in ()).throw(error))
        elif record.value == b"awaited" and context.attempt == 1:
            await asyncio.create_task(fail())
        else:
            await raised.wait()
            await asyncio.sleep(0.2)
        handled.append(record.offset)

    parallel = orders.consumer()
    run_until(parallel, lambda parallel: parallel.run(handle), lambda: len(handled) == 3 + GOOD)
    assert parallel.metrics().dead_letters == 0
    assert parallel.metrics().failed == 1  # the one that awaited it


def test_a_serialiser_that_ends_its_thread_fails_its_record_alone(orders: Orders) -> None:
    out = plain_topic(orders.cluster)
    orders.send(["bad", *["good"] * GOOD])

    def write(value: Any) -> bytes:
        if value == b"bad":
            raise SystemExit
        return bytes(value)

    def handle(record: ConsumerRecord, context: Context) -> ProducerRecord:
        return ProducerRecord(out, record.value)

    parallel = orders.consumer(producer_config={"value.serializer": write})
    run_until(parallel, lambda parallel: parallel.run_and_produce(handle), lambda: parallel.metrics().done == 1 + GOOD)
    assert parallel.metrics().dead_letters == 1


@pytest.mark.parametrize("answer", ["raises", "returns"])
@pytest.mark.parametrize("closes", ["asyncio.run", "close"])
def test_however_a_handler_takes_it_that_its_loop_ends_its_record_has_neither_failed_nor_is_it_done(
    orders: Orders, answer: str, closes: str
) -> None:
    orders.send(["good"] * 4)
    parallel = orders.consumer(retries=Retries(max_attempts=1))
    began, cleaned_up = list[int](), list[int]()

    async def handle(record: ConsumerRecord, context: Context) -> None:
        began.append(record.offset)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned_up.append(record.offset)
            if answer == "raises":
                raise ConnectionError("the client is closed") from None

    async def main() -> None:
        running = asyncio.create_task(parallel.run_async(handle))
        await asyncio.to_thread(wait_for, lambda: len(began) == 4)
        assert not running.done()  # and `asyncio.run` cancels it along with its handlers

    if closes == "asyncio.run":
        asyncio.run(main())
    else:
        running = threading.Thread(target=parallel.run, args=(handle,))
        running.start()
        wait_for(lambda: len(began) == 4)
        parallel.close(drain=False)
        running.join(30)
    wait_for(lambda: len(cleaned_up) == 4)
    metrics = parallel.metrics()
    assert (metrics.failed, metrics.dead_letters, metrics.done) == (0, 0, 0)
    assert committed(orders.cluster, orders.topic) in ({}, {0: (0, b"")})


@pytest.mark.kafka
def test_what_the_scheduler_refuses_to_keep_for_later_is_a_failed_attempt(kafka_cluster: Cluster) -> None:
    delays: list[Any] = [
        float("nan"),
        float("inf"),
        None,
        1e18,
        10**400,
        "soon",
        object(),
        True,
        odd_handlers.OddNumber(),
    ]
    orders = Orders(kafka_cluster, plain_topic(kafka_cluster), plain_topic(kafka_cluster))
    orders.send(list(map(str, range(len(delays)))))
    orders.send(["header"], [("headway.delay", b"x")])
    orders.send(["past"])
    later = list[str]()

    def handle(record: ConsumerRecord, context: Context) -> None:
        value = (record.raw_value or b"").decode()
        later.append(value)
        raise RetryLater(delays[int(value)] if value.isdigit() else -3.0 if value == "past" else 60.0)

    parallel = orders.consumer()
    count = len(delays) + 2
    run_until(parallel, lambda parallel: parallel.run(handle), lambda: parallel.metrics().done == count)
    assert Counter(later) == Counter({value: 1 if value == "past" else 2 for value in later})
    assert parallel.metrics().failed == 2 * count - 1
    letters = orders.letters(count - 1)
    assert letters.keys() == set(later) - {"past"}
    assert all("RetryLater cannot be carried out" in letter["first.message"] for letter in letters.values())
    assert "The header headway.delay is the scheduler's own" in letters["header"]["first.message"]
    assert {letter["reason"] for letter in letters.values()} == {"attempt 2 of 2 failed"}


def test_a_handler_that_cancels_all_tasks_of_its_loop_costs_others_an_attempt_and_no_slot(orders: Orders) -> None:
    count = 400
    orders.send(["good"] * count)
    done = set[int]()

    async def handle(record: ConsumerRecord, context: Context) -> None:
        if context.attempt == 1 and record.offset % 20 == 10:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        elif record.offset % 5 == 0:
            await asyncio.sleep(0)
        done.add(record.offset)

    parallel = orders.consumer(retries=Retries(lambda *_: 0.01), dead_letter_topic=None)
    run_until(parallel, lambda parallel: parallel.run(handle), lambda: len(done) == count)
    assert parallel.metrics().running == 0
