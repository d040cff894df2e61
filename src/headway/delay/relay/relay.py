"""The relay: a process that moves records between delay topics, and delivers records that are due.

Any number of relays share the work as one consumer group. `PartitionRelay` in `core/delay` makes all decisions for a
partition number. This module passes records to the `PartitionRelay`s and carries out their decisions. After an
assignment of partitions or a failure, the relay starts again from the stored state.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from headway.core.delay.broker_clock import BrokerClock
from headway.core.delay.partition_relay import PartitionRelay
from headway.declarations import check_above_zero, check_whole
from headway.delay.relay.delay_topic_fitter import MOST_DELAY_TOPICS, RETIRE_AFTER, DelayTopicFitter, FitMode
from headway.delay.relay.delay_topics_in_use import DelayTopicsInUse
from headway.delay.relay.deletions import Deletions
from headway.delay.relay.exactly_once import ExactlyOnce
from headway.delay.relay.low_latency import LowLatency
from headway.delay.relay.output import Mode, RelayOutput, RelayParts, Ticks
from headway.delay.relay.partition_relays import PartitionRelays, counts_of
from headway.delay.relay.permissions import LostPermissions, permissions_to_work, require_permissions
from headway.delay.relay.predecessors import Predecessors
from headway.delay.relay.producers import producer_settings
from headway.delay.relay.relay_samples import RelaySamples
from headway.delay.relay.restarts import Restarts
from headway.delay.relay.round_timing import RoundTiming
from headway.delay.relay.search import Searcher
from headway.delay.relay.topic_watch import TopicWatch
from headway.delay.relay.unknown_zones import UnknownZones
from headway.delay.topic_names import DEFAULT_NAME, TopicNames
from headway.errors import AuthenticationError, AuthorizationError, ClosedError, ConfigError, KafkaError
from headway.kafka.binding.factory import both
from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.kafka.consumer.relay_consumer import RelayConsumer
from headway.kafka.missing_permissions import is_of_the_group, lacks_a_permission
from headway.kafka.reading.compacted import TopicReader
from headway.metrics.health import CheckHealth, Health
from headway.metrics.samples import Measure
from headway.runtime.deferred_signals import allow_signals
from headway.runtime.end_steps import EndSteps, construction
from headway.runtime.flag import Flag
from headway.runtime.gc_pause import GcPause
from headway.runtime.lifecycle import Closable
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config, check_settings
from headway.settings.connection_settings import PRODUCERS_OWN, connection_of
from headway.tracing.tracing import Tracing, checked_spans

log = logging.getLogger(__name__)

_RECORDS_PER_ROUND = 5000  # the maximum number of records that are fetched, or moved for each partition, in one round
_BYTES_PER_ROUND = 4 * 2**20
_ROUND_EVERY = 1.0  # the longest wait between two rounds, in seconds
_LEAST_MEMORY = 65_536  # the minimum memory for each partition, in bytes; with 0, no record would be read
_FIND_DELAY_TOPICS_AGAIN_AFTER = 2.0  # how soon missing delay topics are searched for again, in seconds
_COMMITTED_KNOWN_WITHIN = 10.0  # the time limit for reading committed offsets, in seconds
_CHECK_EVERY = 0.5  # the time between two checks for the scheduler's topics, in seconds


class Relay(Closable):
    """Delivers delayed records until it is stopped. Use the relay in a `with` block, which closes it.

    >>> with Relay({"bootstrap.servers": "localhost:9092"}) as relay:  # doctest: +SKIP
    ...     relay.run()

    To run a relay in a program that also does other work:

    >>> with Relay({"bootstrap.servers": "localhost:9092"}).running():  # doctest: +SKIP
    ...     serve_requests()

    Args:
        config: librdkafka's settings. `group.id` defaults to the scheduler's name.
        name: The scheduler's name, as given to `Scheduler`.
        mode: "exactly-once" delivers in transactions, so that consumers with `read_committed` read each record once
            even after failures. "low-latency" delivers some milliseconds sooner, but repeats the latest deliveries
            after a crash.
        memory: The maximum size of the records that wait in memory, in bytes, however many records are pending. Each
            partition gets at least 64 KiB.
        fit: "auto" adapts the delay topics to the delays in use: delay topics that pay off are added, and delay topics
            that have not been used for a long time are deleted. "report" only logs which delay topics would be better.
            All relays of a scheduler must have the same value.
        max_delay_topics: The maximum number of delay topics. No delay topic is created if more than this many would
            then exist.
        retire_after: A delay topic is retired when no record has been written to it for this many seconds.
        tracing: A `Tracing` to make a span of the time that each delivered record has waited.

    If the scheduler has no topics yet, `run` waits until a `Scheduler` or `headway schedule init` creates them.
    """

    def __init__(
        self,
        config: Config,
        *,
        name: str = DEFAULT_NAME,
        mode: Mode = "exactly-once",
        memory: int = 256 * 2**20,
        fit: FitMode = "off",
        max_delay_topics: int = MOST_DELAY_TOPICS,
        retire_after: float = RETIRE_AFTER,
        tracing: Tracing | None = None,
    ) -> None:
        if mode not in ("exactly-once", "low-latency"):
            raise ConfigError(f"The mode is {mode!r}; it must be 'exactly-once' or 'low-latency'.")
        check_settings(config)
        check_whole("memory", memory, 1, " bytes")
        self._spans = checked_spans(tracing)
        self._names = names = TopicNames(name)
        self._connection = connection_of(config)
        self._producer_config = producer_settings(config)
        self._fitter = DelayTopicFitter(self._connection, names, fit, max_delay_topics, retire_after)
        self._mode: Mode = mode
        self._memory = memory
        self._wake = wake = Wakeup()
        self._clock = BrokerClock()
        self._stopping = Flag()
        self._closed = self._is_forked = False
        self._restarts = Restarts()
        self._round_at: float | None = None  # when the last round began, in monotonic time; None before the first
        self.counts: Counter[str] = Counter()
        consumer_config = {"group.id": name} | {key: each for key, each in config.items() if key not in PRODUCERS_OWN}
        self._lost = LostPermissions(self._producer_config, names, str(consumer_config["group.id"]))
        self._has_worked = False
        self._group = str(consumer_config["group.id"])
        self._client_name = str(config.get("client.id") or "headway")
        self._samples: RelaySamples | None = None
        self._searcher = Searcher(self._connection, names, wake)
        self._relays = PartitionRelays(names, self._searcher, self._fitter)
        self._timing = RoundTiming(self._clock, self._relays, wake)
        self._watch = TopicWatch(self._connection, names, wake)
        self._unknown_zones = UnknownZones()
        self._output: RelayOutput | None = None
        with construction(self.close):
            register_for_forks(self)
            self._reader, self._consumer = both(
                partial(TopicReader, self._connection), partial(RelayConsumer, consumer_config, wake)
            )
            clients = self._consumer, self._reader, self._searcher, self._watch, self._fitter, wake
            self._steps_to_end = EndSteps(lambda: [self._release, *(each.close for each in clients)])
            self._in_use = DelayTopicsInUse(self._reader, names)
            self._predecessors = Predecessors(
                self._reader, names, self._in_use, self._producer_config, self._stopping.is_set
            )
            self._deletions = Deletions(self._reader, self._connection)
            try:
                with allow_signals():  # the brokers might take a long time to answer
                    self._in_use.begin()
            except BaseException:
                self.close()
                raise

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run until `stop` is called, or `until()` returns true.

        Raises:
            AuthenticationError: The brokers no longer accept the relay's credentials.
            AuthorizationError: A permission is missing at the start. If a permission is revoked later, the relay waits
                until the permission is granted again. During the wait, `refused` names the permission, a warning is
                logged from time to time, and other relays can take over the partitions.
            ClosedError: The relay is closed.
        """
        self._check_open()
        if not await_topics(self._in_use.begin, lambda: self._stopping.is_set() or until(), self._names, self._wake):
            return
        require_permissions(self._reader.admin, self._names, self._in_use.delay_topics, self._connection)
        self._subscribe()
        while not self._stopping.is_set() and not until():
            self._round_at = time.monotonic()
            self._consumer.check()
            try:
                if not self._round():
                    self._wait()
            except AuthenticationError as error:  # raised by a client other than the consumer, such as a new producer
                self._restarts.raise_if_lasting(error)
                self._restart(error)
            except KafkaError as error:
                if lacks_a_permission(error):
                    self._stand_back(self._lost.explain(error))
                else:
                    self._restart(error)
            if self._samples:
                self._samples.look(self._round_at, self._timing.now)
        self._store_rest()
        if self._samples:
            self._samples.look(self._round_at or 0.0, self._timing.now, at_end=True)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Run in a thread during a `with` block.

        At the end of the block, finish the work in progress and close the relay.

        An error that ends the thread early is logged at once, and raised at the end of the block.
        """
        self._check_open()
        with self, ThreadPoolExecutor(1, "headway-relay") as thread:
            ended = thread.submit(self.run)
            ended.add_done_callback(_log_failure)
            try:
                yield self
            finally:
                self.stop()
            if not self._is_forked:  # a forked process has no copy of the thread
                ended.result()

    def stop(self) -> None:
        """Make `run` return soon. Any thread or signal handler can call this."""
        if self._is_forked:
            return
        self._stopping.set()
        self._wake.set()

    @property
    def partitions(self) -> list[int]:
        """The partition numbers for which this relay is responsible now."""
        return self._relays.numbers

    @property
    def ready(self) -> bool:
        """True if the relay delivers due records. For this, it must have partitions and know the brokers' time."""
        return bool(self._relays.numbers) and self._clock.is_set

    @property
    def refused(self) -> str | None:
        """The missing permission that the relay waits for, and how to grant it. None if no permission is missing."""
        return self._lost.reason

    @property
    def held(self) -> int:
        """The number of records that wait in memory."""
        return self._relays.held

    def measure(self) -> Measure:
        """Measure this relay from now on, and return a function that returns its samples.

        `METRICS` in `headway.metrics` describes the samples. The state of the delay topics is read between two rounds,
        at most twice a second, without a request to Kafka. Any thread can call the function, also after the relay was
        closed, and it then returns the last totals. Further calls return the same function.
        """
        self._check_open()
        if self._samples is None:
            self._samples = RelaySamples(
                self._group,
                self._names,
                self.counts,
                self._relays,
                self._consumer.known_end,
                lambda: self.refused is not None,
                lambda: self._consumer.statistics.samples(self._client_name),
            )
        return self._samples.samples

    def watch_health(self, stalls_after: float = 300.0) -> CheckHealth:
        """Return a function that returns the relay's `Health`. Any thread can call it.

        A relay that has not completed a round for `stalls_after` seconds is not live. By default this is longer than
        any request to Kafka takes, so that missing brokers alone do not make a relay not live.
        """
        check_above_zero("stalls_after", stalls_after)
        return lambda: Health(tuple(self._why_not_live(stalls_after)), tuple(self._why_not_ready()))

    def _why_not_live(self, stalls_after: float) -> Iterator[str]:
        if self._round_at is not None and not self._stopping.is_set():
            seconds = time.monotonic() - self._round_at
            if seconds > stalls_after:
                yield f"The relay has not completed a round for {seconds:.0f} s, so nothing is delivered."

    def _why_not_ready(self) -> Iterator[str]:
        if self._stopping.is_set() or self._closed:
            yield "The relay is stopping or has ended."
        elif self._round_at is None:
            yield "The relay has not started yet, or its topics do not exist yet."
        elif self.refused:
            yield self.refused
        elif self._restarts.is_pending:
            yield "The relay waits to start again after an error, which its log names."
        elif not self._clock.is_set and self._relays.numbers:
            yield "The relay does not know the brokers' time yet."

    def close(self) -> None:
        """Finish the work in progress, and leave the group. In a forked process, this call does nothing."""
        if self._is_forked:
            return
        self._closed = True
        self._steps_to_end.take()

    def forked(self) -> None:
        """Make this copy of the relay unusable, because its threads do not exist in a forked process."""
        self._closed = self._is_forked = True

    def _check_open(self) -> None:
        if self._is_forked:
            raise made_before_fork("relay")
        if self._closed:
            raise ClosedError("The relay is closed. Create a new one.")

    # The topics

    def _subscribe(self) -> None:
        # Subscribe to the commands only, so that a new or deleted delay topic does not cause a rebalance.
        self._consumer.subscribe([self._names.commands], before_leaving=self._store_rest)

    def _change_delay_topics(self) -> None:
        """Switch to the delay topics that were put into use."""
        if self._in_use.update():
            self._store_rest()
            self._forget(0)

    # Permissions

    def _stand_back(self, error: KafkaError) -> None:
        """Leave the partitions to relays that might have the missing permission, and wait for the permission.

        Raises the error if this relay has never had partitions.
        """
        if not self._has_worked:
            raise error
        self._lost.wait_for(permissions_to_work(self._names, self._in_use.delay_topics), str(error))
        self._forget(0)
        if not is_of_the_group(error):  # without permission for the group, the relay cannot leave the group either
            self._consumer.leave()

    def _come_back(self) -> None:
        """If the missing permissions are granted again, resume work."""
        if self._lost.are_granted():
            self._subscribe()
            self._consumer.refusal = None
            self._restarts.plan(0)

    # Assigned and revoked partitions

    def _store_rest(self) -> None:
        """Store all progress, before this or another relay starts from the stored state."""
        # Without partitions, the brokers' time might be unknown.
        ticks = self._relays.unstored(self._timing.now()) if self._relays else {}
        try:
            if self._output:
                if ticks:
                    self._output.carry_out(ticks, self._relays.offsets(ticks), self._timing.now())
                self._output.finish()
        except KafkaError as error:
            log.warning("The latest progress was not stored: %s", error)
            self._forget(0)

    def _restart(self, error: KafkaError) -> None:
        """Start again from the stored state, after a pause that grows with each failure.

        If the relay was expelled from its group, it joins the group again.
        """
        again_after = self._restarts.failed()
        log.warning("The relay starts again from its stored state in %.2g s: %s", again_after, error)
        self._reader.renew()
        self._forget(again_after)
        if self._restarts.is_expelled(error):
            log.warning("The relay was expelled from its group and is joining it again.")
            self._consumer.rejoin()

    def _forget(self, again_after: float) -> None:
        """Drop all partitions, and start again from the stored state after this many seconds."""
        self._consumer.begin({})
        self._restarts.plan(again_after)
        try:
            self._release()
        except KafkaError as error:
            log.debug("The work in progress is abandoned: %s", error)

    def _release(self) -> None:
        """Drop all partitions, and close the output."""
        self._relays.clear()
        try:
            if self._output:
                self._output.close()
        except KafkaError:
            self._output = None
            raise
        # Set only now, so that `close` can call this method again if an interrupt ended the closing of the output.
        self._output = None

    def _take_over(self) -> None:
        """Read the stored state of the partitions that are assigned now, and start from this state."""
        self._restarts.begun()
        self._consumer.rebalanced = False
        numbers = self._in_use.owned(self._consumer.assigned)
        if not numbers or (topics := self._find_topics()) is None:
            self._consumer.begin({(self._names.ladder, 0): 0})
            if numbers:
                self._restarts.plan(_FIND_DELAY_TOPICS_AGAIN_AFTER)
            return
        stored = self._predecessors.stored(numbers)
        self._report_lost_state([number for number in numbers if not stored[number]])
        memory = max(_LEAST_MEMORY, self._memory // len(numbers))
        ladder, ends = self._in_use.usable, self._predecessors.ends(numbers)
        delay_topics = self._in_use.delay_topics
        for number in numbers:
            relay = PartitionRelay(
                ladder, delay_topics, stored[number], memory, topics, ends[number], self._in_use.unread
            )
            for key, error in relay.unreadable.items():
                log.warning(
                    "In %s, partition %d, the record with the key %.100r is skipped: %s",
                    self._names.state,
                    number,
                    key,
                    error,
                )
            self._relays.add(number, relay, delay_topics)
        if self._output is None:
            kind = ExactlyOnce if self._mode == "exactly-once" else LowLatency
            self._output = kind(
                RelayParts(
                    *(self._producer_config, self._names, ladder, self._consumer, self._clock, self.counts),
                    self._spans,
                )
            )
        self._output.observe_clock(self._relays.commands_starts())
        self.counts["takeovers"] += len(numbers)
        starts = self._relays.begin()
        self._deletions.begin_from(starts)
        self._consumer.begin({**starts, (self._names.ladder, 0): 0})
        self._has_worked = True
        log.info("The relay has partitions %s of %s.", numbers, self._names.name)

    def _report_lost_state(self, numbers: Sequence[int]) -> None:
        """Log an error for partition numbers whose stored state was deleted.

        Committed offsets show that relays have handled these partition numbers, so their state must have been stored.
        """
        places = [(topic, number) for number in numbers for topic in self._in_use.state_keys]
        try:
            done = self._consumer.committed(places, _COMMITTED_KNOWN_WITHIN) if places else {}
        except KafkaError as error:
            log.info("Cannot find out whether stored state was deleted: %s", error)
            return
        if lost := sorted({number for (_, number), offset in done.items() if offset > 0}):
            log.error(
                "The topic %s has no state for the partitions %s, although relays have handled records in them, so "
                "the topic or its records must have been deleted. Schedules that are still in the delay topics are "
                "delivered again if they were already delivered, and at their original times if they were cancelled or "
                "rescheduled. Never delete this topic alone.",
                self._names.state,
                lost,
            )

    def _find_topics(self) -> dict[str, str] | None:
        """Look for the delay topics. Returns the ids of all topics, by the keys of their stored progress.

        Returns None while some delay topics are missing, or if topics were recreated. If topics were recreated, this
        member joins its group again before the relay starts.
        """
        if not self._in_use.refresh():
            return None
        keys, ids = self._in_use.state_keys, self._in_use.topic_ids()
        self._watch.expect(ids, self._in_use.unread_topics, time.monotonic())
        if self._in_use.were_recreated(ids):
            log.warning("Topics of %s were deleted and created again.", self._names.name)
            self._deletions.begin_again()
            self._consumer.renew()
            return None
        return {keys[topic]: id_ for topic, id_ in ids.items()}

    # A round of work

    def _round(self) -> bool:
        """Do one round of work. Returns whether there was anything to do."""
        # Without this pause, the garbage collector would repeatedly visit all records that wait in memory, which costs
        # up to 9 µs per record.
        with GcPause():
            messages = self._consumer.fetch(_RECORDS_PER_ROUND)
        if self._lost.reason:
            self._come_back()
            return False
        if refusal := self._consumer.refusal:
            raise refusal
        if self._consumer.rebalanced:
            self._forget(0)
        if self._restarts.is_pending:
            if self._restarts.due_in > 0:
                return False
            self._take_over()
            return True
        if self._in_use.is_outdated:
            self._change_delay_topics()
        if changed := self._watch.found(time.monotonic()):
            raise KafkaError(changed)
        if self._watch.has_new_delay_topics():
            self._in_use.is_outdated = True
        if not self._relays or self._output is None:
            self._receive(messages, 0)
            return False
        if self._timing.should_observe_clock(bool(messages)):
            self._output.observe_clock(self._relays.commands_starts())
        with GcPause():
            self._receive(messages, now := self._timing.now())
            self._relays.search(self._in_use.usable, now)
            self._fitter.examine_if_due(self._relays.numbers, self._in_use.usable, now)
            ticks = self._take(self._output, now)
        self._carry_out(self._output, ticks, now)
        self._output.serve()
        while self._output.written:
            self._relays.written(self._output.written.popleft(), self._timing.now())
        self._consumer.hold(self._relays.full())
        if self._deletions.is_due():
            self._deletions.delete_before(self._output.done)
        return bool(ticks or messages)

    def _receive(self, messages: list[Any], now: int) -> None:
        self.counts["read"] += len(messages)
        for message in self._relays.receive(messages, self._consumer.ends, self._in_use.usable, now):
            if message.topic() == self._names.ladder:
                self._in_use.note(message)
        self._consumer.ends.clear()

    def _take(self, output: RelayOutput, now: int) -> Ticks:
        """Return the decisions to carry out now, or none if the output cannot take more records."""
        if not self._may_send(output):
            return {}
        return self._relays.take(now, _RECORDS_PER_ROUND, _BYTES_PER_ROUND, output.wants_state)

    def _carry_out(self, output: RelayOutput, ticks: Ticks, now: int) -> None:
        if not ticks:
            return
        self._unknown_zones.report(ticks.values())
        output.carry_out(ticks, self._relays.offsets(ticks), now)
        self.counts.update(counts_of(ticks))
        if self._samples:
            self._samples.carried_out(ticks, self._timing.now())

    def _may_send(self, output: RelayOutput) -> bool:
        """Return whether more records can be sent.

        Records that no broker has acknowledged yet stay in the memory of this process, so they count towards its memory
        limit.
        """
        return output.under_way < max(_LEAST_MEMORY, self._memory // 2)

    def _wait(self) -> None:
        seconds = _ROUND_EVERY / 4 if self._lost.reason else _ROUND_EVERY
        if not self._lost.reason:
            seconds = min(seconds, self._restarts.due_in)
        if self._relays and self._output:
            seconds = min(seconds, self._output.serve())
            if self._may_send(self._output):
                seconds = min(seconds, self._timing.due_in())
        self._timing.wait(seconds)


def _log_failure(ended: Future[None]) -> None:
    if error := ended.exception():
        log.error("The relay has stopped and no longer delivers anything: %s", error)


def await_topics(
    are_there: Callable[[], bool], is_stopped: Callable[[], bool], names: TopicNames, wake: Wakeup
) -> bool:
    """Wait until the scheduler has topics, and log a warning if it has none.

    Returns False if the relay is stopped first.

    Raises `KafkaError`, as `are_there` does, if the credentials are refused, a permission is missing, or no broker has
    ever answered.
    """
    has_warned = False
    while not is_stopped():
        try:
            if are_there():
                return True
        except (AuthenticationError, AuthorizationError):
            raise
        except KafkaError as error:
            if not has_warned:  # the brokers have never answered, so the settings might be wrong
                raise
            log.debug("Cannot find out now whether the topics exist: %s", error)
        if not has_warned:
            has_warned = True
            log.warning(
                "The scheduler %s has no topics yet, so the relay waits for them. A Scheduler of this name creates "
                "them on first use, and so does `headway schedule init --name %s`.",
                names.name,
                names.name,
            )
        wake.wait(_CHECK_EVERY)
    return False
