"""Handlers that need the processor, in processes of their own.

Records go to a process in chunks, so that the cost of pickling and of waking is shared, and a second chunk is on its
way while it works on the first. A chunk's records are of different lanes. A process that is long at one record is asked
for what it has done, and to give back what it has not begun, so that others may have it. Where a process dies, the
record that it was at has failed; those that it did not report run again, unfailed.

Only what this module itself wrote is unpickled, from the pipes of the pool. A process ends when the one that started
it does, however that ended.
"""

import atexit
import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawValue
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from headway.core.work import Failure
from headway.errors import BatchError, ConfigError, HandlerProcessError
from headway.kafka.serialization import key_reader, value_reader
from headway.parallel.calls import Calls
from headway.parallel.context import Context
from headway.parallel.dispatch import Dispatch, Job, RecordWork
from headway.parallel.time_limit import exceeded
from headway.records import ConsumerRecord, DeserializedRecord, Header, RecordSource

_AHEAD = 2  # chunks that a process has, the one that it works on included
_CHUNK_TIME = 0.01  # seconds of work; less is lost in waking, more makes ends ragged
_LONG = 0.1  # seconds at one record, while others wait behind it
_FIRST_CHUNK = 1
_NOTHING = -1

_Outcome = tuple[BaseException | None, Any]


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
        _keep_signals_from_children()
        try:
            going_on = True
            while going_on:
                with closing(_Child(*self._start_arguments)) as child:
                    going_on = self._work_with(child)
        except HandlerProcessError as error:
            self._dispatch.give_up(error)
        except Exception as error:
            self._dispatch.give_up(HandlerProcessError(f"A process for the handler could not be kept: {error!r}"))

    def _work_with(self, child: "_Child") -> bool:
        """Keep a process at work; False at the end, True if it has died and another is to take its place."""
        size = _FIRST_CHUNK
        try:
            child.wait_until_ready(self._is_closing)
            while self._fill(child, size):
                size = self._await(child, size)
        except EOFError:
            if not self._closing:
                self._report_death(child)
                return True
        return False

    def _fill(self, child: "_Child", size: int) -> bool:
        """Give the child what is there; wait only while it has nothing. False at the end."""
        # Nothing is sent behind work that takes long.
        while child.chunks < (_AHEAD if size > 1 else 1):
            jobs = self._collect(size, wait=not child.chunks)
            if jobs is None:
                return child.chunks > 0
            if not jobs:
                return True
            child.send(jobs)
        return True

    def _collect(self, size: int, *, wait: bool) -> list[Job] | None:
        """A chunk; None at the end. The other processes are left their parts of what waits."""
        jobs: list[Job] = []
        with contextlib.suppress(Empty):
            while len(jobs) < size:
                job = self._queue.get(block=wait and not jobs)
                if job is None:
                    self._queue.put(None)  # it is met again when there is nothing else
                    return jobs or None
                jobs.append(job)
                size = min(size, len(jobs) + self._queue.qsize() // len(self._drivers))
        return jobs

    def _await(self, child: "_Child", size: int) -> int:
        """Report what comes until the end of a chunk; the size of the next one."""
        while True:
            said = child.receive(self._time_limit, self._is_closing)
            for outcome in said.outcomes:
                self._report(child.jobs.popleft(), *_loaded(outcome))
            for job in child.given_back(said):
                self._again(job)
            if said.seconds is not None:
                return max(1, min(2 * size, self._largest, int(_CHUNK_TIME / said.seconds)))

    def _report(self, job: Job, error: BaseException | None, result: Any) -> None:
        following = self._calls.returned(job, result) if error is None else self._calls.raised(job, error)
        if following:
            self._queue.put(following)

    def _report_death(self, child: "_Child") -> None:
        at, error = child.death()
        for index, job in enumerate(child.jobs):
            if index == at:
                self._report(job, error, None)
            else:
                self._again(job)

    def _again(self, job: Job) -> None:
        for work in job:
            self._dispatch.untried(work)

    def _is_closing(self) -> bool:
        return self._closing


class _Child:
    """One process, and the jobs that it has, in the order in which it begins them."""

    def __init__(self, *start: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.jobs: deque[Job] = deque()
        self.chunks = 0  # of which it has not said that they ended
        self._at: Any = RawValue("q", _NOTHING)  # the job that it is at, counted from its start
        self._reported = 0  # jobs, from its start
        self._round = 0
        self._asked = False
        self._late: tuple[int, BaseException] | None = None
        self._pipe, theirs = context.Pipe()
        their_asks, self._asks = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(theirs, their_asks, self._at, *start), daemon=True)
        self._process.start()
        # At the latest: multiprocessing would send a SIGTERM, which it does not get, and wait.
        atexit.register(self._process.kill)
        theirs.close()
        their_asks.close()

    def wait_until_ready(self, is_closing: Callable[[], bool]) -> None:
        """Until it has loaded the handler; raises `HandlerProcessError` if it cannot, and `EOFError` at the end."""
        try:
            while not self._pipe.poll(0.1):
                if is_closing():
                    raise EOFError
            refusal = self._pipe.recv()
        except (EOFError, OSError) as error:
            if is_closing():
                raise EOFError from error
            raise HandlerProcessError(
                f"A process for the handler ended with code {self._exit_code()} before it could begin. It imports the "
                'program\'s main module: what that does must be guarded by `if __name__ == "__main__":`.'
            ) from error
        if refusal:
            raise HandlerProcessError(
                f"A process cannot load the handler or a deserialiser: {refusal}. Define it at the top of a module "
                "that can be imported."
            )

    def send(self, jobs: list[Job]) -> None:
        """Give it another chunk; where it has died, `receive` says so."""
        self.jobs += jobs
        self.chunks += 1
        with contextlib.suppress(OSError):
            self._pipe.send(_Chunk(self._round, [pickle.dumps(_sent(job)) for job in jobs]))

    def receive(self, time_limit: float | None, is_closing: Callable[[], bool]) -> "_Said":
        """What it says next; raises `EOFError` if it has died."""
        try:
            at, since = self._at.value, time.monotonic()
            while not self._pipe.poll(min(_LONG, time_limit / 10) if time_limit else _LONG):
                if is_closing():
                    raise EOFError
                now = time.monotonic()
                if self._at.value != at:
                    at, since = self._at.value, now
                elif at != _NOTHING:
                    self._see_to(at, now - since, time_limit)
            said: _Said = self._pipe.recv()
        except OSError as error:
            raise EOFError from error
        self._reported += len(said.outcomes)
        self.chunks -= said.seconds is not None
        return said

    def _see_to(self, at: int, seconds: float, time_limit: float | None) -> None:
        """It has been at this job for so long."""
        if time_limit and seconds > time_limit:
            self._late = at, exceeded(time_limit)
            self._process.kill()
            self._process.join()  # or its record might run twice at a time
            raise EOFError
        if seconds >= _LONG and len(self.jobs) > 1 and not self._asked:
            self._asks.send(None)
            self._asked = True

    def given_back(self, said: "_Said") -> list[Job]:
        """The jobs that it has not begun, and will not, after all that it has done was taken out of `jobs`."""
        if said.begun is None:
            return []
        self._asked = False
        self._round += 1
        return [self.jobs.pop() for _ in range(len(self.jobs) - (said.begun - self._reported))]

    def death(self) -> tuple[int, BaseException]:
        """Which of its jobs it died of, and how; that it took too long is a way to die."""
        at, error = self._late or (
            self._at.value,
            HandlerProcessError(
                f"The process of the handler ended with code {self._exit_code()} while it was at this record."
            ),
        )
        return at - self._reported, error

    def close(self) -> None:
        """End it, and let go of all that it took."""
        self._process.kill()
        self._process.join()
        atexit.unregister(self._process.kill)
        self._process.close()
        self._pipe.close()
        self._asks.close()

    def _exit_code(self) -> int | None:
        self._process.join(1.0)
        return self._process.exitcode


def _keep_signals_from_children() -> None:
    """Ctrl-C and a process manager's SIGTERM are for the consumer's process, which ends the others.

    A child has the mask of the thread that starts it from its first moment on. Python's handlers of signals run in
    the main thread, so this one needs none.
    """
    resource_tracker.ensure_running()  # which would open the mask again
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


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


class _Chunk(NamedTuple):
    """Jobs for a process; `round` is how often it had been seen to give back."""

    round: int
    jobs: list[bytes]


class _Said(NamedTuple):
    """The outcomes of the next jobs, in order.

    At the end of a chunk `seconds` is how long each of its jobs took. Where it gives back, `begun` is how many jobs it
    has begun, from its start.
    """

    outcomes: list[bytes]
    seconds: float | None
    begun: int | None


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
    if isinstance(error, BatchError):
        error = BatchError({index: _portable(failure) for index, failure in error.failures.items()})
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:
        return HandlerProcessError(_text_of(error))
    return error


def _text_of(error: BaseException) -> str:
    with contextlib.suppress(Exception):  # an error's text is a user's own code
        return f"{type(error).__qualname__}: {error}"
    return type(error).__qualname__


def _loaded(outcome: bytes) -> _Outcome:
    try:
        loaded: _Outcome = pickle.loads(outcome)  # noqa: S301 - from a process of the pool
    except Exception as error:
        return HandlerProcessError(f"What the handler returned or raised cannot be read here: {error!r}"), None
    return loaded


def _pickled(*what: Any) -> bytes:
    try:
        return pickle.dumps(what)
    except Exception as error:
        raise ConfigError(
            f"With executor='process' the handler and the deserialisers must be importable functions: {error}. Define "
            "them at the top of a module."
        ) from error


# In the process


def _serve(pipe: Connection, asks: Connection, at: Any, start: bytes, in_batches: bool) -> None:
    worker = _Worker(pipe, at)
    threading.Thread(target=_answer, args=(asks, worker), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # it has gone
        try:
            handler, deserializers = pickle.loads(start)  # noqa: S301 - from the process that started this one
        except Exception as error:
            pipe.send(_text_of(error))
            return
        make_record = _record_maker(deserializers)
        pipe.send(None)
        while True:
            worker.work(lambda job: _outcome(handler, job, make_record, in_batches))


def _answer(asks: Connection, worker: "_Worker") -> None:
    """Give back when asked to; and when nobody can ask any more, end, whatever the handler does."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            asks.recv()
            worker.give_back()
    os._exit(1)


class _Worker:
    """The jobs of this process: one thread does them, another may give back those that have not begun."""

    def __init__(self, pipe: Connection, at: Any) -> None:
        self._pipe = pipe
        self._at = at
        self._lock = threading.Lock()
        self._round = 0
        self._jobs: deque[bytes] = deque()
        self._begun = 0
        self._outcomes: list[bytes] = []

    def work(self, outcome_of: Callable[[bytes], bytes]) -> None:
        """Take a chunk, and do it."""
        chunk: _Chunk = self._pipe.recv()
        with self._lock:
            if chunk.round == self._round:  # otherwise it is given back already
                self._jobs.extend(chunk.jobs)
        before, began = self._begun, time.perf_counter()
        while job := self._begin():
            outcome = outcome_of(job)
            with self._lock:
                self._outcomes.append(outcome)
        with self._lock:
            seconds, count = time.perf_counter() - began, self._begun - before
            self._say(seconds / count if count else math.inf, None)

    def give_back(self) -> None:
        """Say what is done, and that what has not begun never will."""
        with self._lock:
            self._jobs.clear()
            self._round += 1
            self._say(None, self._begun)

    def _begin(self) -> bytes | None:
        with self._lock:
            if not self._jobs:
                self._at.value = _NOTHING
                return None
            self._at.value = self._begun
            self._begun += 1
            return self._jobs.popleft()

    def _say(self, seconds: float | None, begun: int | None) -> None:
        outcomes, self._outcomes = self._outcomes, []
        self._pipe.send(_Said(outcomes, seconds, begun))


def _outcome(
    handler: Callable[..., Any], job: bytes, make_record: Callable[[_Attempt], ConsumerRecord], in_batches: bool
) -> bytes:
    try:
        attempts: list[_Attempt] = pickle.loads(job)  # noqa: S301 - from the process that started this one
        records, contexts = list(map(make_record, attempts)), list(map(Context, attempts))
        result = handler(records, contexts) if in_batches else handler(records[0], contexts[0])
        return pickle.dumps((None, result))
    except BaseException as error:  # whatever a handler raises is that record's failure, not the process's
        return pickle.dumps((_portable(error), None))


def _record_maker(deserializers: Deserializers) -> Callable[[_Attempt], ConsumerRecord]:
    read_key = key_reader(deserializers.key, _Message.key)
    read_value = value_reader(deserializers.value, _Message.value)
    make = ConsumerRecord if deserializers.value is None else DeserializedRecord

    def make_record(attempt: _Attempt) -> ConsumerRecord:
        message = _Message(attempt.message)
        return make(message, RecordSource(attempt.level, attempt.suffix, read_key, read_value), message.value())

    return make_record
