"""The accumulator of a producer, which tracks records until their delivery is reported.

The accumulator limits the memory that records take, and decides the order in which they are handed over to librdkafka.

Most records never wait, because their queue is *admitted*: the queue gets *credit* for about one request. While a queue
has credit, its records are handed over at once, and the accumulator only counts their sizes. A record waits if it would
overtake another record, or if the window of its queue or the buffer is full. A waiting record is in the queue of its
partition, or in the *undesignated* queue of its topic if it can go to any partition. A *raw* record, which is not
serialised yet, waits in the raw queue of its topic until it is sorted into one of these queues. Records that were
handed over are *in flight* until their delivery is reported; the window of a queue limits its bytes in flight
(`FlowControl`). librdkafka computes the partition of a key faster than Python code. So records with a key are
*unplaced*: they share one queue of their topic, as long as this queue has space and no record of the topic is waiting.

The memory is divided equally among the levels. A topic may use at most the fraction `1 - reserve` of the space that it
would have if it were alone, and the same applies to each queue within its topic. So a flood of records leaves space for
the next sender, and two floods leave space for a third. These dynamic thresholds (Choudhury and Hahne 1998) work for
any number of topics.

Invariants:
- A level never uses more than its share of the memory.
- The records of a partition are handed over in the order in which they arrived, even if they were raw.
- A partition that cannot send delays only its own records.
- Levels get their shares of the bytes that are handed over. The topics of a level take turns, and so do the queues of a
  topic.
- Each operation costs time per record or per turn, never per queue.
- A queue without records in flight holds no credit.
- While a broker throttles the client, no queue holds credit, and few bytes are in flight; see `Throttle`.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable
from typing import Generic, NamedTuple, Protocol

from headway.core.producer.flow_control import FlowControl
from headway.core.producer.queue_turns import TURN, list_queue, relist, sticky_queue
from headway.core.producer.queues import NOTHING, Batch, Level, Queue, R, TopicQueues
from headway.core.producer.throttle import AVERAGED_OVER, Throttle
from headway.core.producer.turn_policies import TurnPolicy, Turns

# The size of a credit in bytes, which is at most a level's memory divided by `_CREDITS`. Credits save time: handing
# over a record takes ten times as long if its queue must first be admitted.
_CREDIT = 256 * 1024
_CREDITS = 64
# Unplaced records count as stuck when no delivery of one has been reported for this many seconds.
STUCK_AFTER = 0.5


class Partitioner(Protocol):
    """Chooses the partitions for keys."""

    def partition_of(self, key: str | bytes, partition_count: int) -> int: ...


class Limits(NamedTuple):
    """The limits of an accumulator."""

    memory: int = 64 * 1024 * 1024  # the maximum bytes of all levels together
    reserve: float = 0.2  # the fraction of the free space that each topic and each queue leaves to others
    window: int = 4 * 1024 * 1024  # the maximum bytes in flight for one partition; the last record can exceed this
    patience: float = 300.0  # how long a record may wait, in seconds


class Accumulator(Generic[R]):
    """Receives records of several levels one by one, and returns them in batches. Only one thread at a time may use it.

    The caller sets `size` and `since` of its records, and gets the `TopicQueues` of each topic once. If the queue of a
    record has credit or is admitted, the caller hands the record over itself. Otherwise, the caller puts the record
    into the queue. The caller also calls `drain` to get waiting records, and `settle` after delivery reports.
    """

    def __init__(self, levels: int, turns: TurnPolicy, limits: Limits = Limits()) -> None:  # noqa: B008 - immutable
        self._limits = limits
        self._reserve = limits.reserve
        self._keep = 1 - limits.reserve
        self._level_memory = limits.memory // levels
        self._credit = min(_CREDIT, self._level_memory // _CREDITS)
        self._levels: list[Level[R]] = [Level(index) for index in range(levels)]
        self._turns = turns
        self._wire: FlowControl[R] = FlowControl()
        self._throttle: Throttle | None = None
        # The total bytes that each level had delivered at earlier times. A total is recorded once a second, and kept
        # for the period over which a quota is averaged.
        self._delivered_by: deque[tuple[float, list[int]]] = deque([(-math.inf, [0] * levels)])
        self._topics: dict[str, TopicQueues[R]] = {}
        self._raw: deque[TopicQueues[R]] = deque()
        self._expired: list[R] = []
        self._check_at = 0.0
        self.reported: list[Queue[R]] = []  # the queues whose `returned` is not 0

    def topic(self, kafka_topic: str, level: int) -> TopicQueues[R]:
        """Return the queues of a topic. The first call for a topic creates them."""
        found = self._topics.get(kafka_topic)
        if found is None:
            found = self._topics[kafka_topic] = TopicQueues(
                kafka_topic, self._levels[level], self.reported, self._limits.window
            )
        return found

    @property
    def topics(self) -> list[TopicQueues[R]]:
        """The queues of all topics."""
        return list(self._topics.values())

    @property
    def used(self) -> int:
        """The total size of all records that wait or are in flight, in bytes."""
        return sum(level.used for level in self._levels)

    @property
    def waiting(self) -> int:
        """The number of records that have not been handed over yet."""
        return sum(topic.waiting for topic in list(self._topics.values()))

    # Handing over without waiting

    def admit(self, queue: Queue[R], size: int, now: float) -> bool:
        """Return whether a record may be handed over directly.

        If so, its queue gets credit for this record and further ones.

        A record is not admitted if it would overtake a waiting record, if the window or the buffer is full, or while a
        broker throttles the client.
        """
        topic = queue.topic
        if self._throttle is not None or (
            topic.waiting if queue is topic.unplaced else (queue.records or topic.has_raw)
        ):
            return False
        if queue.in_flight >= queue.window:
            return False
        more = size - queue.credit
        space = min(self._space_of(queue), max(more, queue.window - queue.in_flight))
        more = max(more, min(self._credit, int(space)))
        if more > space and (topic.level.used or more > self._level_memory):
            return False
        self._wire.handed_over(queue, size, now)
        self._charge(queue, more)
        queue.in_flight += more
        queue.credit += more
        return True

    def admit_any(self, topic: TopicQueues[R], size: int, now: float) -> Queue[R] | None:
        """Return a queue that admits a record for any partition (see `admit`), or None if no queue admits it."""
        if not topic.partition_count:
            return topic.unplaced if self.admit(topic.unplaced, size, now) else None
        queue = None if topic.undesignated.records else sticky_queue(topic)
        if queue is None or not self.admit(queue, size, now):
            return None
        topic.sticky_left -= queue.credit  # `settle` adds unused credit back to `sticky_left`
        return queue

    def choose(
        self,
        queue: Queue[R],
        key: str | bytes | None,
        size: int,
        is_placed: bool,
        now: float,
        partitioner: Partitioner,
    ) -> tuple[Queue[R], bool]:
        """Choose a queue for a record if `queue` does not have enough credit for the record.

        Returns the queue, and whether the record can be handed over now. `is_placed` is True if the partition of the
        record is already decided, by the user or because it is the sticky partition.
        """
        topic = queue.topic
        if key is None and not is_placed:
            admitted = self.admit_any(topic, size, now)
            return admitted or topic.undesignated, admitted is not None
        if self.admit(queue, size, now):
            return queue, True
        if is_placed or key is None or not topic.partition_count:
            return queue, False
        queue = topic.queue(partitioner.partition_of(key, topic.partition_count))
        if self.has_space_soon(queue, size, now):
            return topic.unplaced, False
        return queue, self.admit(queue, size, now)

    def has_space_soon(self, queue: Queue[R], size: int, now: float) -> bool:
        """Return whether a record with a key should wait for space in the unplaced queue, not in its partition's queue.

        While records flood a topic, the unplaced queue is always full, and its space becomes free record by record. If
        Python code computed the partition of each record that arrives while the queue is full, the flood would cost
        twice as much time. So the queue of a partition accepts only one credit's worth of these records, which is
        enough for a sender of few records. If no unplaced record has been reported for some time, the unplaced records
        are stuck. In that case, the queues of partitions may use all of their own space.
        """
        unplaced = queue.topic.unplaced
        is_full = not queue.topic.waiting and self._space_of(unplaced) < size
        return is_full and queue.used >= self._credit and now - unplaced.reported_at < STUCK_AFTER

    def throttled(self, seconds: float, now: float) -> None:
        """Limit the bytes in flight from now on, because a broker throttles this client for this many seconds."""
        self._forget_delivered(now)
        before = self._delivered_by[0][1]
        delivered = [level.delivered - size for level, size in zip(self._levels, before, strict=True)]
        rate = sum(delivered) / AVERAGED_OVER
        if self._throttle is not None:
            self._throttle.again(rate, seconds, now)
            return
        self.revoke_all()
        turns = self._turns.under_quota(delivered, now)
        self._throttle = Throttle(rate, seconds, now, turns)
        for topic in self._topics.values():
            for queue in topic.queues():
                turns.charge(topic.level.index, self._throttle.counted(queue, now))

    def _forget_delivered(self, now: float) -> None:
        """Drop old totals of delivered bytes, so that the first total is about ten seconds old."""
        while len(self._delivered_by) > 1 and now - self._delivered_by[1][0] >= AVERAGED_OVER:
            self._delivered_by.popleft()

    def take_back(self, queue: Queue[R], size: int) -> None:
        """Release bytes that are no longer in flight, for example because librdkafka refused the record at once."""
        queue.in_flight -= size
        self._charge(queue, -size)

    def revoke_all(self) -> None:
        """Revoke all credit, so that every queue must be admitted again before its records are handed over."""
        for topic in self._topics.values():
            for queue in topic.queues():
                self._revoke(queue)

    def _revoke(self, queue: Queue[R]) -> None:
        """Revoke a queue's credit, so that no record can overtake records that begin to wait now."""
        if queue.credit:
            self.take_back(queue, queue.credit)
            queue.credit = 0

    def _space_of(self, queue: Queue[R]) -> float:
        topic, keep, reserve = queue.topic, self._keep, self._reserve
        return keep * (keep * (self._level_memory - topic.level.used) - reserve * topic.used) - reserve * queue.used

    # Adding records

    def put(self, queue: Queue[R], record: R, *, raw: bool = False) -> bool:
        """Put a record into a queue. Returns False, without adding the record, if the queue has no space.

        The size of a raw record counts for this queue, but the record waits in the raw queue of its topic. While
        `has_raw` is True for the topic, all records for partitions must also be put with `raw=True`.
        """
        topic, size = queue.topic, record.size
        self._revoke(queue)
        self._revoke(topic.unplaced)
        if size > self._space_of(queue) and (topic.level.used or size > self._level_memory):
            return False
        record.queue = queue
        self._charge(queue, size)
        topic.waiting += 1
        place = topic.raw if raw else queue
        if raw and not place.records:
            self._raw.append(topic)
        if place.records is NOTHING:
            place.records = deque()
        place.records.append(record)
        if not (raw or queue.listed):
            list_queue(queue)
        return True

    def _charge(self, queue: Queue[R], size: int) -> None:
        queue.used += size
        queue.topic.used += size
        queue.topic.level.used += size

    def learn(self, topic: TopicQueues[R], partition_count: int, leaders: Collection[int]) -> list[R]:
        """Set the number of partitions of a topic, and the partitions that have a leader.

        Returns the records that waited for partitions which do not exist.
        """
        topic.partition_count = partition_count
        topic.leaders = frozenset(leaders)
        if topic.sticky is not None and topic.sticky.partition not in topic.leaders:
            topic.sticky = None
        missing = [queue for number, queue in topic.partitions.items() if number >= partition_count]
        refused = [record for queue in missing for record in self._empty(queue)]
        relist(topic)
        return refused

    # Sorting

    def take_raw(self, limit: int) -> list[R]:
        """Return up to `limit` raw records of topics whose partitions are known.

        The caller must then call `sort` or `drop` for each of these records.
        """
        taken: list[R] = []
        for _ in range(len(self._raw)):
            topic = self._raw.popleft()
            records, space = topic.raw.records, limit - len(taken)
            if topic.partition_count:
                batch = [records.popleft() for _ in range(min(space, len(records)))]
                topic.sorting.update(dict.fromkeys(batch))
                taken += batch
            if records:
                self._raw.append(topic)
        return taken

    def sort(self, record: R, partition: int | None, size: int) -> None:
        """Put a raw record at the end of the queue of its partition. `size` is its serialised size.

        While a record for a queue is raw, all later records for this queue are also raw. So the records of a queue stay
        in order, and the first record expires first. A record that was purged after `take_raw` is ignored.
        """
        topic = record.queue.topic
        if record not in topic.sorting:
            return
        del topic.sorting[record]
        self._charge(record.queue, -record.size)
        record.size = size
        record.queue = queue = topic.queue(partition)
        self._charge(queue, size)
        # The last call of `expired` did not include this record, because the record was in no queue at that time.
        self._check_at = min(self._check_at, record.since + self._limits.patience)
        if queue.records is NOTHING:
            queue.records = deque()
        queue.records.append(record)
        list_queue(queue)

    def drop(self, record: R) -> bool:
        """Forget a raw record from `take_raw`. Returns False if it was purged in the meantime."""
        if record not in record.queue.topic.sorting:
            return False
        del record.queue.topic.sorting[record]
        self._forget(record)
        return True

    # Taking records

    def drain(self, limit: int, now: float) -> list[Batch[R]]:
        """Return the batches to hand over now, in the order of turns.

        They have about `limit` bytes, or fewer if no queue can send more.
        """
        batches: list[Batch[R]] = []
        turns: Turns = self._turns
        if self._throttle is not None:
            turns = self._throttle.turns
            in_flight = sum(self._throttle.counted(each, now) for topic in self.topics for each in topic.queues())
            limit = min(limit, self._throttle.space(in_flight, now))
        while limit > 0 and (level := turns.pick([each.oldest() for each in self._levels], now)) is not None:
            batch = self._take_turn(self._levels[level], now)
            if batch is not None:
                batches.append(batch)
                limit -= batch.size
                if self._throttle is not None:
                    self._throttle.handed_over(batch.size)
                turns.charge(level, batch.size)
        return batches

    def _take_turn(self, level: Level[R], now: float) -> Batch[R] | None:
        """Use a level's turn for the next queue of the level's next topic."""
        topic = level.turns.popleft()
        queue = topic.turns.popleft()
        queue.listed = False
        self._expire(queue, now)
        batch = self._take(queue, now)
        if topic.turns:
            level.turns.append(topic)
        else:
            topic.listed = False
        if batch is not None:
            list_queue(queue)
        return batch

    def _take(self, queue: Queue[R], now: float) -> Batch[R] | None:
        topic = queue.topic
        target = sticky_queue(topic) if queue is topic.undesignated else queue
        if target is None or not queue.records:
            return None
        space = min(TURN, target.window - target.in_flight)
        if target is not queue:
            space = min(space, topic.sticky_left)
        records, taken, size = queue.records, list[R](), 0
        self._wire.handed_over(target, records[0].size, now)
        while records and size < space:
            record = records.popleft()
            size += record.size
            taken.append(record)
        target.in_flight += size
        topic.waiting -= len(taken)
        if target is not queue:
            topic.sticky_left -= size
            for record in taken:
                record.queue = target
            queue.used -= size
            target.used += size
        return Batch(target, taken, size)

    def settle(self, now: float) -> None:
        """Release the bytes whose delivery has been reported, and the credit of queues that have become idle."""
        queues = self.reported[:]
        self.reported.clear()
        for queue in queues:
            size, queue.returned = queue.returned, 0
            queue.reported_at = now
            self.take_back(queue, size)
            self._wire.reported(queue, size, now)
            queue.topic.level.delivered += size
            if queue.in_flight == queue.credit:
                if queue is queue.topic.sticky:
                    queue.topic.sticky_left += queue.credit
                self._revoke(queue)
            list_queue(queue)
            list_queue(queue.topic.undesignated)
        self._wire.share(now)
        if now - self._delivered_by[-1][0] >= 1:
            self._delivered_by.append((now, [level.delivered for level in self._levels]))
            self._forget_delivered(now)
        if self._throttle is not None and self._throttle.is_over(now):
            self._throttle = None

    # Expiry and purges

    @property
    def next_permit(self) -> float:
        """The time at which a broker's quota next permits a hand-over.

        The time is infinite if no broker throttles the client.
        """
        return math.inf if self._throttle is None else self._throttle.next_permit

    def next_expiry(self) -> float:
        """Return when to call `expired` next. No record expires before this time."""
        return self._check_at

    def expired(self, now: float) -> list[R]:
        """Remove and return the records that have waited longer than `patience`."""
        if now >= self._check_at:
            self._check_at = now + self._limits.patience
            for topic in self._topics.values():
                if sum(self._expire(queue, now) for queue in topic.queues()):
                    relist(topic)
                for queue in topic.queues():
                    if queue.records:
                        self._check_at = min(self._check_at, queue.records[0].since + self._limits.patience)
        expired, self._expired = self._expired, []
        return expired

    def purge(self, topics: Iterable[TopicQueues[R]]) -> list[R]:
        """Remove and return the records of these topics that are waiting or being sorted.

        The delivery of records in flight will still be reported.
        """
        purged: list[R] = []
        for topic in topics:
            purged += topic.sorting
            for record in topic.sorting:
                self._forget(record)
            topic.sorting.clear()
            for queue in topic.queues():
                purged += self._empty(queue)
            relist(topic)
        return purged

    def _empty(self, queue: Queue[R]) -> list[R]:
        records = list(queue.records)
        queue.records.clear()
        for record in records:
            self._forget(record)
        return records

    def _expire(self, queue: Queue[R], now: float) -> int:
        records, before, expired = queue.records, now - self._limits.patience, 0
        while records and records[0].since < before:
            expired += 1
            self._expired.append(record := records.popleft())
            self._forget(record)
        return expired

    def _forget(self, record: R) -> None:
        self._charge(record.queue, -record.size)
        record.queue.topic.waiting -= 1
