"""What handlers share: started before the first record, shut down after the last handler, whatever ends the run."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, Context, ParallelConsumer
from headway.errors import ConfigError, HandlerError, LifespanError
from headway.execution import lifespan as module
from tests.contract.conftest import PARTITIONS, Cluster
from tests.contract.parallel.lives import failing_at_the_end, note_state, note_states, noted, refusing
from tests.contract.parallel.members import plain_topic, send, wait_for

COUNT = 20


def consumer_of(cluster: Cluster, **options: Any) -> ParallelConsumer:
    """A consumer of a new topic, in which there are records."""
    topic = plain_topic(cluster)
    send(cluster, topic, [(f"key-{i}", str(i)) for i in range(COUNT)])
    config = cluster.config({"group.id": topic, "auto.offset.reset": "earliest", "client.id": options.pop("id", "x")})
    consumer = ParallelConsumer(config, **options)
    consumer.subscribe(topic)
    return consumer


class Notes:
    """What happened, in order; the consumer stops when all records have been handled."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._lock = threading.Lock()
        self.consumer: ParallelConsumer

    def note(self, word: str) -> None:
        with self._lock:
            self.words.append(word)
            if self.words.count("handled") == COUNT and word == "handled":
                self.consumer.stop()

    def in_order(self) -> bool:
        return self.words == ["start", *["handled"] * COUNT, "end"]


def sync_life(notes: Notes) -> Callable[[], Any]:
    @contextmanager
    def life() -> Iterator[str]:
        notes.note("start")
        yield "shared"
        notes.note("end")

    return life


def async_life(notes: Notes, loops: list[Any] | None = None) -> Callable[[], Any]:
    @asynccontextmanager
    async def life() -> AsyncIterator[str]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        notes.note("start")
        yield "shared"
        await asyncio.sleep(0)
        assert asyncio.current_task() is task
        notes.note("end")
        if loops is not None:
            loops.append(loop)

    return life


def test_threads_share_what_is_started_before_them_and_ended_after(cluster: Cluster) -> None:
    notes = Notes()
    consumer = notes.consumer = consumer_of(cluster, lifespan=sync_life(notes))

    def handle(record: ConsumerRecord, context: Context) -> None:
        assert context.state == "shared"
        notes.note("handled")

    consumer.run(handle)
    assert notes.in_order()


@pytest.mark.parametrize("life", [sync_life, async_life])
def test_coroutines_share_what_belongs_to_their_loop(mock_cluster: Cluster, life: Any) -> None:
    notes, loops = Notes(), set[Any]()
    consumer = notes.consumer = consumer_of(mock_cluster, lifespan=life(notes))

    async def handle(record: ConsumerRecord, context: Context) -> None:
        assert context.state == "shared"
        loops.add(asyncio.get_running_loop())
        notes.note("handled")

    consumer.run(handle)
    assert notes.in_order()
    assert len(loops) == 1


async def test_in_the_callers_own_loop_the_lifespan_runs_there(mock_cluster: Cluster) -> None:
    notes, loops = Notes(), list[Any]()
    consumer = notes.consumer = consumer_of(mock_cluster, lifespan=async_life(notes, loops))

    async def handle(record: ConsumerRecord, context: Context) -> None:
        assert context.state == "shared"
        notes.note("handled")

    await consumer.run_async(handle)
    assert notes.in_order()
    assert loops == [asyncio.get_running_loop()]


async def test_a_cancelled_run_shuts_down_too(mock_cluster: Cluster) -> None:
    notes, began = Notes(), asyncio.Event()
    consumer = notes.consumer = consumer_of(mock_cluster, lifespan=async_life(notes))

    async def handle(record: ConsumerRecord) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            notes.note("cancelled")

    run = asyncio.create_task(consumer.run_async(handle))
    await began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert notes.words[0] == "start"
    assert notes.words[-1] == "end"
    assert set(notes.words[1:-1]) == {"cancelled"}


def test_batches_outputs_and_results_have_the_state_too(mock_cluster: Cluster) -> None:
    notes = Notes()
    consumer = notes.consumer = consumer_of(mock_cluster, lifespan=sync_life(notes))

    def handle(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
        for context in contexts:
            assert context.state == "shared"
            notes.note("handled")

    consumer.run(handle, batches=Batches(5))
    assert notes.in_order()

    notes = Notes()
    consumer = notes.consumer = consumer_of(mock_cluster, lifespan=sync_life(notes))
    for result in consumer.results(lambda record, context: context.state):
        assert result.value == "shared"
        notes.note("handled")
    assert notes.in_order()

    notes = Notes()
    consumer = notes.consumer = consumer_of(mock_cluster, lifespan=sync_life(notes))

    def yielding(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> Iterator[Any]:
        for context in contexts:
            assert context.state == "shared"
            notes.note("handled")
        yield from ()

    consumer.run_and_produce(yielding, batches=Batches(5))
    assert notes.in_order()


@pytest.mark.quick("True")
@pytest.mark.parametrize("in_batches", [False, True])
def test_each_process_has_its_own(mock_cluster: Cluster, tmp_path: Path, in_batches: bool) -> None:
    path = tmp_path / "notes"
    consumer = consumer_of(mock_cluster, executor="process", processes=2, lifespan=noted, id=str(path))

    def stop_when_done() -> None:
        while consumer.metrics().done < COUNT and consumer.failure is None:
            threading.Event().wait(0.02)
        consumer.stop()

    stopping = threading.Thread(target=stop_when_done)
    stopping.start()
    if in_batches:
        consumer.run(note_states, batches=Batches(5))
    else:
        consumer.run(note_state)
    stopping.join()
    lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
    assert sorted(word for _, word in lines if "handle" in word) == sorted(
        f"handle {str(i).encode()!r}" for i in range(COUNT)
    )
    assert [word for _, word in lines[:2]] == ["start", "start"]  # before any record
    for pid in {pid for pid, _ in lines}:
        own = [word for each, word in lines if each == pid]
        assert (own[0], own[-1]) == ("start", "end")
        assert own.count("end") == 1


@pytest.mark.parametrize("options", [{}, {"executor": "process", "processes": 2}], ids=["thread", "process"])
def test_a_start_that_fails_ends_the_run_with_a_sentence_before_any_record(mock_cluster: Cluster, options: Any) -> None:
    consumer = consumer_of(mock_cluster, lifespan=refusing, **options)
    with pytest.raises(LifespanError) as raised:
        consumer.run(note_state)
    sentence = str(raised.value)
    assert sentence.startswith("The lifespan refusing failed at its start (")
    assert "lives.py, line " in sentence
    assert sentence.endswith("ConnectionError('there is no database'). No record was taken.")
    assert consumer.metrics().done == consumer.metrics().failed == 0


@pytest.mark.parametrize("options", [{}, {"executor": "process", "processes": 1}], ids=["thread", "process"])
def test_an_end_that_fails_is_told_and_what_was_done_is_committed(mock_cluster: Cluster, options: Any) -> None:
    consumer = consumer_of(mock_cluster, lifespan=failing_at_the_end, **options)

    def stop_when_done() -> None:
        while consumer.metrics().done < COUNT and consumer.failure is None:
            threading.Event().wait(0.02)
        consumer.stop()

    stopping = threading.Thread(target=stop_when_done)
    stopping.start()
    with pytest.raises(LifespanError, match=r"failed at its end .*not all was flushed.*are committed"):
        consumer.run(print_nothing)
    stopping.join()
    assert consumer.metrics().done == COUNT


def print_nothing(record: ConsumerRecord) -> None:
    """A handler that other processes can import."""


def test_the_failure_of_a_record_counts_more_than_that_of_the_end(mock_cluster: Cluster) -> None:
    consumer = consumer_of(mock_cluster, lifespan=failing_at_the_end, retries=None)

    def handle(record: ConsumerRecord) -> None:
        raise consumer_error

    from headway import FatalError  # noqa: PLC0415

    consumer_error = FatalError("no")
    with pytest.raises(HandlerError):
        consumer.run(handle)


def test_an_end_that_hangs_is_left_after_a_bound(mock_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUT_DOWN_WITHIN", 0.2)
    never, hangs = threading.Event(), threading.Event()

    @contextmanager
    def life() -> Iterator[None]:
        yield
        hangs.set()
        never.wait()

    consumer = consumer_of(mock_cluster, lifespan=life)
    with pytest.raises(LifespanError, match="did not end within"):
        consumer.run(lambda record: consumer.stop())
    assert hangs.is_set()
    never.set()


def test_a_stop_does_not_wait_for_a_start_that_hangs(mock_cluster: Cluster) -> None:
    began, never = threading.Event(), threading.Event()

    @contextmanager
    def life() -> Iterator[None]:
        began.set()
        never.wait()
        yield

    consumer = consumer_of(mock_cluster, lifespan=life)
    running = threading.Thread(target=consumer.run, args=[print_nothing])
    running.start()
    began.wait()
    consumer.stop()
    running.join(10)
    assert not running.is_alive()
    assert consumer.metrics().done == 0
    never.set()


def test_a_stop_cancels_an_async_start_that_hangs(mock_cluster: Cluster) -> None:
    began, cancelled = threading.Event(), threading.Event()

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        yield

    async def handle(record: ConsumerRecord) -> None: ...

    consumer = consumer_of(mock_cluster, lifespan=life)
    running = threading.Thread(target=consumer.run, args=[handle])
    running.start()
    began.wait()
    consumer.stop()
    running.join(10)
    assert not running.is_alive()
    assert cancelled.wait(5)


def test_a_lifespan_whose_own_tasks_fail_ends_the_run(mock_cluster: Cluster) -> None:
    @asynccontextmanager
    async def life() -> AsyncIterator[asyncio.Event]:
        failing = asyncio.Event()

        async def fail() -> None:
            await failing.wait()
            raise RuntimeError("the pool is gone")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield failing

    async def handle(record: ConsumerRecord, context: Context) -> None:
        context.state.set()
        await asyncio.Event().wait()

    consumer = consumer_of(mock_cluster, lifespan=life)
    with pytest.raises(LifespanError, match=r"ended while records were handled.*the pool is gone|unhandled errors"):
        consumer.run(handle)


def plain_generator() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("lifespan", "sentence"),
    [
        (7, "lifespan is 7; it must be a function that makes a context manager"),
        (plain_generator, "plain_generator, which makes no context manager. Write"),
        (lambda one, two: None, "called neither with"),
    ],
)
def test_what_cannot_be_a_lifespan_is_refused(mock_cluster: Cluster, lifespan: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        consumer_of(mock_cluster, lifespan=lifespan)


def test_an_async_lifespan_of_a_plain_function_is_refused(mock_cluster: Cluster) -> None:
    consumer = consumer_of(mock_cluster, lifespan=async_life(Notes()))
    with pytest.raises(ConfigError, match="is async, and the handler print_nothing is a plain function"):
        consumer.run(print_nothing)


def test_what_makes_no_context_manager_is_told_at_the_start(mock_cluster: Cluster) -> None:
    consumer = consumer_of(mock_cluster, lifespan=dict)
    with pytest.raises(LifespanError, match="not a context manager"):
        consumer.run(print_nothing)


def exits() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("at", ["start", "end"])
def test_a_lifespan_that_asks_python_to_exit_ends_the_run_with_a_sentence(
    mock_cluster: Cluster, is_async: bool, at: str
) -> None:
    @asynccontextmanager
    async def async_life() -> AsyncIterator[None]:
        if at == "start":
            exits()
        yield
        exits()

    @contextmanager
    def life() -> Iterator[None]:
        if at == "start":
            exits()
        yield
        exits()

    consumer = consumer_of(mock_cluster, lifespan=async_life if is_async else life)

    async def handle_async(record: ConsumerRecord) -> None:
        consumer.stop()

    def handle(record: ConsumerRecord) -> None:
        consumer.stop()

    with pytest.raises(LifespanError, match=rf"failed at its {at}.*SystemExit\(3\)"):
        consumer.run(handle_async if is_async else handle)


def test_an_async_end_that_ignores_its_cancellation_is_left(
    mock_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHUT_DOWN_WITHIN", 0.2)
    released = threading.Event()

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        yield
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    consumer = consumer_of(mock_cluster, lifespan=life)

    async def handle(record: ConsumerRecord) -> None:
        consumer.stop()

    with pytest.raises(LifespanError, match="did not end within"):
        consumer.run(handle)
    released.set()


def test_a_lifespan_that_other_processes_cannot_import_is_refused(mock_cluster: Cluster) -> None:
    consumer = consumer_of(mock_cluster, executor="process", processes=1, lifespan=sync_life(Notes()))
    with pytest.raises(ConfigError, match="the lifespan and the deserialisers must be importable"):
        consumer.run(print_nothing)


@pytest.mark.slow
def test_while_a_member_starts_the_others_of_its_group_go_on_with_all_partitions(mock_cluster: Cluster) -> None:
    topic, handled, began, go_on = plain_topic(mock_cluster), set[str](), threading.Event(), threading.Event()
    config = {
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": mock_cluster.session_timeout,
        "heartbeat.interval.ms": 50,  # which is when a member hears that another one has come
    }

    @contextmanager
    def life() -> Iterator[None]:
        began.set()
        go_on.wait()
        yield

    def handle(record: ConsumerRecord) -> None:
        handled.add(record.value.decode())

    def send_one_to_each_partition(word: str) -> None:
        for partition in range(PARTITIONS):
            send(mock_cluster, topic, [(None, f"{word} {partition}")], partition)
        wait_for(lambda: {f"{word} {partition}" for partition in range(PARTITIONS)} <= handled)

    first, second = (
        ParallelConsumer(mock_cluster.config(config)),
        ParallelConsumer(mock_cluster.config(config), lifespan=life),
    )
    threads = [threading.Thread(target=each.run, args=[handle]) for each in (first, second)]
    first.subscribe(topic)
    threads[0].start()
    send_one_to_each_partition("alone")
    second.subscribe(topic)
    threads[1].start()
    began.wait()
    until, count = time.monotonic() + 3, 0
    while time.monotonic() < until:
        send_one_to_each_partition(f"while it starts {count}")
        count += 1
    go_on.set()
    wait_for(second.assignment)
    send_one_to_each_partition("together")
    for consumer, thread in zip((first, second), threads, strict=True):
        consumer.stop()
        thread.join()
