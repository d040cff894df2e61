"""The code that runs in a process of the pool. It loads the handler, receives jobs, and calls the handler for them."""

import contextlib
import math
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from headway.errors import RetriableError
from headway.execution.context import Context
from headway.execution.handlers import WithContext
from headway.execution.lifespan import SHUT_DOWN_WITHIN, Lifespan, failed_at_end, failed_at_start, make, with_state
from headway.execution.processes.messages import (
    NOTHING,
    Chunk,
    Deserializers,
    ProcessReport,
    SentAttempt,
    SentMessage,
    described_error,
    portable,
)
from headway.kafka.serialization import key_reader, value_reader
from headway.records.record_types import ConsumerRecord, DeserializedRecord, RecordSource


def serve(pipe: Connection, asks: Connection, at: Any, start: bytes, in_batches: bool, is_traced: bool) -> None:
    """Load the handler, and run jobs until the parent closes its end of the pipes."""
    _take_no_signals()
    _keep_from_others(pipe, asks)
    jobs = _Jobs(pipe, at)
    threading.Thread(target=_answer, args=(asks, jobs), name="headway-give-back", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        try:
            handler, deserializers, shared = pickle.loads(start)  # noqa: S301 - the parent process has written it
        except Exception as error:
            pipe.send(described_error(error))
            return
        make_record = _record_maker(deserializers)

        def work(handler: WithContext) -> None:
            pipe.send(None)
            outcome_of: Callable[[bytes], bytes] = partial(_outcome, handler, make_record, in_batches)
            if is_traced:
                outcome_of = _in_context(outcome_of)
            while jobs.work(outcome_of):
                pass

        if shared is None:
            work(handler)
            return
        lifespan, settings = shared
        jobs.ends_within = SHUT_DOWN_WITHIN
        _live(lifespan, settings, pipe, lambda state: work(with_state(handler, lambda: state, in_batches=in_batches)))


def _live(lifespan: Lifespan, settings: Mapping[str, Any], pipe: Connection, work: Callable[[Any], None]) -> None:
    """Enter the lifespan of this process, call `work`, and leave the lifespan. Failures are sent to the parent."""
    try:
        made: Any = make(lifespan, settings)
        state = made.__enter__()
    except BaseException as error:
        pipe.send(failed_at_start(lifespan, error))
        return
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        work(state)
    failure = None
    try:
        made.__exit__(None, None, None)
    except BaseException as error:
        failure = failed_at_end(lifespan, error)
    pipe.send(failure)


def _take_no_signals() -> None:
    """Make SIGINT and SIGTERM have no effect on this process, because the consumer's process handles these signals.

    The signals get handlers that do nothing, and are then unblocked. If this process blocked or ignored them instead,
    so would every process that the user's handler starts, because a child process inherits blocked and ignored signals,
    but not signal handlers.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _keep_from_others(*pipes: Connection) -> None:
    """Keep processes that a handler starts from inheriting the pipes.

    The parent notices the end of this process by its closed pipe, so no other process must keep the pipe open.
    """

    def close() -> None:
        for pipe in pipes:
            pipe.close()

    os.register_at_fork(after_in_child=close)
    for pipe in pipes:
        os.set_inheritable(pipe.fileno(), False)


def _answer(asks: Connection, jobs: "_Jobs") -> None:
    """Give back jobs when the parent requests them, and end this process when the parent ends.

    This process ends even if a handler is running. If no handler is running, the lifespan has time to shut down first.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            asks.recv()
            jobs.give_back()
    if jobs.are_done():
        time.sleep(jobs.ends_within)
    os._exit(1)


class _Jobs:
    """The jobs of this process. The main thread runs them. Another thread can give back jobs that have not begun."""

    def __init__(self, pipe: Connection, at: Any) -> None:
        self._pipe = pipe
        self._at = at
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._round = 0
        self._jobs: deque[bytes] = deque()
        self._begun = 0
        self._outcomes: list[tuple[bytes, float]] = []
        self.ends_within = 0.0
        """How long the lifespan has to shut down if the parent ends while no job is running, in seconds."""

    def work(self, outcome_of: Callable[[bytes], bytes]) -> bool:
        """Receive a chunk, and run its jobs. Returns False if a request to end was received instead."""
        chunk: Chunk | None = self._pipe.recv()
        if chunk is None:
            return False
        with self._lock:
            # A chunk of an earlier round was sent before the parent received the report with which this process gave
            # back jobs. The parent already treats the jobs of that chunk as given back.
            if chunk.round == self._round:
                self._jobs.extend(chunk.jobs)
        before, began = self._begun, time.perf_counter()
        ended = began
        while job := self._begin():
            outcome = outcome_of(job)
            began_job, ended = ended, time.perf_counter()
            if os.getpid() != self._process:  # this is a child that the handler has forked
                os._exit(0)
            with self._lock:
                self._outcomes.append((outcome, ended - began_job))
        with self._lock:
            seconds, count = time.perf_counter() - began, self._begun - before
            self._say(seconds / count if count else math.inf, None)
        return True

    def are_done(self) -> bool:
        """Return True if no job is running."""
        return bool(self._at.value == NOTHING)

    def give_back(self) -> None:
        """Report the outcomes, and drop the jobs that have not begun. The parent can give them to other processes."""
        with self._lock:
            self._jobs.clear()
            self._round += 1
            self._say(None, self._begun)

    def _begin(self) -> bytes | None:
        with self._lock:
            if not self._jobs:
                self._at.value = NOTHING
                return None
            self._at.value = self._begun
            self._begun += 1
            return self._jobs.popleft()

    def _say(self, seconds: float | None, begun: int | None) -> None:
        outcomes, self._outcomes = self._outcomes, []
        self._pipe.send(ProcessReport(outcomes, seconds, begun))


def _in_context(outcome_of: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Wrap `outcome_of` for jobs that were sent with the context of a span, which is then current in the handler."""
    from headway.tracing.carriers import in_context  # noqa: PLC0415 - only programs that trace need this import

    def outcome(job: bytes) -> bytes:
        carrier, inner = pickle.loads(job)  # noqa: S301 - the parent process has written it
        with in_context(carrier):
            return outcome_of(inner)

    return outcome


def _outcome(
    handler: Callable[..., Any], make_record: Callable[[SentAttempt], ConsumerRecord], in_batches: bool, job: bytes
) -> bytes:
    try:
        attempts: list[SentAttempt] = pickle.loads(job)  # noqa: S301 - the parent process has written it
        # A record can expire while it waits in this process. The attempt then fails untried, and the dispatch treats
        # the record as expired.
        if any(attempt.not_after <= time.monotonic() for attempt in attempts):
            raise RetriableError("The record expired before it could be started.", untried=True)
        records, contexts = list(map(make_record, attempts)), list(map(Context, attempts))
        result = handler(records, contexts) if in_batches else handler(records[0], contexts[0])
        return pickle.dumps((None, result))
    except BaseException as error:  # any exception is a failed attempt, and must not end the process
        return pickle.dumps((portable(error), None))


def _record_maker(deserializers: Deserializers) -> Callable[[SentAttempt], ConsumerRecord]:
    read_key = key_reader(deserializers.key, SentMessage.key)
    read_value = value_reader(deserializers.value, SentMessage.value)
    make = ConsumerRecord if deserializers.value is None else DeserializedRecord

    def make_record(attempt: SentAttempt) -> ConsumerRecord:
        message = SentMessage(attempt.message)
        return make(message, RecordSource(attempt.level, attempt.suffix, read_key, read_value), message.value())

    return make_record
