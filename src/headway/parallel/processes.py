"""Handlers that need the processor, in processes of their own.

Records go to a process in chunks, so that the cost of pickling and of waking is shared, and a second chunk is on its
way while it works on the first. A chunk's records are of different lanes. Where a process dies, the record that it was
at has failed; those that it did not report run again, unfailed.

Only what this module itself wrote is unpickled, from the pipes of the pool.
"""

import contextlib
import multiprocessing
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawValue
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from headway.core.work import Failure
from headway.errors import ConfigError, HandlerProcessError
from headway.kafka.serialization import key_reader, value_reader
from headway.parallel.calls import Calls
from headway.parallel.context import Context
from headway.parallel.dispatch import Dispatch, Job, RecordWork
from headway.parallel.time_limit import exceeded
from headway.records import ConsumerRecord, DeserializedRecord, Header, RecordSource

_AHEAD = 2  # chunks that a process has, the one that it works on included
_CHUNK_TIME = 0.01  # seconds of work; less is lost in waking, more makes ends ragged
_FIRST_CHUNK = 1
_NOTHING = -1


class Deserializers(NamedTuple):
    """How a process reads keys and values; importable functions, as it gets their names only."""

    key: Callable[..., Any] | None
    value: Callable[..., Any] | None


class Processes:
    """A pool of processes, each driven by a thread that hands it chunks and reports what came of them."""

    def __init__(
        self,
        calls: Calls,
        dispatch: Dispatch,
        deserializers: Deserializers,
        *,
        count: int,
        slots: int,
        time_limit: float | None,
    ) -> None:
        self._start_arguments = _pickled(calls.handler, deserializers), calls.in_batches
        self._largest = max(1, slots // (_AHEAD * count))
        self._calls = calls
        self._dispatch = dispatch
        self._time_limit = time_limit
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._closing = False
        self._drivers = [
            threading.Thread(target=self._drive, name=f"headway-process-{index}", daemon=True) for index in range(count)
        ]
        for driver in self._drivers:
            driver.start()

    def start(self, jobs: Sequence[Job]) -> None:
        """Run these, from any thread."""
        for job in jobs:
            self._queue.put(job)

    def close(self, timeout: float) -> None:
        """End the processes; waits up to `timeout` seconds for handlers that still run, then kills."""
        deadline = time.monotonic() + timeout
        for _ in self._drivers:
            self._queue.put(None)
        for driver in self._drivers:
            driver.join(max(0.0, deadline - time.monotonic()))
        self._closing = True
        for driver in self._drivers:
            driver.join(5.0)

    # In a driver's thread

    def _drive(self) -> None:
        child = _Child(*self._start_arguments)
        size = _FIRST_CHUNK
        try:
            while True:
                if not self._fill(child, size):
                    return
                try:
                    size = self._await(child, size)
                except EOFError:
                    self._report_death(child)
                    child = _Child(*self._start_arguments)
        finally:
            child.kill()

    def _fill(self, child: "_Child", size: int) -> bool:
        """Give the child what is there; wait only while it has nothing. False at the end."""
        # Nothing waits behind work that takes long.
        while len(child.chunks) < (_AHEAD if size > 1 else 1):
            jobs = self._collect(size, wait=not child.chunks)
            if jobs is None:
                return False
            if not jobs:
                return True
            child.send(jobs)
        return True

    def _collect(self, size: int, *, wait: bool) -> list[Job] | None:
        jobs: list[Job] = []
        with contextlib.suppress(Empty):
            while len(jobs) < size:
                job = self._queue.get(block=wait and not jobs)
                if job is None:
                    if jobs:
                        self._queue.put(None)
                        return jobs
                    return None
                jobs.append(job)
        while len(jobs) < size and (job := self._dispatch.next()):
            jobs.append(job)
        return jobs

    def _await(self, child: "_Child", size: int) -> int:
        """Report the outcomes of a chunk; the size of the next one."""
        outcomes, seconds = child.receive(self._time_limit, lambda: self._closing)
        jobs = child.chunks.popleft()
        for job, (error, result) in zip(jobs, outcomes, strict=True):
            self._report(job, error, result)
        each = seconds / len(jobs)
        return max(1, min(2 * size, self._largest, int(_CHUNK_TIME / max(each, 1e-6))))

    def _report(self, job: Job, error: BaseException | None, result: Any) -> None:
        following = self._calls.returned(job, result) if error is None else self._calls.raised(job, error)
        if following:
            self._queue.put(following)

    def _report_death(self, child: "_Child") -> None:
        at = child.at.value
        error: BaseException = child.killed or HandlerProcessError(
            f"The process of the handler ended with code {child.exit_code()} while it was at this record."
        )
        first = True
        for jobs in child.chunks:
            for index, job in enumerate(jobs):
                if first and index == at:
                    self._report(job, error, None)
                else:
                    self._again(job)
            first = False

    def _again(self, job: Job) -> None:
        for work in job:
            self._dispatch.untried(work)


class _Child:
    """One process, and the chunks that it has."""

    def __init__(self, *start: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.at: Any = RawValue("i", _NOTHING)  # the index of the record that it is at
        self.chunks: deque[list[Job]] = deque()
        self.killed: BaseException | None = None
        ours, theirs = context.Pipe()
        self._pipe = ours
        self._process = context.Process(target=_serve, args=(theirs, self.at, *start), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, jobs: list[Job]) -> None:
        """Give it another chunk; where it has died, `receive` says so."""
        self.chunks.append(jobs)
        with contextlib.suppress(OSError):
            self._pipe.send([_sent(job) for job in jobs])

    def receive(
        self, time_limit: float | None, closing: Callable[[], bool]
    ) -> tuple[list[tuple[BaseException | None, Any]], float]:
        """The outcomes of its first chunk, and the seconds that it took; raises `EOFError` if it has died."""
        try:
            at, since = self.at.value, time.monotonic()
            while not self._pipe.poll(0.1 if time_limit is None else min(0.1, time_limit / 10)):
                if closing():
                    raise EOFError
                if self.at.value != at:
                    at, since = self.at.value, time.monotonic()
                elif time_limit and at != _NOTHING and time.monotonic() - since > time_limit:
                    self.killed = exceeded(time_limit)
                    self.kill()
                    raise EOFError
            received: tuple[list[tuple[BaseException | None, Any]], float] = self._pipe.recv()
            return received
        except OSError as error:
            raise EOFError from error

    def exit_code(self) -> int | None:
        """How it ended."""
        self._process.join(1.0)
        return self._process.exitcode

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


# What goes through the pipes


class _Message(NamedTuple):
    """A message without its client; see `headway.records.Message`."""

    fields: tuple[Any, ...]

    def topic(self) -> str:
        return self.fields[0]  # type: ignore[no-any-return]

    def partition(self) -> int:
        return self.fields[1]  # type: ignore[no-any-return]

    def offset(self) -> int:
        return self.fields[2]  # type: ignore[no-any-return]

    def key(self) -> bytes | None:
        return self.fields[3]  # type: ignore[no-any-return]

    def value(self) -> bytes | None:
        return self.fields[4]  # type: ignore[no-any-return]

    def headers(self) -> Sequence[Header]:
        return self.fields[5]  # type: ignore[no-any-return]

    def timestamp(self) -> tuple[int, int]:
        return 0, self.fields[6]

    def leader_epoch(self) -> int | None:
        return self.fields[7]  # type: ignore[no-any-return]


class _Attempt(NamedTuple):
    """What a `Context` shows of a work."""

    message: tuple[Any, ...]
    suffix: str
    level: int
    attempt: int
    failure: Failure | None
    arrived: float


def _sent(job: Job) -> list[_Attempt]:
    return [_attempt(work.record, work) for work in job]


def _attempt(record: ConsumerRecord, work: RecordWork) -> _Attempt:
    message = (
        record.kafka_topic,
        record.partition,
        record.offset,
        record.raw_key,
        record.raw_value,
        record.headers,
        record.timestamp,
        record.leader_epoch,
    )
    failure = work.failure and work.failure._replace(error=_portable(work.failure.error))
    suffix = record.kafka_topic[len(record.topic) :]
    return _Attempt(message, suffix, work.level, work.attempt, failure, work.arrived)


def _portable(error: BaseException) -> BaseException:
    """The error, or where it cannot be pickled and read again, one that tells of it."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:
        return HandlerProcessError(f"{type(error).__qualname__}: {error}")
    return error


def _pickled(*what: Any) -> bytes:
    try:
        return pickle.dumps(what)
    except Exception as error:
        raise ConfigError(
            f"With executor='process' the handler and the deserialisers must be importable functions: {error}. Define "
            "them at the top of a module."
        ) from error


# In the process


def _serve(pipe: Connection, at: Any, start: bytes, in_batches: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the consumer's process, which ends this one
    handler, deserializers = pickle.loads(start)  # noqa: S301 - from the process that started this one
    make_record = _record_maker(deserializers)
    with contextlib.suppress(EOFError, OSError):  # it has gone
        while True:
            outcomes = []
            chunk = pipe.recv()
            began = time.perf_counter()
            for index, attempts in enumerate(chunk):
                at.value = index
                outcomes.append(_outcome(handler, attempts, make_record, in_batches))
            at.value = _NOTHING
            pipe.send((outcomes, time.perf_counter() - began))


def _outcome(
    handler: Callable[..., Any],
    attempts: list[_Attempt],
    make_record: Callable[[_Attempt], ConsumerRecord],
    in_batches: bool,
) -> tuple[BaseException | None, Any]:
    records = list(map(make_record, attempts))
    contexts = list(map(Context, attempts))
    try:
        result = handler(records, contexts) if in_batches else handler(records[0], contexts[0])
        pickle.dumps(result)  # here, where it is one record's failure
    except Exception as error:
        return _portable(error), None
    return None, result


def _record_maker(deserializers: Deserializers) -> Callable[[_Attempt], ConsumerRecord]:
    read_key = key_reader(deserializers.key, _Message.key)
    read_value = value_reader(deserializers.value, _Message.value)
    make = ConsumerRecord if deserializers.value is None else DeserializedRecord

    def make_record(attempt: _Attempt) -> ConsumerRecord:
        message = _Message(attempt.message)
        return make(message, RecordSource(attempt.level, attempt.suffix, read_key, read_value), message.value())

    return make_record
