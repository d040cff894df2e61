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
from headway.testing.outcome import Call, WorkerRun, dead_letter_of, scheduled_of
from headway.testing.stand_ins import declaration_of
from headway.workers.worker import Worker

_LOOK_EVERY = 0.01  # seconds
_MOST_ATTEMPTS = 100  # at one record, which would be retried forever without waits
_QUIET = 0.5  # seconds without a new record, if the worker's topics hold more records than were sent here
_QUIET_TOGETHER = 2.0  # the same for several workers, where one may send another its only record
_MOCK_HAS_NO_DELAY = (
    "The mock cluster has no delayed delivery, which {0} needs. Use the fixture headway_broker for this test."
)

_LEFT_OUT = {  # settings of the declaration that the run replaces
    "group.instance.id",  # the group is new
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

    It runs in this process, with its topics, value, order, retries, dead letter topic, outputs and lifespan. It has a
    consumer group of its own, and sees only records stored from now on. `executor="process"` runs on threads, because
    calls in other processes could not be observed here. Other settings that the declaration leaves out have their
    defaults.

    Args:
        worker: A handler declared with `@worker`.
        settings: Where Kafka is. Use a test broker or the mock only, because outputs and dead letters are stored.
        records: The records to store first. Value and key are text or bytes. Objects must be turned into bytes first,
            because the worker's serialisers are not used.
        partitions: The number of partitions for topics that do not exist yet and are created.
        timeout: How many seconds the worker has to become idle.
        skip_waits: Retry failed records at once, and note the declared wait in the call.
        advance: How many seconds to advance the clock of due times. When the worker is idle, the clock jumps to the
            next time at which a record for one of its topics is due, and a relay delivers it. So the order of due times
            is kept, even for records scheduled after a jump. Schedules from before the run, such as those of the
            service under test, are delivered too, unless an earlier run left them behind. Nothing else is faster:
            `time_limit`, `rate_limit` and expiry take their usual time, and the handler's own clock goes on as usual.

    Raises:
        TimeoutError: The worker is not idle in time. It ends sooner if a record that would be retried forever, without
            waits, has failed a hundred times.
        HandlerError: A record failed for good, and the worker has no `dead_letter_topic`.
        ConfigError: The function is not a worker, the mock cannot do what it needs, or a record has a due time and
            `advance` is 0.
        Exception: Anything else that ends the worker's run, such as `LifespanError`.
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
    """Run workers at the same time until all are idle. Returns, for each, what it did and how far it has read.

    `positions` returns where a worker starts in a partition. Runs with the same `name` share a group, so attempts are
    counted on from one to the next. Raises the errors of `run_until_idle`.
    """
    runs = [_ObservedRun(each, settings, partitions, timeout, skip_waits, 0.0, name) for each in workers]
    try:
        for run, declared in zip(runs, workers, strict=True):
            run.start(partial(positions, declared))
        deadline, before = time.monotonic() + timeout, None
        while not any(run.has_ended for run in runs):
            # That each was idle at some time is not enough: one worker may have sent records to another after that was
            # checked. So check twice that nothing was done in between.
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
    """One run of a worker in a consumer group of its own, and everything that it has done so far."""

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
        self._retries_forever = skip_waits and self._retries.max_attempts is None
        self._outcome = WorkerRun()
        self._error: Exception | None = None  # the error that ended the run
        self._is_late = False
        self._has_ended = threading.Event()
        self._quiet = _QUIET if name is None else _QUIET_TOGETHER
        self._done = -1
        self._quiet_since = 0.0
        self._bounds: LogBounds
        self._begin: dict[Partition, int] = {}
        self._letters_begin: dict[Partition, int] = {}
        self.idle_at: dict[Partition, int] = {}
        """The log ends of its partitions when it was last idle."""
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
                "A record with due= is delivered later. Leave out due to store it now, or set advance= to the number "
                "of seconds to advance the clock."
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
        """Create the worker's missing topics. Returns the partitions of its inputs and of its dead letters."""
        names = [name for names in self._by_level for name in names]
        self._check_topics(records, names)
        inputs = self._made([name for name in names if not name.startswith("^")])
        letters = self._made([self._worker.options.dead_letter_topic] if self._worker.options.dead_letter_topic else [])
        self._made([name for name in self._worker.produces if not name.endswith("*")])
        self._bounds = LogBounds(self._settings)  # not before: an older client would not know the new topics yet
        return inputs, letters

    def outcome(self, records: int = 0) -> WorkerRun:
        """Return the outcome of the run, or raise its error. `records` is how many records were stored."""
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
        """Start to handle, in a thread, the records from these positions on. Returns once partitions are assigned."""
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
        """True if the run has ended by itself or was abandoned."""
        return self._has_ended.is_set() or self._is_late

    def done_when_idle(self) -> int | None:
        """Return how many records are done if all stored ones are, and otherwise None."""
        return self._done if self._is_idle(0) else None

    def end(self) -> None:
        """Stop the run if it was started."""
        if self._thread is None:
            return
        self._consumer.stop(drain=not self._is_late and self._error is None)
        self._thread.join()
        self._consumer.close(drain=False)

    def _check_topics(self, records: Iterable[ProducerRecord], read: Collection[str]) -> None:
        """Raise `ConfigError` for a record of a topic that the worker does not read: the run would wait for it."""
        for record in records:
            kafka_topic = record.topic if self._stores_as_named else level_topic(record.topic, record.level or 0)
            if not any(matches(topic, kafka_topic) for topic in read):
                raise ConfigError(
                    f"The worker {called(self._worker.handler)} does not read {kafka_topic}, only {', '.join(read)}. "
                    "Give records for one of these."
                )

    @property
    def _stores_as_named(self) -> bool:
        return self._worker.levels is None or isinstance(self._worker.topics, Mapping)

    def _early_delivery(self, topics: Iterable[str]) -> EarlyDelivery:
        name = None if self._is_mock else self._worker.config.get("scheduler.name", DEFAULT_SCHEDULER)
        return EarlyDelivery(self._settings, name, topics, self._advance, self._timeout)

    def _run_until_idle(self, records: Sequence[ProducerRecord], deliveries: EarlyDelivery) -> None:
        # The worker runs in this thread, so that its callbacks can use objects that belong to the test's thread.
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
        """Create missing topics. Returns the partitions of all of them."""
        admin = Admin(self._settings)
        seen = admin.topics(named=topics).seen
        if missing := [topic for topic in topics if topic not in seen]:
            admin.create(missing, self._partitions)
            seen = admin.topics(named=topics).seen
        return [(topic, number) for topic in topics for number in range(seen.get(topic, self._partitions))]

    def _begin_at(self, begin: dict[Partition, int], letters: Sequence[Partition]) -> None:
        """Create the consumer, which starts at these offsets, and ignore the dead letters that are already stored.

        The offsets are committed for one group, or for the group of each level.
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
        """Store the records, highest level first. The next level is stored once the worker has fetched the last one."""
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

        handle.__qualname__ = handle_async.__qualname__ = called(self._worker.handler)  # errors show this name
        return handle_async if is_coroutine_function(handler) else handle

    def _note(self, record: Any, context: Any, returned: Any, error: BaseException | None) -> None:
        in_batches = self._worker.batches is not None
        records, contexts = (list(record), list(context)) if in_batches else ([record], [context])
        attempt = max(each.attempt for each in contexts)
        wait = None
        if error is not None and not in_batches:
            verdict = self._retries.decide(record, attempt, error, now=0.0, random_number=0.0)
            wait = verdict.at if isinstance(verdict, Again) else None
        self._outcome.calls.append(Call(records, attempt, returned, error, wait))
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

    # The end

    def give_up(self) -> None:
        """End a run that is not idle in time."""
        self._is_late = True
        self._has_ended.set()
        self._consumer.stop(drain=False)

    def _store_and_stop(self, records: Sequence[ProducerRecord], deliveries: EarlyDelivery) -> None:
        """Store the records once the worker is ready for them, and stop it once it is idle."""
        try:
            self._wait_until_assigned()
            self._store(records)
            count = sum(record.due is None for record in records)
            self._wait_until_idle(count)
            while not self.has_ended and (came := self._deliver_next(deliveries)):
                count += came
                self._wait_until_idle(count)
        except Exception as error:  # an error from Kafka: without this, nothing would stop the run
            self._error = self._error or error
        finally:
            self._consumer.stop(drain=not self._is_late and self._error is None)

    def _deliver_next(self, deliveries: EarlyDelivery) -> int:
        """Advance the clock to the next due time. Returns how many records arrive."""
        if not self._advance:
            return 0
        if came := deliveries.deliver_next():
            return came
        self._has_ended.wait(_QUIET)  # a schedule may be on its way to Kafka, or with the relay
        return deliveries.deliver_next()

    def _wait_until_fetched(self, count: int) -> None:
        """Wait until the worker has this many records, or accepts no more because its buffer is full."""
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
        """Wait until the condition holds or the run has ended. If that takes too long, the run is late."""
        deadline = time.monotonic() + self._timeout
        while not self._has_ended.wait(_LOOK_EVERY) and not is_done():
            if time.monotonic() > deadline:
                self._is_late = True
                return

    def _is_idle(self, count: int) -> bool:
        """Return whether everything stored is done, and at least this many records are."""
        counts, now = self._consumer.metrics(), time.monotonic()
        if counts.done != self._done or counts.remaining:
            self._done, self._quiet_since = counts.done, now
        if self._done < count or counts.remaining:
            return False
        self.idle_at = self._bounds.ends(list(self._begin))
        stored = sum(self.idle_at.values()) - sum(self._begin.values())
        return (stored <= self._done and not self._reads_its_outputs()) or now - self._quiet_since > self._quiet

    def _reads_its_outputs(self) -> bool:
        """Return whether outputs can also be inputs, which arrive shortly after their record is done."""
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
    """Return the declared settings for a new group, which reads all levels itself unless declared otherwise.

    If each level had a group, these would join one after another, and the records of the first would be handled before
    those of higher levels.
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
