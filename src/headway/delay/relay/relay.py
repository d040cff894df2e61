"""The relay: a process that moves records along the delay lines and delivers those that are due.

Any number of relays share the work as one consumer group. `PartitionRelay` in `core/delay` makes all decisions for a
partition number. This module feeds it and carries its decisions out. When partitions come or something fails, it begins
anew from what is stored.
"""

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from headway.config import Config, check_settings
from headway.connection_settings import PRODUCERS_OWN, connection_of
from headway.core.delay.broker_clock import BrokerClock
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.line_window import Fetched
from headway.core.delay.partition_relay import PartitionRelay
from headway.core.delay.relay_state import COMMANDS_KEY, MEMORY_KEY, line_key, stored_producers
from headway.core.delay.relay_tick import Tick
from headway.declarations import check_whole
from headway.delay.records import command_from, fetched_from
from headway.delay.relay.exactly_once import ExactlyOnce
from headway.delay.relay.low_latency import LowLatency
from headway.delay.relay.output import Mode, RelayOutput
from headway.delay.relay.producers import end_transactions, ids_begin_with
from headway.delay.relay.remade_topics import RemadeTopics
from headway.delay.relay.rights import LostRights, rights_to_delete, rights_to_work
from headway.delay.relay.search import Searcher
from headway.delay.topics import DEFAULT_NAME, TopicNames, ladder_from, layout_seen_by, usable
from headway.errors import AuthenticationError, AuthorizationError, ClosedError, ConfigError, KafkaError
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.connection import LET_IN_NO_MORE_AFTER
from headway.kafka.binding.factory import together
from headway.kafka.consumer.membership import Standing, standing
from headway.kafka.consumer.relay_consumer import NOT_DELETED, Deletion, RelayConsumer
from headway.kafka.missing_rights import is_of_the_group, lacks_a_right
from headway.kafka.reading.compacted import TopicReader
from headway.runtime.lifecycle import Closable
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

_AT_ONCE = 5000  # records fetched, and records moved of each partition, in one turn
_BYTES_AT_ONCE = 4 * 2**20
_LONGEST_WAIT = 1.0
_STALE_AFTER = 1.0  # seconds for which a step of the brokers' clock may go unseen,
_LOOK_EVERY = 15.0  # and the same while nothing comes and nothing is due
_PRECISELY = 0.001
_SOON = 1000  # milliseconds
_STATE_WITHIN = 75.0  # a relay that died may have left a transaction that the broker ends after a minute
_DECIDED_WITHIN = 3.0
_AGAIN_AFTER = 0.5
_LONGEST_BACK_OFF = 10.0
_FAILS_WITHIN = 20.0  # seconds; a failure that comes this long after the back-off is no longer in a row
_BEHIND_TIMES = 4  # failures in a row, of a member that is behind its group, before it joins again
_LOOK_AGAIN_AFTER = 0.1
_LOOK_FOR_LINES_AGAIN_AFTER = 2.0
_DELETE_EVERY = 10.0


class Relay(Closable):
    """A worker that moves delayed records until it is stopped; `with` closes it.

    >>> with Relay({"bootstrap.servers": "localhost:9092"}) as relay:  # doctest: +SKIP
    ...     relay.run()

    Beside the other work of a program:

    >>> with Relay({"bootstrap.servers": "localhost:9092"}).running():  # doctest: +SKIP
    ...     serve_requests()

    Args:
        config: Settings of librdkafka. `group.id` is by default the scheduler's name.
        name: The scheduler's name, as given to `Scheduler`.
        mode: "exactly-once" delivers in transactions, which `read_committed` consumers see once, whatever happens.
            "low-latency" delivers some milliseconds sooner; after a crash it repeats the last deliveries.
        memory: How many bytes of records may wait in memory, however many are pending.

    Raises `ConfigError` if the scheduler has no topics yet.
    """

    def __init__(
        self, config: Config, *, name: str = DEFAULT_NAME, mode: Mode = "exactly-once", memory: int = 256 * 2**20
    ) -> None:
        if mode not in ("exactly-once", "low-latency"):
            raise ConfigError(f"The mode is {mode!r}; it must be 'exactly-once' or 'low-latency'.")
        check_settings(config)
        check_whole("memory", memory, 1, " bytes")
        self._names = TopicNames(name)
        self._ladder_place: Partition = self._names.ladder, 0
        self._config = dict(config)
        self._connection = connection_of(config)
        self._mode: Mode = mode
        self._memory = memory
        self._wake = Wakeup()
        self._clock = BrokerClock()
        self._relays: dict[int, PartitionRelay] = {}
        self._places: dict[Partition, tuple[PartitionRelay, int | None]] = {}
        self._stopping = threading.Event()
        self._closed = False
        self._other_ladder = False
        self._look_again_after = _LOOK_AGAIN_AFTER
        self._topics: dict[str, str] = {}
        self._fetched_to: dict[Partition, int] = {}
        self._looked_at = self._deleted_at = time.monotonic()
        self._begin_at: float | None = None
        self._failures = 0  # in a row
        self._failed_at = -math.inf
        self._refused_since: float | None = None
        self.counts: Counter[str] = Counter()
        consumer = {key: value for key, value in config.items() if key not in PRODUCERS_OWN}
        made: list[Any] = together(
            partial(TopicReader, self._connection),
            partial(RelayConsumer, {"group.id": name, **consumer}, self._wake),
        )
        self._reader: TopicReader = made[0]
        self._consumer: RelayConsumer = made[1]
        try:
            self._ladder, self._lines = self._layout()
        except BaseException:
            self._consumer.close()
            self._reader.close()
            self._wake.close()
            raise
        self._lost = LostRights(self._producer_config(), self._names, str(consumer.get("group.id", name)))
        self._has_worked = False
        self._searcher = Searcher(self._connection, self._names, self._wake)
        self._remade = RemadeTopics(self._connection, self._wake)
        self._deletion = Deletion()
        self._carrier: RelayOutput | None = None

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Work until `stop` is called, or `until()` is true.

        Raises:
            AuthenticationError: The brokers no longer let the relay in.
            AuthorizationError: A right is missing from the start. For a right that is lost later the relay waits:
                `refused` names it, a warning is logged now and then, and other relays may take the partitions.
            ClosedError: The relay is closed.
        """
        if self._closed:
            raise ClosedError("The relay is closed. Make a new one to go on.")
        self._require_rights()
        self._subscribe()
        while not self._stopping.is_set() and not until():
            self._consumer.check()
            try:
                if not self._turn():
                    self._wait()
            except AuthenticationError as error:  # raised by another client of ours, as those made at a take-over
                self._require_patience(error)
                self._begin_anew(error)
            except KafkaError as error:
                if lacks_a_right(error):
                    self._stand_back(self._lost.explain(error))
                else:
                    self._begin_anew(error)
        self._store_rest()

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Run in a thread while a `with` block lasts; then finish what was begun, and close.

        An error that ends the thread earlier is logged at once, and raised at the end of the block.
        """
        with self, ThreadPoolExecutor(1, "headway-relay") as thread:
            ended = thread.submit(self.run)
            ended.add_done_callback(_log_failure)
            try:
                yield self
            finally:
                self.stop()
            ended.result()

    def stop(self) -> None:
        """Let `run` return soon; from any thread or signal handler."""
        self._stopping.set()
        self._wake.set()

    @property
    def partitions(self) -> list[int]:
        """The partition numbers that this relay decides about now."""
        return sorted(self._relays)

    @property
    def refused(self) -> str | None:
        """The right that the relay waits for, and what to do; None if it has all rights."""
        return self._lost.reason

    @property
    def held(self) -> int:
        """The number of records that wait in memory."""
        return sum(relay.held for relay in list(self._relays.values()))

    def close(self) -> None:
        """Finish what was begun and leave the group."""
        if self._closed:
            return
        self._closed = True
        try:
            self._let_go()
        finally:
            self._consumer.close()
            self._reader.close()
            self._searcher.close()
            self._remade.close()
            self._wake.close()

    # The topics

    def _layout(self) -> tuple[Ladder, tuple[int, ...]]:
        layout = layout_seen_by(self._reader, self._names.name)
        if layout is None:
            raise ConfigError(
                f"The scheduler {self._names.name} has no topics. Create them with `headway schedule init`, or let a "
                "Scheduler do so."
            )
        return layout.ladder, layout.lines

    def _subscribe(self) -> None:
        topics = [*(self._names.line(line) for line in self._lines), self._names.commands]
        self._consumer.subscribe(topics, before_leaving=self._store_rest)

    # Rights

    def _require_rights(self) -> None:
        """Raise `AuthorizationError` if a right to work is missing; only log if the brokers do not answer."""
        admin = self._reader.admin
        try:
            admin.require(rights_to_work(self._names, self._lines))
            missing = admin.missing(rights_to_delete(self._names, self._lines))
        except AuthorizationError:
            raise
        except KafkaError as unknown:
            log.info("Whether the relay has its rights is not known yet: %s", unknown)
        else:
            if missing:
                log.warning("%s %s", NOT_DELETED, missing.missing(self._connection))

    def _stand_back(self, error: KafkaError) -> None:
        """Leave the partitions to relays that may have the missing right, and wait until it is granted.

        Raises the error if the relay has never worked.
        """
        if not self._has_worked:
            raise error
        self._lost.wait_for(rights_to_work(self._names, self._lines), str(error))
        self._forget(0)
        if not is_of_the_group(error):  # without the right to use the group the relay cannot leave it
            self._consumer.leave()

    def _come_back(self) -> None:
        """Resume work when the lost rights are granted again."""
        if self._lost.are_granted():
            self._subscribe()
            self._consumer.refusal = None
            self._begin_at = time.monotonic()

    def _change_lines(self) -> None:
        """Use the lines that were put in use; look again later while their topics are not all known."""
        if time.monotonic() - self._looked_at < self._look_again_after:
            return
        ladder, lines = self._layout()
        self._looked_at = time.monotonic()
        if not set(ladder.lines).issubset(lines):
            self._look_again_after = min(2 * self._look_again_after, _LOOK_EVERY)
            return
        self._look_again_after = _LOOK_AGAIN_AFTER
        if (ladder, lines) == (self._ladder, self._lines):
            self._other_ladder = False
            return
        log.info("The lines of %s are from now on: %s.", self._names.name, ladder)
        before, self._ladder, self._lines = self._lines, ladder, lines
        self._other_ladder = False
        if before == lines:
            self._store_rest()
            self._forget(0)
        else:
            self._subscribe()

    def _look_for_lines(self) -> None:
        """Look for the lines when no number has all its partitions: a topic was deleted, or is still to come."""
        ladder, lines = self._layout()
        if missing := sorted(set(ladder.lines).difference(lines)):
            names = ", ".join(map(self._names.line, missing))
            log.warning("Nothing is delivered: the lines of %s lack the topics %s.", self._names.name, names)
        elif lines != self._lines:
            self._ladder, self._lines = ladder, lines
            self._subscribe()
        self._begin_at = time.monotonic() + _LOOK_FOR_LINES_AGAIN_AFTER

    # Partitions come and go

    def _store_rest(self) -> None:
        """Store all progress, before another relay, or this one, begins from what is stored."""
        # Without partitions, as before the first ones came, the brokers' time is unknown.
        ticks = {number: tick for number, relay in self._relays.items() if (tick := relay.unstored(self._now()))}
        try:
            if self._carrier:
                if ticks:
                    self._carrier.carry_out(ticks, self._offsets(ticks), self._now())
                self._carrier.finish()
        except KafkaError as error:
            log.warning("What was done last was not stored: %s", error)
            self._forget(0)

    def _begin_anew(self, error: KafkaError) -> None:
        """Begin anew from what is stored, after a pause that grows with failures in a row; rejoin if expelled."""
        now = time.monotonic()
        self._failures = self._failures + 1 if now - self._failed_at < _LONGEST_BACK_OFF + _FAILS_WITHIN else 1
        self._failed_at = now
        again_after = min(_LONGEST_BACK_OFF, _AGAIN_AFTER * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1)  # noqa: S311
        log.warning("The relay begins anew from what is stored, in %.2g s: %s", again_after, error)
        self._reader.renew()
        self._forget(again_after)
        member = standing(error)
        if member is Standing.EXPELLED or (member is Standing.BEHIND and self._failures > _BEHIND_TIMES):
            log.warning("The relay was expelled from its group, and joins it again.")
            self._consumer.rejoin()

    def _require_patience(self, error: AuthenticationError) -> None:
        """Raise the error if it has come again and again for half a minute."""
        now = time.monotonic()
        # A take-over proves nothing: connections that are open go on until they have to log in again.
        if self._refused_since is None or now - self._failed_at > _LONGEST_BACK_OFF + _FAILS_WITHIN:
            self._refused_since = now
        if now - self._refused_since > LET_IN_NO_MORE_AFTER:
            raise AuthenticationError(str(error), was_connected=True) from error

    def _forget(self, again_after: float) -> None:
        """Begin anew, a little later, from what is stored."""
        self._consumer.begin({})
        self._begin_at = time.monotonic() + again_after
        try:
            self._let_go()
        except KafkaError as error:
            log.debug("What was under way is given up: %s", error)

    def _let_go(self) -> None:
        """Drop all partitions, and close the output."""
        self._relays.clear()
        self._places.clear()
        self._searcher.forget()
        carrier, self._carrier = self._carrier, None
        if carrier:
            carrier.close()

    def _take_over(self) -> None:
        """Read the state of the relay's present partitions, and begin from there."""
        self._begin_at = None
        self._consumer.rebalanced = False
        numbers = self._owned()
        topics = self._look_at_topics()
        if topics is None:
            self._consumer.begin({self._ladder_place: 0})
            self._begin_at = time.monotonic() + _LOOK_FOR_LINES_AGAIN_AFTER
            return
        if not numbers:
            self._consumer.begin({self._ladder_place: 0})
            if self._consumer.assigned:
                self._look_for_lines()
            return
        stored = self._reader.compacted(
            self._names.state, numbers, _STATE_WITHIN, self._end_what_is_open, self._stopping.is_set
        )
        if not self._is_all_decided(numbers):
            self._end_what_is_open(stored)
        room, ladder, ends = self._memory // len(numbers), usable(self._ladder, self._lines), self._ends(numbers)
        if ladder != self._ladder:
            log.warning("The lines %s lack topics; in use are: %s.", self._ladder, ladder)
            self._other_ladder = True  # so the lines are looked for again
        for number in numbers:
            lines = self._lines
            relay = PartitionRelay(ladder, lines, stored[number], room, topics, ends[number])
            self._relays[number] = relay
            for key, error in relay.unreadable.items():
                log.warning("%s, partition %d, is passed over at %.100r: %s", self._names.state, number, key, error)
            self._places |= {(self._names.line(line), number): (relay, line) for line in lines}
            self._places[self._names.commands, number] = relay, None
        if self._carrier is None:
            kind = ExactlyOnce if self._mode == "exactly-once" else LowLatency
            self._carrier = kind(self._producer_config(), self._names, ladder, self._consumer, self._clock)
        self._look_at_clock(self._carrier)
        self._fetched_to = {
            place: relay.commands_start if line is None else relay.start(line)
            for place, (relay, line) in self._places.items()
        }
        self._consumer.begin({**self._fetched_to, self._ladder_place: 0})
        self._has_worked = True
        log.info("The relay has partitions %s of %s.", numbers, self._names.name)

    def _end_what_is_open(self, stored: Mapping[int, Mapping[str, bytes]]) -> None:
        """End the transactions of earlier relays, and wait until every broker knows how they ended.

        The brokers would end a dead relay's transaction only much later.
        """
        own = ids_begin_with(self._names)
        producers = {each for values in stored.values() for each in stored_producers(values, own)}
        end_transactions(self._producer_config(), sorted(producers), self._names.state)

    def _look_at_topics(self) -> dict[str, str] | None:
        """Return Kafka's ids of the topics; if they have changed, look for the lines again.

        Return None while some lines are missing: brokers learn of new topics one after the other.
        """
        keys = {self._names.line(line): MEMORY_KEY if line == MEMORY else line_key(line) for line in self._lines}
        keys[self._names.commands] = COMMANDS_KEY
        ids = self._reader.admin.topic_ids(list(keys))
        self._remade.expect(ids, time.monotonic())
        topics = {key: ids[topic] for topic, key in keys.items() if topic in ids}
        if any(topics.get(key, id_) != id_ for key, id_ in self._topics.items()):
            log.warning("Topics of %s were deleted and made anew.", self._names.name)
            self._deletion = Deletion()
            layout = layout_seen_by(self._reader, self._names.name)
            if layout is None or not set(layout.ladder.lines).issubset(layout.lines):
                return None
            if (layout.ladder, layout.lines) != (self._ladder, self._lines):
                self._ladder, self._lines = layout.ladder, layout.lines
                self._subscribe()
        self._topics = topics
        return topics

    def _is_all_decided(self, numbers: list[int]) -> bool:
        """Return whether the brokers of all lines know how every transaction has ended.

        The state's broker may know it earlier. Until the lines' brokers know, records that moved there are invisible.
        """
        places = [(self._names.line(line), number) for line in self._lines for number in numbers]
        try:
            there = self._reader.bounds(_DECIDED_WITHIN).ends(places)
            decided = self._reader.bounds(_DECIDED_WITHIN, "read_committed").ends(places)
        except KafkaError as unknown:  # the broker of a line is away; the other lines need not wait for it
            log.info("%s", unknown)
            self._reader.renew()
            return False
        return all(decided[place] >= end for place, end in there.items() if place in decided)

    def _ends(self, numbers: list[int]) -> dict[int, dict[str, int]]:
        """Return the log ends of these numbers, as far as known, by the keys of each line's stored state."""
        keys = {self._names.line(line): MEMORY_KEY if line == MEMORY else line_key(line) for line in self._lines}
        keys[self._names.commands] = COMMANDS_KEY
        places = [(topic, number) for topic in keys for number in numbers]
        try:
            ends = self._reader.bounds(_DECIDED_WITHIN).ends(places)
        except KafkaError as unknown:  # the broker of a line is away; the other lines need not wait for it
            log.info("%s", unknown)
            self._reader.renew()
            ends = {}
        return {
            number: {key: ends[topic, number] for topic, key in keys.items() if (topic, number) in ends}
            for number in numbers
        }

    def _look_at_clock(self, carrier: RelayOutput) -> None:
        carrier.look_at_clock(
            {(self._names.commands, number): relay.commands_start for number, relay in self._relays.items()}
        )

    def _owned(self) -> list[int]:
        """Return the numbers whose partitions are all ours; a group may disagree for a moment about new topics."""
        topics = {self._names.commands, *(self._names.line(line) for line in self._lines)}
        counts = Counter(number for topic, number in self._consumer.assigned if topic in topics)
        return sorted(number for number, count in counts.items() if count == len(topics))

    def _producer_config(self) -> dict[str, Any]:
        own = {key: value for key, value in self._config.items() if key.startswith(("compression.", "transaction."))}
        return {**self._connection, **own}

    # A turn

    def _turn(self) -> bool:
        """Do one turn; return whether anything was done."""
        messages = self._consumer.fetch(_AT_ONCE)
        if self._lost.reason:
            self._come_back()
            return False
        if refusal := self._consumer.refusal:
            raise refusal
        if self._consumer.rebalanced:
            self._forget(0)
        if self._begin_at is not None:
            if time.monotonic() < self._begin_at:
                return False
            self._take_over()
            return True
        if self._other_ladder:
            self._change_lines()
        if remade := self._remade.found(time.monotonic()):
            raise KafkaError(f"{remade[0]} was deleted and made anew")
        if not self._relays or self._carrier is None:
            self._receive(messages, 0)
            return False
        if self._is_clock_wanted(bool(messages)):
            self._look_at_clock(self._carrier)
        now = self._now()
        self._receive(messages, now)
        self._search(now)
        did = self._carry_out(now)
        self._carrier.serve()
        self._note_written(self._carrier)
        self._hold()
        self._delete()
        return did or bool(messages)

    def _is_clock_wanted(self, something_came: bool) -> bool:
        """Return whether to ask for the brokers' time: before it is relied on, and now and then, as clocks are set."""
        seconds = self._clock.age(time.monotonic())
        if seconds < _STALE_AFTER:
            return False
        wakes_at = self._wakes_at(self._now())
        return something_came or wakes_at < self._now() + _SOON or (seconds > _LOOK_EVERY and wakes_at < math.inf)

    def _now(self) -> int:
        return self._clock.now(time.monotonic())

    def _receive(self, messages: list[Any], now: int) -> None:
        self.counts["read"] += len(messages)
        fetched: dict[Partition, list[Fetched]] = {}
        for message in messages:
            place = message.topic(), message.partition()
            relay, line = self._places.get(place, (None, None))
            if relay is not None and self._is_anew(place, message.offset()):
                raise KafkaError(f"{place[0]} begins again at offset {message.offset()}, as a topic that was made anew")
            if relay is not None and line is None:
                relay.command(message.offset(), command_from(message), now)
            elif relay is not None:
                fetched.setdefault(place, []).append(fetched_from(message))
            elif place == self._ladder_place and (ladder := ladder_from(self._names, message.key(), message.value())):
                self._other_ladder = ladder != self._ladder or usable(ladder, self._lines) != ladder
                self._look_again_after = _LOOK_AGAIN_AFTER
        for place, records in fetched.items():
            relay, line = self._places[place]
            relay.receive(line or 0, records)
        for place, offset in self._consumer.ends.items():
            relay, line = self._places.get(place, (None, None))
            if relay is not None and line is not None:
                relay.reached_end(line, offset)
        self._consumer.ends.clear()

    def _is_anew(self, place: Partition, offset: int) -> bool:
        """Return whether the topic was created again, since the partition's offsets have begun again."""
        before, self._fetched_to[place] = self._fetched_to[place], offset + 1
        return offset < before

    def _search(self, now: int) -> None:
        for number, relay in self._relays.items():
            for search in relay.searches:
                self._searcher.search(number, search, self._ladder, relay.committable(), now)
            relay.searches.clear()
        for number, search, fetched in self._searcher.results():
            if number in self._relays:
                self._relays[number].found(search, fetched, now)

    def _carry_out(self, now: int) -> bool:
        if self._carrier is None or not self._has_room(self._carrier):
            return False
        stores = self._carrier.wants_state
        taken = ((number, relay.take(now, _AT_ONCE, _BYTES_AT_ONCE, stores)) for number, relay in self._relays.items())
        ticks = {number: tick for number, tick in taken if tick}
        if ticks:
            self._carrier.carry_out(ticks, self._offsets(ticks), now)
            for tick in ticks.values():
                moved = sum(write.line is not None for write in tick.writes)
                self.counts["delivered"] += len(tick.writes) - moved
                self.counts["moved"] += moved
                self.counts["refused"] += len(tick.refusals)
            self.counts["rounds"] += 1
        return bool(ticks)

    def _note_written(self, carrier: RelayOutput) -> None:
        """Tell the partition relays which of their moves Kafka has stored."""
        while carrier.written:
            for number, ends in carrier.written.popleft().items():
                if number in self._relays:
                    self._relays[number].written(ends, self._now())

    def _has_room(self, carrier: RelayOutput) -> bool:
        """Return whether more may be sent: records that a broker does not take wait here, within the memory limit."""
        return carrier.under_way < self._memory // 2

    def _offsets(self, ticks: Mapping[int, Tick]) -> dict[Partition, int]:
        """Return the done offsets to commit to the group: they fence and inform, but are not relied on."""
        done = dict[Partition, int]()
        for number, tick in ticks.items():
            for line, offset in tick.offsets.items():
                done[self._names.commands if line is None else self._names.line(line), number] = offset
            if tick.state and not tick.offsets:  # a transaction without offsets would not be fenced
                done[self._names.commands, number] = self._relays[number].commands_start
        return done

    def _hold(self) -> None:
        self._consumer.hold(
            {(self._names.line(line), number) for number, relay in self._relays.items() for line in relay.full()}
        )

    def _delete(self) -> None:
        if time.monotonic() - self._deleted_at < _DELETE_EVERY:
            return
        self._deleted_at = time.monotonic()
        self._reader.serve()
        if self._carrier:
            self._deletion.delete_before(self._carrier.done, self._reader.admin)
            if missing := self._deletion.refused:
                log.warning("%s %s", NOT_DELETED, missing.missing(self._connection))

    def _wakes_at(self, now: int) -> float:
        return min((relay.next_wake(now) for relay in self._relays.values()), default=math.inf)

    def _wait(self) -> None:
        seconds = _LONGEST_WAIT / 4 if self._lost.reason else _LONGEST_WAIT
        if self._begin_at is not None and not self._lost.reason:
            seconds = min(seconds, self._begin_at - time.monotonic())
        if self._relays and self._carrier:
            seconds = min(seconds, self._carrier.serve())
            wake = self._wakes_at(self._now()) if self._has_room(self._carrier) else math.inf
            if wake < math.inf:
                seconds = min(seconds, self._clock.monotonic_at(int(max(wake, 0))) - time.monotonic())
        if seconds > _PRECISELY:
            self._wake.wait(seconds - _PRECISELY)  # may be late by a millisecond
        elif seconds > 0:
            time.sleep(seconds)


def _log_failure(ended: Future[None]) -> None:
    if error := ended.exception():
        log.error("The relay has ended, and moves nothing any more: %s", error)
