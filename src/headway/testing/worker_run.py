"""Runs a declared worker on a test Kafka until it is idle, and collects everything that it did."""

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby, starmap
from typing import Any

from headway.core.levels.naming import level_group, level_topic, matches, subscriptions
from headway.core.retry import Again, Retries, Verdict
from headway.declarations import called, check_above_zero, check_whole, is_coroutine_function
from headway.errors import ConfigError, RetriableError, RetryLater
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.mock_cluster import mock_at
from headway.kafka.reading.log_bounds import LogBounds
from headway.kafka.reading.stored_since import commit_starts, read_between
from headway.parallel.consumer import ParallelConsumer
from headway.priority.producer import Producer
from headway.records.record_types import ProducerRecord
from headway.settings.config import DEFAULT_SCHEDULER, Config
from headway.testing.early_delivery import EarlyDelivery
from headway.testing.outcome import HandlerCall, WorkerRun, dead_letter_of, scheduled_of
from headway.testing.stand_ins import declaration_of
from headway.workers.worker import Worker

_LOOK_EVERY = 0.01  # seconds between checks of whether the worker is idle
# Give up after this many attempts at one record if its retries are unlimited. Because the run skips the waits between
# retries, it would otherwise retry such a record in a loop.
_MOST_ATTEMPTS = 100
# A worker counts as idle after this many seconds without a new record, even if its topics hold more records than it has
# done.
_QUIET = 0.5
# With several workers, wait longer, because one worker may be waiting for another worker's record.
_QUIET_TOGETHER = 2.0
_MOCK_HAS_NO_DELAY = (
    "{0} needs delayed delivery, which the mock cluster does not support. Use the fixture headway_broker for this test."
)

# Settings of the declaration that do not apply to the run.
_LEFT_OUT = {
    "group.instance.id",  # the run uses a new consumer group
    "auto.offset.reset",  # the run starts after the records that the topics already hold
}


def run_until_idle(
    worker: Callable[..., Any],
    settings: Config,
    records: Iterable[ProducerRecord] = (),
    *,
    partitions: int = 4,
    timeout: float = 30.0,
    skip_waits: bool = True,
    advance: float = 0.0,
) -> WorkerRun:
    """Store records, run a worker as declared until it is idle, and return everything that it did.

    The worker runs in this process, with its declared topics, value, order, retries, dead-letter topic, outputs and
    lifespan. The worker uses a new consumer group, and gets only the records that are stored from now on. A worker with
    `executor="process"` runs on threads, because calls in other processes cannot be observed here. Options that are not
    declared have their defaults.

    Args:
        worker: A handler declared with `@worker`.
        settings: The settings that say where Kafka is. Use only a test broker or the mock, because the run stores
            outputs and dead letters.
        records: The records to store first. The values and keys must be text or bytes, because the worker's
            serialisers are not used.
        partitions: The number of partitions of topics that are created because they do not exist yet.
        timeout: How many seconds the worker has to become idle.
        skip_waits: Retry failed records at once. `HandlerCall.wait` then gives the time that would have been waited.
        advance: How many seconds the clock for due times may advance. Whenever the worker is idle, the clock jumps to
            the next time at which a record for one of the worker's topics is due, and a relay delivers that record. So
            records arrive in the order of their due times, even those that are scheduled after a jump. Schedules from
            before the run, such as those of the service under test, are delivered, too, unless an earlier run left
            them behind. Only due times are affected: `time_limit`, `rate_limit` and expiry take their usual time, and
            the handler sees the real time.

    Raises:
        TimeoutError: The worker did not become idle in time. The run ends earlier, with the same error, if a record
            that would be retried forever has failed a hundred times without waits.
        HandlerError: A record failed permanently, and the worker has no `dead_letter_topic`.
        ConfigError: The function is not a worker, the worker needs a feature that the mock does not support, or a
            record has a due time and `advance` is 0.
        Exception: Any other error that ends the worker's run, such as `LifespanError`.
    """
    check_whole("partitions", partitions, 1)
    check_above_zero("timeout", timeout)
    if advance:
        check_above_zero("advance", advance)
    return _ObservedRun(declaration_of(worker), settings, partitions, timeout, skip_waits, advance).run(list(records))


def run_together(
    workers: Sequence[Worker],
    settings: Config,
    positions: Callable[[Worker, Partition], int],
    *,
    name: str,
    partitions: int,
    timeout: float,
    skip_waits: bool,
) -> "list[tuple[WorkerRun, dict[Partition, int]]]":
    """Run workers at the same time until all of them are idle.

    Returns, for each worker, its outcome and the end offsets of its partitions. `positions` returns the offset at which
    a worker starts in a partition. Runs with the same `name` use the same consumer groups, so the number of attempts
    at a record continues from one run to the next. Raises the same errors as `run_until_idle`.
    """
    runs = [_ObservedRun(each, settings, partitions, timeout, skip_waits, 0.0, name) for each in workers]
    try:
        for run, declared in zip(runs, workers, strict=True):
            run.start(partial(positions, declared))
        deadline, before = time.monotonic() + timeout, None
        while not any(run.has_ended for run in runs):
            # The workers are checked one after another. So after the check of one worker, another may send it records.
            # All are idle only if a second check finds that no worker has done anything since the first.
            done = [run.done_when_idle() for run in runs]
            if None not in done and done == before:
                break
            if time.monotonic() > deadline:
                runs[done.index(None) if None in done else 0].give_up()
            before = done
            time.sleep(_LOOK_EVERY)
    finally:
        for run in runs:
            run.end()
    return [(run.outcome(), run.idle_at) for run in runs]


class _AtOnce(Retries):
    """Retries failed records as declared, but without waits."""

    def decide(self, *args: Any, **options: Any) -> Verdict:
        verdict = super().decide(*args, **options)
        return verdict._replace(at=0.0) if isinstance(verdict, Again) else verdict


class _ObservedRun:
    """One run of a worker in a new consumer group, in which everything that the worker does is recorded."""

    def __init__(
        self,
        declared: Worker,
        settings: Config,
        partitions: int,
        timeout: float,
        skip_waits: bool,
        advance: float,
        name: str | None = None,
    ) -> None:
        self._declared = declared
        self._settings = dict(settings)
        self._partitions = partitions
        self._timeout = timeout
        self._advance = advance
        self._is_mock = mock_at(settings.get("bootstrap.servers")) is not None
        if self._is_mock and advance:
            raise ConfigError(_MOCK_HAS_NO_DELAY.format("advance="))
        self._retries: Retries = declared.options.retries or Retries()
        if self._retries.then == "hold":  # nobody would release the records
            self._retries = replace(self._retries, then="dead_letter")
        self._retries_forever = skip_waits and self._retries.max_attempts is None
        self._outcome = WorkerRun()
        self._error: Exception | None = None  # the error that ended the run, if any
        self._is_late = False
        self._has_ended = threading.Event()
        self._quiet = _QUIET if name is None else _QUIET_TOGETHER
        self._done = -1
        self._quiet_since = 0.0
        self._bounds: LogBounds
        self._begin: dict[Partition, int] = {}
        self._letters_begin: dict[Partition, int] = {}
        self.idle_at: dict[Partition, int] = {}
        """The end offsets of the worker's partitions when it was last idle."""
        self._thread: threading.Thread | None = None
        self._worker = replace(
            declared,
            group=f"{declared.group}-test-{name or uuid.uuid4().hex[:8]}",
            on_output=self._note_output if declared.produces else None,
            config=_config_of(declared),
            options=replace(
                declared.options,
                retries=_without_waits(self._retries) if skip_waits else self._retries,
                executor=None,
                processes=None,
            ),
        )
        self._by_level = [list(each.topics) for each in subscriptions(self._worker.topics, self._worker.levels)]
        self._consumer: ParallelConsumer

    def run(self, records: Sequence[ProducerRecord]) -> WorkerRun:
        """Store the records, and run the worker until it is idle."""
        if not self._advance and any(record.due is not None for record in records):
            raise ConfigError(
                "A record has due=, but a run without advance= does not deliver records later. Leave out due= to store "
                "the record now, or set advance= to the number of seconds that the clock may advance."
            )
        inputs, letters = self._made_topics(records)
        deliveries = self._early_delivery(name for names in self._by_level for name in names)
        with deliveries.delivering():
            self._begin_at(self._bounds.ends(inputs), letters)
            self._run_until_idle(records, deliveries)
        outcome = self.outcome(len(records))
        outcome.schedules.extend(starmap(scheduled_of, deliveries.pending()))
        return outcome

    def _made_topics(self, records: Sequence[ProducerRecord] = ()) -> tuple[list[Partition], list[Partition]]:
        """Create the worker's missing topics. Returns the partitions of its inputs and of its dead-letter topic."""
        names = [name for names in self._by_level for name in names]
        self._check_topics(records, names)
        inputs = self._made([name for name in names if not name.startswith("^")])
        letters = self._made([self._worker.options.dead_letter_topic] if self._worker.options.dead_letter_topic else [])
        self._made([name for name in self._worker.produces if not name.endswith("*")])
        self._bounds = LogBounds(self._settings)  # not created earlier, because an older client lacks the new topics
        return inputs, letters

    def outcome(self, records: int = 0) -> WorkerRun:
        """Return the outcome of the run, or raise its error. `records` is the number of records that were stored."""
        if self._error:
            raise self._error
        if self._is_late:
            raise self._not_idle(records)
        ends = self._bounds.ends(list(self._letters_begin))
        read = read_between(self._settings, self._letters_begin, ends)
        self._outcome.dead_letters.extend(map(dead_letter_of, read))
        return self._outcome

    # Together with other runs

    def start(self, position: Callable[[Partition], int]) -> None:
        """Start a thread that handles the records from these positions on. Returns once partitions are assigned."""
        inputs, letters = self._made_topics()
        self._begin_at({each: position(each) for each in inputs}, letters)
        self._thread = threading.Thread(target=self._run_beside, name="headway-test-worker", daemon=True)
        self._thread.start()
        self._wait_until_assigned()
        self._quiet_since = time.monotonic()

    def _run_beside(self) -> None:
        try:
            self._worker.run(self._consumer, self._watched())
        except Exception as error:
            self._error = self._error or error
        finally:
            self._has_ended.set()

    @property
    def has_ended(self) -> bool:
        """True if the run has ended, either by itself or because it took too long."""
        return self._has_ended.is_set() or self._is_late

    def done_when_idle(self) -> int | None:
        """Return the number of done records if the worker is idle, and otherwise None."""
        return self._done if self._is_idle(0) else None

    def end(self) -> None:
        """Stop the run if it was started."""
        if self._thread is None:
            return
        self._consumer.stop(drain=not self._is_late and self._error is None)
        self._thread.join()
        self._consumer.close(drain=False)

    def _check_topics(self, records: Iterable[ProducerRecord], read: Collection[str]) -> None:
        """Raise `ConfigError` if the worker does not read a record's topic. The run would wait for that record."""
        for record in records:
            kafka_topic = record.topic if self._stores_as_named else level_topic(record.topic, record.level or 0)
            if not any(matches(topic, kafka_topic) for topic in read):
                raise ConfigError(
                    f"The worker {called(self._worker.handler)} does not read {kafka_topic}, only {', '.join(read)}. "
                    "Give records for these topics only."
                )

    @property
    def _stores_as_named(self) -> bool:
        return self._worker.levels is None or isinstance(self._worker.topics, Mapping)

    def _early_delivery(self, topics: Iterable[str]) -> EarlyDelivery:
        name = None if self._is_mock else self._worker.config.get("scheduler.name", DEFAULT_SCHEDULER)
        return EarlyDelivery(self._settings, name, topics, self._advance, self._timeout)

    def _run_until_idle(self, records: Sequence[ProducerRecord], deliveries: EarlyDelivery) -> None:
        # The worker runs in the test's own thread, so that its callbacks can use objects that belong to this thread.
        stopping = threading.Thread(
            target=self._store_and_stop, args=[records, deliveries], name="headway-test-run", daemon=True
        )
        stopping.start()
        try:
            self._worker.run(self._consumer, self._watched())
        finally:
            self._has_ended.set()
            self._consumer.close(drain=False)
            stopping.join()

    def _made(self, topics: Sequence[str]) -> list[Partition]:
        """Create the topics that do not exist yet. Returns the partitions of all given topics."""
        admin = Admin(self._settings)
        seen = admin.topics(named=topics).seen
        if missing := [topic for topic in topics if topic not in seen]:
            admin.create(missing, self._partitions)
            seen = admin.topics(named=topics).seen
        return [(topic, number) for topic in topics for number in range(seen.get(topic, self._partitions))]

    def _begin_at(self, begin: dict[Partition, int], letters: Sequence[Partition]) -> None:
        """Create a consumer that starts at these offsets. Dead letters that are already stored will be ignored.

        The offsets are committed for the worker's group and, if it has levels, for the groups of the levels.
        """
        self._begin, self._letters_begin = begin, self._bounds.ends(letters)
        groups = {self._worker.group: [topic for topics in self._by_level for topic in topics]}
        if self._worker.levels is not None:
            groups |= {
                level_group(self._worker.group, level): list(topics) for level, topics in enumerate(self._by_level)
            }
        for group, topics in groups.items():
            offsets = {place: offset for place, offset in begin.items() if offset and place[0] in topics}
            if offsets:
                commit_starts(self._settings, group, offsets)
        self._consumer = self._worker.consumer(self._settings)

    def _store(self, records: Sequence[ProducerRecord]) -> None:
        """Store the records, highest level first.

        Before the records of the next level are stored, the worker must have fetched those of the last level.
        """
        count = 0
        levels = {} if self._stores_as_named else {"levels": self._worker.levels}
        with Producer({**self._settings, **levels}) as producer:
            for _, of_level in groupby(sorted(records, key=_level, reverse=True), _level):
                sent = [(record.due is None, producer.send(record)) for record in of_level]
                for _, stored in sent:
                    stored.result(self._timeout)
                count += sum(is_now for is_now, _ in sent)
                self._wait_until_fetched(count)

    # The handler

    def _watched(self) -> Callable[..., Any]:
        handler = self._worker.call

        def handle(record: Any, context: Any) -> Any:
            try:
                returned = handler(record, context)
            except BaseException as error:
                self._note(record, context, None, error)
                raise
            self._note(record, context, returned, None)
            return returned

        async def handle_async(record: Any, context: Any) -> Any:
            try:
                returned = await handler(record, context)
            except BaseException as error:
                self._note(record, context, None, error)
                raise
            self._note(record, context, returned, None)
            return returned

        handle.__qualname__ = handle_async.__qualname__ = called(self._worker.handler)  # the name for error messages
        return handle_async if is_coroutine_function(handler) else handle

    def _note(self, record: Any, context: Any, returned: Any, error: BaseException | None) -> None:
        in_batches = self._worker.batches is not None
        records, contexts = (list(record), list(context)) if in_batches else ([record], [context])
        attempt = max(each.attempt for each in contexts)
        wait = None
        if error is not None and not in_batches:
            verdict = self._retries.decide(record, attempt, error, now=0.0, random_number=0.0)
            wait = verdict.at if isinstance(verdict, Again) else None
        self._outcome.calls.append(HandlerCall(records, attempt, returned, error, wait))
        if error is not None and attempt >= _MOST_ATTEMPTS and self._retries_forever:
            self.give_up()
        if self._is_mock and (what := _needs_delay(returned, error)):
            self._error = ConfigError(_MOCK_HAS_NO_DELAY.format(what))
            self._consumer.stop(drain=False)
            raise RetriableError(str(self._error))

    def _note_output(self, input: Any, output: ProducerRecord, metadata: Any) -> None:
        self._outcome.outputs.append(output)
        if self._declared.on_output:
            self._declared.on_output(input, output, metadata)

    # The end of the run

    def give_up(self) -> None:
        """Stop a run that did not become idle in time."""
        self._is_late = True
        self._has_ended.set()
        self._consumer.stop(drain=False)

    def _store_and_stop(self, records: Sequence[ProducerRecord], deliveries: EarlyDelivery) -> None:
        """Store the records once the worker has its partitions, and stop the worker once it is idle."""
        try:
            self._wait_until_assigned()
            self._store(records)
            count = sum(record.due is None for record in records)
            self._wait_until_idle(count)
            while not self.has_ended and (came := self._deliver_next(deliveries)):
                count += came
                self._wait_until_idle(count)
        except Exception as error:  # an error from Kafka must also stop the worker, so it is kept and raised later
            self._error = self._error or error
        finally:
            self._consumer.stop(drain=not self._is_late and self._error is None)

    def _deliver_next(self, deliveries: EarlyDelivery) -> int:
        """Advance the clock to the next due time, if `advance` permits that. Returns how many records are delivered."""
        if not self._advance:
            return 0
        if came := deliveries.deliver_next():
            return came
        self._has_ended.wait(_QUIET)  # try again, because a new schedule might not have been seen yet
        return deliveries.deliver_next()

    def _wait_until_fetched(self, count: int) -> None:
        """Wait until the worker has fetched this many records, or fetches no more because its buffer is full."""
        fetched, since = 0, time.monotonic()
        while fetched < count and not self._has_ended.wait(_LOOK_EVERY):
            counts, now = self._consumer.metrics(), time.monotonic()
            if counts.done + counts.remaining > fetched:
                fetched, since = counts.done + counts.remaining, now
            if now - since > (_QUIET if fetched else self._timeout):
                return

    def _wait_until_assigned(self) -> None:
        self._wait_until(lambda: len(self._consumer.assignment()) >= len(self._begin))

    def _wait_until_idle(self, count: int) -> None:
        self._quiet_since = time.monotonic()
        self._wait_until(lambda: self._is_idle(count))

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        """Wait until `is_done` returns True or the run has ended. After the timeout the run is marked as late."""
        deadline = time.monotonic() + self._timeout
        while not self._has_ended.wait(_LOOK_EVERY) and not is_done():
            if time.monotonic() > deadline:
                self._is_late = True
                return

    def _is_idle(self, count: int) -> bool:
        """Return whether all stored records are done, and they are at least `count`."""
        counts, now = self._consumer.metrics(), time.monotonic()
        if counts.done != self._done or counts.remaining:
            self._done, self._quiet_since = counts.done, now
        if self._done < count or counts.remaining:
            return False
        self.idle_at = self._bounds.ends(list(self._begin))
        stored = sum(self.idle_at.values()) - sum(self._begin.values())
        return (stored <= self._done and not self._reads_its_outputs()) or now - self._quiet_since > self._quiet

    def _reads_its_outputs(self) -> bool:
        """Return whether the worker may write to topics that it reads, so that new records can arrive after a pause."""
        return any(
            fnmatchcase(topic, produced) if produced.endswith("*") else topic == produced
            for topic, _ in self._begin
            for produced in self._worker.produces
        )

    def _not_idle(self, count: int) -> TimeoutError:
        counts = self._consumer.metrics()
        last = next((call for call in reversed(self._outcome.calls) if call.error), None)
        error = f" The last error was {last.error!r}." if last else ""
        gave_up = self._retries_forever and last is not None and last.attempt >= _MOST_ATTEMPTS
        when = f"after {_MOST_ATTEMPTS} attempts at one record" if gave_up else f"within {self._timeout:g} s"
        return TimeoutError(
            f"The worker {called(self._worker.handler)} was not idle {when}: {counts.done} records are done, {count} "
            f"were stored, and {counts.failed} attempts failed.{error}"
        )


def _without_waits(given: Retries) -> Retries:
    return _AtOnce(given.backoff, given.max_attempts, given.fatal, given.delay, given.by_exception, given.share)


def _config_of(declared: Worker) -> Config:
    """Return the declared settings, with one group for all levels unless something else is declared.

    With a group for each level, the groups would be joined one after another. In that case, records of the first group
    could be handled before records of higher levels.
    """
    config = {key: value for key, value in declared.config.items() if key not in _LEFT_OUT}
    if declared.levels is None or any(topic.startswith("^") for topic in declared.topics):
        return config
    return {"group.per.level": False} | config


def _level(record: ProducerRecord) -> int:
    return record.level or 0


def _needs_delay(returned: Any, error: BaseException | None) -> str | None:
    if isinstance(error, RetryLater):
        return "RetryLater in the handler"
    outputs = returned if isinstance(returned, list | tuple) else [returned]
    is_due = any(isinstance(each, ProducerRecord) and each.due is not None for each in outputs)
    return "an output with due= in the handler" if is_due else None
