"""The public parallel consumer."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from headway.config import Config, ParallelSettings
from headway.core.admission import Admission
from headway.core.engine import Engine
from headway.core.lanes import Ordering
from headway.core.retry import Retries
from headway.core.topics import LevelSubscription, by_level, by_priority, level_group
from headway.core.work import Work
from headway.errors import ClosedError, ConfigError, DeserializationError
from headway.kafka.level_consumer import LevelConsumer
from headway.kafka.level_consumers import LevelConsumers
from headway.kafka.serialization import key_reader, value_reader
from headway.kafka.wake import Wake
from headway.parallel.calls import BatchHandler, Calls, Handler, for_batches, for_each_record, is_coroutine_function
from headway.parallel.committing import Committing
from headway.parallel.control import Control, Executor
from headway.parallel.dead_letters import DeadLetters
from headway.parallel.dispatch import Dispatch, Job
from headway.parallel.loop import EventLoop
from headway.parallel.signals import on_terminate
from headway.parallel.threads import Threads
from headway.records import ConsumerRecord

_LEAST_BUFFER = 1000
_RECORD_OVERHEAD = 512  # bytes that a record of nothing takes: librdkafka's, the binding's, the engine's


class ParallelConsumer:
    """Handles records in parallel, in order where `ordering` says so, each acknowledged on its own.

    What is done above a gap is committed with the offset, as an offset map, so that a restart repeats only what was
    not done. Without `max.priority` topics and group have the names given; with it, those of its levels, which share
    the slots by weight. For the settings see `headway.config`; the other keys go to librdkafka.

    Args:
        config: The settings.
        ordering: What runs in order: records with the same key, of the same partition, or nothing.
        max_concurrency: How many records are handled at a time.
        retries: When a failed record is tried again, and how often; by default for ever, at most a minute apart.
        dead_letter_topic: Where records go that are not tried again. Without one, `run` ends with `HandlerError`.
        hand_over_timeout: How many seconds a partition that leaves waits for its handlers that run.

    Raises `ConfigError` for settings out of bounds. `pause`, `resume`, `stop` and `close` may be called from any
    thread.
    """

    def __init__(
        self,
        config: Config,
        *,
        ordering: Ordering = Ordering.KEY,
        max_concurrency: int = 16,
        retries: Retries | None = None,
        dead_letter_topic: str | None = None,
        hand_over_timeout: float = 10.0,
    ) -> None:
        settings = ParallelSettings.parse(config)
        retries = _checked(max_concurrency, retries or Retries(), dead_letter_topic)
        self._priorities = settings.levels
        levels = settings.levels or 1
        buffer = max(_LEAST_BUFFER, 4 * max_concurrency)
        engine: Engine[ConsumerRecord] = Engine(ordering, levels=levels, buffer=buffer, size_of=_size, retries=retries)
        self._wake = Wake()
        self._levels = _make_levels(settings)
        self._dispatch = Dispatch(engine, Admission(max_concurrency), self._wake, levels)
        self._committing = Committing(
            self._dispatch,
            self._levels,
            settings.commit_interval,
            time.monotonic(),
            asynchronous=True,
            transactions=None,
        )
        self._control = Control(
            self._dispatch,
            self._levels,
            self._wake,
            self._committing,
            buffer=buffer,
            hand_over_timeout=hand_over_timeout,
        )
        self._letters: DeadLetters | None = None
        if dead_letter_topic is not None:
            self._letters = DeadLetters(dead_letter_topic, settings.kafka, self._dispatch.stored)
            self._dispatch.letters = self._letters
        self._executor: Executor | None = None
        for level in self._levels:
            level.wake(self._wake.fd)
        self._state = threading.Lock()
        self._started = False
        self._ended = threading.Event()
        self._stop: tuple[bool, float] | None = None  # whether to drain, and until when
        self.failure: BaseException | None = None  # what ended the run, if not well

    def subscribe(self, topics: str | Sequence[str] | Mapping[str, int]) -> None:
        """Read these topics, or, with `max.priority`, each topic of a mapping at the priority given (KIP-349).

        A name that starts with `^` is a pattern. Call it once, before `run`.
        """
        self._check_open()
        topics = [topics] if isinstance(topics, str) else topics
        self._control.intake.subscribe(self._per_level(topics))

    def _per_level(self, topics: Sequence[str] | Mapping[str, int]) -> list[LevelSubscription]:
        if isinstance(topics, Mapping):
            return by_priority(topics, len(self._levels))
        if self._priorities is None:
            return [LevelSubscription(list(topics), "")]
        return by_level(topics, len(self._levels))

    # Running

    def run(self, handler: Handler) -> None:
        """Call `handler(record, context)` for each record, until `stop` or `close`; once in a consumer's life.

        A plain function runs on threads, an `async def` on an event loop in a thread of its own. A record is done
        when the handler returns; whatever it raises is a failed attempt: `RetriableError` is always tried again,
        `FatalError` and `DeserializationError` (a key or value that cannot be read) never. Ctrl-C ends `run` at
        once: what is done is committed, what runs comes again. SIGTERM drains, a second one ends at once.

        Raises `HandlerError` for a record that failed for good, without a `dead_letter_topic`.
        """
        self._run(for_each_record(handler, self._done, self._dispatch))

    def run_batches(self, handler: BatchHandler, max_size: int, linger: float = 0.0) -> None:
        """Call `handler(records, contexts)` for batches of up to `max_size` records; otherwise as `run`.

        A batch is of one key or partition, in order, as `ordering` says; of any records if unordered. A record waits
        up to `linger` seconds for its batch to fill. The handler raises `BatchError` to tell which failed; whatever
        else it raises, all did.
        """
        _check_batches(max_size, linger)
        engine = self._dispatch.engine
        self._dispatch.take = lambda limit, now: engine.take_batches(limit, max_size, now)
        self._run(for_batches(handler, self._dispatch))

    def _done(self, work: Work[ConsumerRecord], result: Any) -> Job | None:
        return self._dispatch.done(work)

    def _run(self, calls: Calls, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._begin()
        try:
            executor = self._executor = self._make_executor(calls, loop)
            self._dispatch.starts = executor.start
            with on_terminate(lambda drain: self.stop(drain=drain)):
                while self._stop is None:
                    self._control.turn()
                while self._stop[0] and self._control.is_draining() and time.monotonic() < self._stop[1]:
                    self._control.turn()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._end()

    def _begin(self) -> None:
        with self._state:
            self._check_open()
            if self._started:
                raise ClosedError("A consumer runs once in its life. Make a new consumer to go on.")
            self._started = True

    def _make_executor(self, calls: Calls, loop: asyncio.AbstractEventLoop | None) -> Executor:
        if is_coroutine_function(calls.handler):
            return EventLoop(calls, loop)
        return Threads(calls)

    def _end(self) -> None:
        """Leave the groups and let go of everything."""
        try:
            self._control.leave()
            for level in self._levels:
                level.wake(None)
                level.close()
            left = max(0.0, self._stop[1] - time.monotonic()) if self._stop else 0.0
            if self._executor:
                self._executor.close(left)
            if self._letters:
                self._letters.close(left)
        finally:
            self._wake.close()
            self._ended.set()

    def pause(self) -> None:
        """Start nothing and fetch nothing until `resume`; what runs goes on."""
        self._set_paused(True)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        self._check_open()
        self._dispatch.paused = paused
        self._rouse()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):  # the wake is closed, and the run has ended
            self._wake.set()

    def request_commit(self) -> None:
        """Commit what is done now, rather than when it is next due; returns at once."""
        self._check_open()
        self._committing.request()
        self._rouse()

    @property
    def work_remaining(self) -> int:
        """How many records were fetched and are not done."""
        return self._dispatch.work_remaining

    # The end

    def stop(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Make `run` end, and return at once; may be called by a handler or a signal's.

        With `drain`, what runs may end within `timeout` seconds; without, it comes again after a restart. What was
        fetched and did not start is left in Kafka. What is done is committed in any case.
        """
        self._stop = drain, time.monotonic() + (timeout if drain else 0)
        self._rouse()

    def close(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Stop, as `stop` does, and wait until `run` has ended; not for handlers, which `run` waits for."""
        with self._state:
            never_ran, self._started = not self._started, True
        if never_ran:
            self._end()
        elif not self._ended.is_set():
            self.stop(drain=drain, timeout=timeout)
            self._ended.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise ClosedError("The consumer is closed. Make a new one to go on.")


def _check_batches(max_size: int, linger: float) -> None:
    if max_size < 1:
        raise ConfigError(f"max_size is {max_size}; a batch has at least 1 record.")
    if linger < 0:
        raise ConfigError(f"linger is {linger} s; it must be at least 0.")


def _checked(max_concurrency: int, retries: Retries, dead_letter_topic: str | None) -> Retries:
    if max_concurrency < 1:
        raise ConfigError(f"max_concurrency is {max_concurrency}; it must be at least 1.")
    if retries.max_attempts is not None and dead_letter_topic is None:
        raise ConfigError(
            f"After max_attempts={retries.max_attempts} a record goes to the dead_letter_topic, and there is none. "
            "Name one, or leave out max_attempts to try for ever."
        )
    # Bytes that cannot be read today cannot be read tomorrow.
    return replace(retries, fatal=(*retries.fatal, DeserializationError))


def _make_levels(settings: ParallelSettings) -> LevelConsumers:
    readers = key_reader(settings.key_deserializer), value_reader(settings.value_deserializer)
    own = {"enable.auto.commit": False, "enable.auto.offset.store": False}
    if settings.levels is None:
        return LevelConsumers([LevelConsumer(0, settings.kafka | own | {"group.id": settings.group}, readers)])
    kafka = settings.kafka | own
    groups = [level_group(settings.group, level) for level in range(settings.levels)]
    return LevelConsumers(
        [LevelConsumer(level, kafka | {"group.id": group}, readers) for level, group in enumerate(groups)]
    )


def _size(record: ConsumerRecord) -> int:
    return _RECORD_OVERHEAD + len(record.raw_key or b"") + len(record.raw_value or b"")
