"""Brings records from Kafka into the engine: fetches on demand, takes part in rebalances, and reads offset maps."""

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headway.core.engine.attempt import Brought
from headway.core.engine.partition_states import PartitionState
from headway.core.engine.pauses import Pauses
from headway.core.levels.naming import LevelSubscription
from headway.core.offsets.offset_map import OffsetMap, decode_with_trailer, names_a_log
from headway.core.offsets.trailer import NOTHING_TRIED, Tried, log_mark
from headway.errors import AuthorizationError, ConfigError, FetchError, KafkaError, OffsetMapError
from headway.execution.dispatch import Dispatch
from headway.kafka.binding.messages import FetchedColumns, fetched_columns
from headway.kafka.consumer.level_consumer import LevelConsumer
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.kafka.consumer.start_questions import StartOffset
from headway.parallel.brought_along import BroughtAlong
from headway.parallel.callbacks import Callbacks
from headway.parallel.options import ParallelOptions
from headway.parallel.record_ages import RecordAges
from headway.parallel.seek_target import SeekQuestion, SeekTarget
from headway.parallel.tenancy import Tenancy
from headway.records.record_types import ConsumerRecord, TopicPartition, messages_of
from headway.runtime.gc_pause import GcPause

log = logging.getLogger(__name__)

# All these times are in seconds.
_ID_WAITED_FOR = 10.0  # how long a partition whose commit names a topic id waits for the id of its topic
_TOPICS_LISTED_WITHIN = 10.0  # the longest wait for the list of all topics
# How long to wait for the answer to the first request for an offset; doubled for each further request.
_SEEK_ANSWERED_WITHIN = 1.0
_SEEK_ANSWERED_AT_MOST_WITHIN = 60.0  # the longest wait for the answer to a request for an offset
_CHECK_ANSWERS_EVERY = 0.01  # the time between two checks for answers at the end of the run
# If adding a partition to the engine fails, the pause before the next try is this many times as long as the failed try.
# So requests to a dead broker take at most a tenth of the control thread's time.
_PAUSE_FACTOR = 10
_LEAST_PAUSE = 0.2  # the shortest pause before the next try
_is_of_mirrors = re.compile(r".+[.]checkpoints[._-]internal").fullmatch


@dataclass(slots=True)
class _Starting:
    """A partition that is not in the engine yet, because it has just been assigned or has an unfinished seek."""

    came: int | None = None  # the offset of the first record that arrived before the partition was added to the engine
    not_before: float = 0.0  # the earliest time of the next try to add the partition to the engine
    target: SeekTarget | None = None  # the target of a seek; None if reading starts at the committed offset
    asked: SeekQuestion | None = None  # the pending request for the target's offset
    # How long to wait for the answer to the request for the target's offset.
    answered_within: float = _SEEK_ANSWERED_WITHIN
    whatever_runs_at: float = 0.0  # when a seek stops waiting for running handlers
    id_awaited_until: float = 0.0  # when the partition stops waiting for the id of its topic
    is_new: bool = False  # True for a newly assigned partition, whose failed attempts must be read from its commit

    def forget(self) -> None:
        """Stop waiting for the offset of the seek's target."""
        if self.asked:
            self.asked.forget()
        self.asked = None


class _Known(NamedTuple):
    """The state of a partition that its commit describes: the offset map, and the failed attempts by offset."""

    offsets: OffsetMap
    tried: Mapping[int, Tried] = NOTHING_TRIED


class HandOver(Protocol):
    """The part of the control loop that `Fetching` uses."""

    def hand_over(self, partitions: Collection[TopicPartition]) -> None:
        """Wait for the running handlers of partitions that are about to be revoked, and commit."""


class Fetching:
    """Keeps the engine's buffers filled, and adds and removes partitions when they are assigned or revoked.

    Before a partition is revoked, the control loop hands it over: handlers can end, and their records are committed.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        levels: LevelConsumers,
        callbacks: Callbacks,
        options: ParallelOptions,
        control: HandOver,
        brought_along: BroughtAlong,
        tenancy: Tenancy | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._brought_along = brought_along
        self._engine = dispatch.engine
        self._lock = dispatch.lock
        self._levels = levels
        self._callbacks = callbacks
        self._fails_on_invalid_metadata = options.on_invalid_metadata == "fail"
        buffer = options.buffer
        # While more records than this are buffered, nothing is fetched, because a fetch of one record costs as much as
        # a fetch of many.
        self._enough = max(1, buffer * 3 // 4)
        # The maximum number of records in one fetch. If it were larger, handlers would wait too long for the GIL while
        # records are created and received. If it were smaller, fast handlers would empty the buffer before this thread
        # gets the GIL again.
        self._at_once = max(1, buffer // 2)
        # The maximum number of buffered records, including those of quiet partitions. This maximum is larger than the
        # buffer, so that quiet partitions do not have to wait until records of a flooded partition leave the buffer.
        self._most = buffer * 5 // 4
        self._control = control
        self._tenancy = tenancy
        # The levels that are being fetched; a hand-over during that fetch fetches only other levels.
        self._fetching: set[int] = set()
        self._starting: dict[TopicPartition, _Starting] = {}
        self._rejoining: set[int] = set()  # levels that must join their groups again
        self._patience = options.hand_over_timeout  # how long a seek waits for running handlers, in seconds
        self.rebalances = 0
        """How often partitions were assigned, revoked or lost."""
        # The following attributes are used only while the lock is held.
        self.ages: RecordAges | None = None
        """The ages of received records, if the consumer is measured."""
        self.pauses = Pauses()
        self._holds = False  # True if the engine holds back paused partitions
        self._seeks: dict[TopicPartition, SeekTarget] = {}  # requested seeks that the control thread has not seen yet
        # The failed attempts on partitions that have an unfinished seek.
        self._tried: dict[TopicPartition, Mapping[int, Tried]] = {}

    def subscribe(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Subscribe the members of all levels, so that they join their groups."""
        self._levels.subscribe(subscriptions, self)

    # Methods for any thread

    def seek(self, targets: Mapping[TopicPartition, SeekTarget]) -> None:
        """Request that partitions continue at these targets. Their uncommitted records then count as not done.

        Raises `ConfigError` if a partition is not assigned to this consumer or is about to leave it.
        """
        with self._lock:
            for partition in targets:
                self._levels.of(partition)
                if self._engine.state_of(partition) is PartitionState.LEAVING:
                    raise ConfigError(
                        f"Partition {partition.partition} of {partition.topic} at level {partition.level} is about to "
                        "be revoked. Call seek in the on_assign callback of the consumer that gets this partition next."
                    )
            self._tried |= {each: tried for each in targets if (tried := self._engine.tried(each))}
            self._engine.revoke(targets)
            self._seeks |= targets

    def hold(self) -> None:
        """Apply the current pauses. Records of paused partitions do not start; other partitions continue."""
        with self._lock:
            self._hold(time.monotonic())

    def _hold(self, now: float) -> set[TopicPartition]:
        """Apply the current pauses, and return the paused partitions. The caller must hold the lock."""
        if not self.pauses and not self._holds:
            return set()
        held = self._engine.held()
        covered = set(self.pauses.covered(self._engine.assigned()))
        self._engine.hold(covered - held)
        self._engine.release(held - covered, now)
        self._holds = bool(covered)
        return covered

    # Methods for the control thread

    def fetch(self, now: float, paused: bool) -> bool:
        """Fetch as many records as the engine needs, without waiting. Returns whether Kafka might have more records.

        Rebalances take place during this call. Raises the error of a rebalance callback, and `KafkaError` if a level
        cannot continue, for example because this client was never permitted to join its group. librdkafka recovers from
        all other errors, so these are only logged.
        """
        self._join_again()
        self._pause_and_resume()
        demand, of_quiet = self._demand(paused)
        more = False
        for level, member in self._levels.highest_first():
            if level not in self._fetching:
                with self._within(level):
                    more = self._fetch(level, member, demand[level], now, of_quiet[level]) or more
        return more

    @contextmanager
    def _within(self, level: int) -> Iterator[None]:
        """Mark a level's member as busy, so that a hand-over within the `with` block does not fetch from it."""
        together = self._levels.with_same_member([level])
        self._fetching |= together
        try:
            yield
        finally:
            self._fetching -= together

    def state_of(self, partition: TopicPartition) -> PartitionState:
        """Return the state of a partition in this consumer."""
        if partition in self._starting:
            return PartitionState.STARTING
        with self._lock:
            return self._engine.state_of(partition)

    def give_up(self, level: int) -> None:
        """Give up the partitions of a level, and of all levels with the same group member, as lost."""
        together = self._levels.with_same_member([level])
        with self._lock:
            lost = [partition for partition in self._engine.assigned() if partition.level in together]
        self.lost(lost)

    def rejoin(self, level: int) -> None:
        """Give up a level's partitions. Its member joins the group again when no fetch from the member is running."""
        self.give_up(level)
        self._rejoining.add(level)

    def _join_again(self) -> None:
        while ready := self._rejoining - self._fetching:
            level = min(ready)
            self._rejoining -= self._levels.with_same_member([level])
            with self._within(level):
                self._levels[level].membership.rejoin()

    def _fetch(self, level: int, member: LevelConsumer, demand: int, now: float, of_quiet: int) -> bool:
        with GcPause():
            records = _fetched(member, level, demand, of_quiet, now)
            columns = fetched_columns(messages_of(records))
            brought = self._brought_along.of(records, now, may_have_headers=columns.may_have_headers)
            tenants = self._tenancy.of(records) if self._tenancy else ()
            # The engine ignores records of partitions that have not been added to it, so partitions are added first if
            # possible.
            if self._starting:
                self._begin(level, member, now, first=True)
            with self._lock:
                self._receive(records, columns, now, brought, tenants)
                for partition in member.ends.keys() - self._starting.keys():
                    self._engine.advance(partition, member.ends.pop(partition))
        _raise_unless_fetching(member)
        if self._starting or self._seeks:
            self._begin(level, member, now)
        return 0 < len(records) == demand

    def _demand(self, paused: bool) -> tuple[list[int], list[int]]:
        """Return how many records of each level to fetch, and how many of its quiet partitions if that number is 0.

        Even if a level needs no records, records of its quiet partitions are fetched, so that the buffered records of
        busy partitions do not delay them.
        """
        with self._lock:
            if paused:
                for level in range(self._levels.count):
                    self._dispatch.alarm(level, -1)
                nothing = [0] * self._levels.count
                return nothing, nothing
            buffered = self._engine.buffered
            pairs = zip(self._engine.demand(), buffered, self._engine.ready, strict=True)
            wanted = [self._wanted(level, *counts) for level, counts in enumerate(pairs)]
            return wanted, [max(0, self._most - of_level) for of_level in buffered]

    def _wanted(self, level: int, demand: int, buffered: int, ready: int) -> int:
        """Return how many records of a level to fetch.

        If the result is 0, an alarm is set, which wakes the control thread when the level needs records again.
        """
        if buffered > self._enough:
            self._dispatch.alarm(level, self._enough)
            return 0
        if demand == 0:  # the buffer is full
            self._dispatch.alarm(level, ready // 2)
            return 0
        self._dispatch.alarm(level, -1)  # no alarm: librdkafka wakes this thread when a record arrives
        return min(demand, self._at_once)

    def _receive(
        self,
        records: Sequence[ConsumerRecord],
        columns: FetchedColumns,
        now: float,
        brought: Mapping[ConsumerRecord, Brought],
        tenants: Sequence[str],
    ) -> None:
        first = 0
        for end in columns.ends:
            of_one = slice(first, end)
            partition = records[first].topic_partition
            offsets, sizes = columns.offsets[of_one], columns.sizes[of_one]
            if (start := self._starting.get(partition)) and start.came is None:
                start.came = offsets[0]
            if self.ages is not None:
                self.ages.received(partition, records[of_one], time.monotonic())
            # If the partition has not been added to the engine yet, the engine ignores the records.
            self._engine.receive(
                partition,
                records[of_one],
                now,
                brought=brought,
                tenants=tenants[of_one],
                offsets=offsets,
                sizes=sizes,
            )
            first = end

    def _pause_and_resume(self) -> None:
        """Pause fetching from the partitions whose records must not be fetched now, and resume it for all others.

        A partition is paused if it has no buffer space, if the user has paused it, or while its `on_assign` runs.
        """
        with self._lock:
            wanted = self._engine.paused() | self._hold(time.monotonic())
        wanted.update(self._callbacks.awaited())
        # Only the members have the current set of paused partitions: to continue a partition at another offset, a
        # member unassigns and reassigns the partition, which stays paused.
        paused = self._levels.paused()
        if wanted != paused:
            for member, partitions in self._levels.chosen(wanted - paused, None).items():
                member.pause(partitions)
            for member, partitions in self._levels.chosen(paused - wanted, None).items():
                member.resume(partitions)

    def _begin(self, level: int, member: LevelConsumer, now: float, *, first: bool = False) -> None:
        """Add partitions to the engine, at their committed offsets or at the targets of seeks, if that is possible now.

        After a rebalance, the member requests the committed offsets (see `Membership.start_of`). If `first` is true, a
        partition is added only if none of its records has arrived yet and it has no unfinished seek.
        """
        awaited = self._callbacks.awaited() if self._starting else ()
        # `awaited` must be computed before this call, because `on_assign` can call `seek` before it returns.
        self._take_seeks(level, now)
        partitions = [
            partition
            for partition, start in self._starting.items()
            if partition.level == level
            and start.not_before <= now
            and partition not in awaited
            and not (first and (start.target or start.came is not None))
            and not self._runs_on(partition, start, now)
        ]
        if not partitions or not member.client.ids.is_settled(now):
            return
        for partition in partitions:
            began_at, start, found = time.monotonic(), self._starting[partition], member.membership.start_of(partition)
            if found is None and (not start.target or (start.is_new and now < start.whatever_runs_at)):
                continue  # Kafka has not sent the committed offset yet
            if found and self._awaits_id(member, partition, found, now):
                continue
            try:
                known = _Known(OffsetMap(0))
                if found and (start.is_new or not start.target):
                    fails = self._fails_on_invalid_metadata and not start.target
                    known = _known_of(member, partition, found, fails=fails)
                if start.target:
                    offset = self._seek_offset(start.target, partition, start, member)
                    if offset is None:
                        continue  # Kafka has not sent the target's offset yet
                    known = _Known(OffsetMap(offset), known.tried)
                    member.seek(partition, offset)
                elif start.came is not None:
                    # The engine has ignored records that arrived before the partition was added, so they must be
                    # fetched again. The seek also discards an end-of-partition event that has arrived since then.
                    member.seek(partition, start.came)
            except KafkaError as error:
                log.warning("Reading %s cannot begin yet and will be tried again: %s", partition, error)
                # Other partitions must not wait for a partition that has no leader.
                ended_at = time.monotonic()
                start.not_before = ended_at + max(_LEAST_PAUSE, _PAUSE_FACTOR * (ended_at - began_at))
                continue
            with self._lock:
                if partition in self._seeks:  # another thread has called `seek` in the meantime
                    continue
                # If the partition is new, its start offset is committed at once, because a later owner could not detect
                # that the partition was new.
                self._assign(
                    member, partition, known, moved=start.target is not None or member.client.is_new(partition)
                )
            self._starting.pop(partition)

    def _assign(self, member: LevelConsumer, partition: TopicPartition, known: _Known, *, moved: bool) -> None:
        """Add a partition to the engine. The caller must hold the lock."""
        tried = {**known.tried, **self._tried.pop(partition, NOTHING_TRIED)}
        to_come = {offset: each for offset, each in tried.items() if offset >= known.offsets.offset}
        self._engine.assign(partition, known.offsets, moved, log_mark(member.client.topic_id(partition) or ""), to_come)
        # If the user has paused the partition, it must be held back at once. Otherwise records of the current fetch
        # could start.
        if self.pauses.covers(partition):
            self._engine.hold([partition])
            self._holds = True

    def _awaits_id(self, member: LevelConsumer, partition: TopicPartition, found: StartOffset, now: float) -> bool:
        """Return whether a partition must wait for the id of its topic, because its commit contains a topic id."""
        if not found.metadata or member.client.topic_id(partition) or not names_a_log(found.metadata):
            return False
        start = self._starting[partition]
        start.id_awaited_until = start.id_awaited_until or now + _ID_WAITED_FOR
        return now < start.id_awaited_until

    def _seek_offset(
        self, target: SeekTarget, partition: TopicPartition, start: _Starting, member: LevelConsumer
    ) -> int | None:
        """Return the offset of a seek's target, or None if Kafka has not answered yet.

        Raises `KafkaError` if Kafka refuses the request.
        """
        if start.asked is None:
            start.asked = target.ask(member, partition, start.answered_within)
        try:
            offset = start.asked.answer()
        except KafkaError:
            start.forget()
            start.answered_within = min(2 * start.answered_within, _SEEK_ANSWERED_AT_MOST_WITHIN)
            raise
        if offset is not None:
            start.asked = None
        return offset

    def _take_seeks(self, level: int, now: float) -> None:
        """Take the requested seeks of a level, so that `_begin` adds the partitions to the engine at the targets."""
        if not self._seeks:
            return
        with self._lock:
            seeks = {each: target for each, target in self._seeks.items() if each.level == level}
            for partition in seeks:
                del self._seeks[partition]
        for partition, target in seeks.items():
            start = self._starting.setdefault(partition, _Starting())
            start.forget()
            start.target, start.not_before, start.whatever_runs_at = target, 0.0, now + self._patience

    def _runs_on(self, partition: TopicPartition, start: _Starting, now: float) -> bool:
        """Return whether a seek must wait for the partition's handlers, so that no record runs twice at once."""
        return start.target is not None and now < start.whatever_runs_at and self._dispatch.runs_stale(partition)

    # The rebalance callbacks of the levels

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Add new partitions, whose records can start when the rebalance is over and `on_assign` has returned."""
        self.rebalances += 1
        self._callbacks.assigned(partitions)
        self._starting.update((partition, _Starting(is_new=True)) for partition in partitions)

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Hand over revoked partitions, and then forget them."""
        self.rebalances += 1
        try:
            self._control.hand_over(partitions)
        finally:
            self.let_go(partitions)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Forget lost partitions without committing, because another member might already own them."""
        self.rebalances += 1
        self.let_go(partitions)
        self._callbacks.lost(partitions)

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions of this consumer, including partitions that are not in the engine yet."""
        with self._lock:
            return list({*self._engine.assigned(), *self._starting, *self._seeks})

    def reasons_to_wait(self) -> dict[TopicPartition, str]:
        """Return the partitions from which nothing is fetched, other than for memory or a map, each with the reason.

        The reason is `user` for a pause, `callback` while `on_assign` is running, and `seek` for an unfinished seek.
        """
        with self._lock:
            assigned = self._levels.assignment()
            paused = assigned if self._dispatch.paused else self.pauses.covered(assigned)
            seeks = {*self._seeks, *(partition for partition, start in self._starting.items() if start.target)}
        reasons = dict.fromkeys(seeks, "seek")
        return reasons | dict.fromkeys(self._callbacks.awaited(), "callback") | dict.fromkeys(paused, "user")

    def finish_seeks(self, until: float) -> None:
        """Carry out unfinished seeks at the end of the run, so that the last commit includes their offsets.

        Requests the offsets of all targets from Kafka at the same time, and waits for the answers until the given time.
        """
        with self._lock:
            targets = {partition: start.target for partition, start in self._starting.items() if start.target}
            targets |= self._seeks
        asked = {
            each: target.ask(self._levels.of(each), each, until - time.monotonic()) for each, target in targets.items()
        }
        failed: KafkaError | None = None
        while asked and failed is None and time.monotonic() < until:
            failed = self._move_answered(asked)
            if asked and failed is None:
                time.sleep(_CHECK_ANSWERS_EVERY)
        for question in asked.values():
            question.forget()
        if asked:
            log.warning(
                "The run ends before the seeks on %d partitions were carried out, because Kafka did not return the "
                "offset in %s: %s The next run will continue the partitions at their last commits.",
                len(asked),
                next(iter(asked)),
                failed or "It has not answered yet.",
            )

    def _move_answered(self, asked: dict[TopicPartition, SeekQuestion]) -> KafkaError | None:
        """Move the partitions whose offsets Kafka has returned, and remove them from `asked`.

        Returns the error if Kafka has refused a request, and None otherwise.
        """
        for partition, question in list(asked.items()):
            try:
                offset = question.answer()
            except KafkaError as error:
                return error
            if offset is not None:
                with self._lock:
                    self._seeks.pop(partition, None)
                    self._assign(self._levels.of(partition), partition, _Known(OffsetMap(offset)), moved=True)
                self._starting.pop(partition, None)
                del asked[partition]
        return None

    def let_go(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions. Their uncommitted records then count as not done."""
        with self._lock:
            self._engine.revoke(partitions)
            targets = {partition: self._seeks.pop(partition, None) for partition in partitions}
            for partition in partitions:
                self._tried.pop(partition, None)
        for partition in partitions:
            start = self._starting.pop(partition, None)
            if start:
                start.forget()
            if target := targets[partition] or (start and start.target):
                log.warning(
                    "%s was revoked before the seek to %s was carried out. The partition's next owner will continue at "
                    "the last commit.",
                    partition,
                    target,
                )


def _fetched(member: LevelConsumer, level: int, demand: int, of_quiet: int, now: float) -> list[ConsumerRecord]:
    """Fetch up to `demand` records from a member, or up to `of_quiet` records of quiet partitions if `demand` is 0.

    In any case, the member takes part in the rebalances of its group.
    """
    if demand:
        return member.fetch(level, demand, now)
    if of_quiet:
        return member.fetch_quiet(level, of_quiet, now)
    member.serve(now)
    return []


def _known_of(member: LevelConsumer, partition: TopicPartition, found: StartOffset, *, fails: bool) -> _Known:
    """Return the state of a partition that its commit describes.

    An offset map that is not valid for the log is dropped.

    Without a commit, the state begins at offset 0, because the engine skips offsets that never arrive. With `fails`,
    raises `OffsetMapError` instead of dropping a map.
    """
    offset, metadata, log_end = found
    if metadata is None:
        return _Known(OffsetMap(0))
    if not metadata:
        return _Known(OffsetMap(offset))
    try:
        log_of_topic = log_mark(member.client.topic_id(partition) or "")
        offset_map, trailer = decode_with_trailer(metadata, offset, log_end, log_of_topic)
        if trailer is None and offset_map.runs:
            _refuse_if_mirrored(member)
    except OffsetMapError as error:
        if fails:
            raise OffsetMapError(
                f"The metadata of the commit of {partition} at offset {offset} cannot be used as an offset map: "
                f"{error} Without the map, completed records above that offset would be handled again. Find out which "
                "other program commits in this group, or set on_invalid_metadata='warn' to continue without the map."
            ) from error
        log.warning("Reading %s begins at its committed offset %d without an offset map: %s", partition, offset, error)
        return _Known(OffsetMap(offset))
    return _Known(offset_map, trailer.tried if trailer else NOTHING_TRIED)


def _refuse_if_mirrored(member: LevelConsumer) -> None:
    """Raise `OffsetMapError` if MirrorMaker 2 might have copied a commit from another cluster.

    A map that the Java parallel consumer wrote does not contain the id of the topic that it was made for. MirrorMaker 2
    translates the offset of a commit but copies its map unchanged, so the map can be wrong. If this cluster has a topic
    for MirrorMaker's checkpoints, every map without a trailer might have been copied in this way.
    """
    topics = member.client.topics(None, _TOPICS_LISTED_WITHIN)
    if checkpoints := next(filter(_is_of_mirrors, topics), None):
        raise OffsetMapError(
            "The map was written by the Java parallel consumer, which does not store the topic's id, and the topic "
            f"{checkpoints} shows that MirrorMaker 2 copies commits to this cluster. So the map may belong to another "
            "cluster's log."
        )


def _raise_unless_fetching(member: LevelConsumer) -> None:
    if member.membership.callback_errors:
        raise member.membership.callback_errors.popleft()
    while member.client.errors:
        error = member.client.errors.popleft()
        was_never_granted = isinstance(error, AuthorizationError) and not member.membership.was_member
        if was_never_granted or not isinstance(error, FetchError):
            raise error
        log.warning("%s", error)
