"""The accumulator: the records that were sent and not yet reported on, their memory, and the order in which they leave.

Most records wait nowhere. Their queue is *admitted* to hand over at once, on *credit* for about a request's bytes, and
the accumulator keeps only their sizes. A record waits if it would overtake another, or has no window or room left. It
waits in the queue of its partition, or in its topic's *undesignated* queue if any partition will do. A *raw* record,
not serialised yet, waits in its topic's raw queue until it is sorted into one of these. Records that were handed over
are *in flight* until they are reported, within their queue's window (`FlowControl`). The Kafka client finds the
partition of a record with a key quicker than we do. Such records are *unplaced*: they go through one queue, as long as
it has room and no record of the topic waits.

Each level has an equal part of the memory to itself. In it a topic, and in a topic a queue, may use at most `1 -
reserve` of the room that it would find alone. So a flood leaves room for the next sender, and two floods leave room for
a third. (Dynamic thresholds, Choudhury and Hahne 1998: the number of topics need not be known.)

Invariants:
- A level never uses more than its part.
- The records of a partition leave in the order in which they came, also those that came raw.
- A partition that cannot send holds up only itself.
- Levels get their shares of the bytes handed over; topics of a level and queues of a topic take turns.
- All costs are per record or per turn, never per queue.
- A queue with nothing on its way holds no credit.
- While a broker throttles the client, no queue holds credit, and little is in flight: see `Throttle`.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Generic, NamedTuple

from headway.core.producer.flow_control import FlowControl
from headway.core.producer.queue_turns import TURN, list_queue, relist, sticky_queue
from headway.core.producer.queues import NOTHING, Batch, Level, Queue, R, TopicQueues
from headway.core.producer.throttle import AVERAGED_OVER, Throttle
from headway.core.producer.turn_policies import TurnPolicy, Turns

# The bytes of a credit; at most a level's memory divided by _CREDITS. A record that must ask for credit takes ten times
# as long as one that need not.
_CREDIT = 256 * 1024
_CREDITS = 64
# Unplaced records are stuck if none of them was reported for this many seconds.
STUCK_AFTER = 0.5


class Limits(NamedTuple):
    """The bytes that may wait, and the seconds for which they may."""

    memory: int = 64 * 1024 * 1024
    reserve: float = 0.2  # the part of its free room that each topic or queue leaves to the others
    window: int = 4 * 1024 * 1024  # in flight for one partition; the last record may exceed it
    patience: float = 300.0


class Accumulator(Generic[R]):
    """The records of several levels, taken one by one and given out in batches. For one thread at a time.

    The caller makes its records with `size` and `since`, and gets `TopicQueues` once per topic. It hands over records
    whose queue has credit or is admitted, and puts the others into their queues. Then it drains, and settles the
    reports.
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
        # What each level had delivered, once a second, for as long as a quota's average.
        self._delivered_by: deque[tuple[float, list[int]]] = deque([(-math.inf, [0] * levels)])
        self._topics: dict[str, TopicQueues[R]] = {}
        self._raw: deque[TopicQueues[R]] = deque()
        self._expired: list[R] = []
        self._look_at = 0.0
        self.reported: list[Queue[R]] = []  # the queues that have `returned`

    def topic(self, kafka_topic: str, level: int) -> TopicQueues[R]:
        """Return the queues of a topic; they are made at the first call."""
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
        """The bytes of all records that wait or are in flight."""
        return sum(level.used for level in self._levels)

    @property
    def waiting(self) -> int:
        """The number of records that were not handed over yet."""
        return sum(topic.waiting for topic in list(self._topics.values()))

    # At once

    def admit(self, queue: Queue[R], size: int, now: float) -> bool:
        """Return whether a record may be handed over now, past the queue; the queue then has credit for it and others.

        The record is refused if it would overtake a waiting one, or if window or room is used up.
        """
        topic = queue.topic
        if self._throttle is not None or (
            topic.waiting if queue is topic.unplaced else (queue.records or topic.has_raw)
        ):
            return False
        if queue.in_flight >= queue.window:
            return False
        more = size - queue.credit
        room = min(self._room(queue), max(more, queue.window - queue.in_flight))
        more = max(more, min(self._credit, int(room)))
        if more > room and (topic.level.used or more > self._level_memory):
            return False
        self._wire.handed_over(queue, size, now)
        self._charge(queue, more)
        queue.in_flight += more
        queue.credit += more
        return True

    def admit_any(self, topic: TopicQueues[R], size: int, now: float) -> Queue[R] | None:
        """Return the queue by which a record for any partition may be handed over now, if any: see `admit`."""
        if not topic.partition_count:
            return topic.unplaced if self.admit(topic.unplaced, size, now) else None
        queue = None if topic.undesignated.records else sticky_queue(topic)
        if queue is None or not self.admit(queue, size, now):
            return None
        topic.sticky_left -= queue.credit  # `settle` gives it back
        return queue

    def choose(
        self,
        queue: Queue[R],
        key: str | bytes | None,
        size: int,
        is_placed: bool,
        now: float,
        partition_of: Callable[[str | bytes, int], int],
    ) -> tuple[Queue[R], bool]:
        """Return the queue of a record whose first choice has no credit, and whether it may be handed over at once.

        A record that `is_placed` is for one partition only, which may be the sticky one as well.
        """
        topic = queue.topic
        if key is None and not is_placed:
            admitted = self.admit_any(topic, size, now)
            return admitted or topic.undesignated, admitted is not None
        if self.admit(queue, size, now):
            return queue, True
        if is_placed or key is None or not topic.partition_count:
            return queue, False
        queue = topic.queue(partition_of(key, topic.partition_count))
        if self.has_room_soon(queue, size, now):
            return topic.unplaced, False
        return queue, self.admit(queue, size, now)

    def has_room_soon(self, queue: Queue[R], size: int, now: float) -> bool:
        """Return whether a record with a key should wait for the unplaced queue's room, not go by its own partition.

        A flood uses up the unplaced queue's room, and gets it back record by record. Finding partitions for the records
        that come meanwhile would double the flood's cost. So each partition takes only a credit's worth, which is
        enough for a sender of few records. If no unplaced record is reported any more, they are stuck, and the
        partitions may use all of their own room.
        """
        unplaced = queue.topic.unplaced
        is_full = not queue.topic.waiting and self._room(unplaced) < size
        return is_full and queue.used >= self._credit and now - unplaced.reported_at < STUCK_AFTER

    def throttled(self, seconds: float, now: float) -> None:
        """Keep little in flight from now on, as a broker reads nothing of this client for this many seconds."""
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
        """Let the first of the sums be that of ten seconds ago."""
        while len(self._delivered_by) > 1 and now - self._delivered_by[1][0] >= AVERAGED_OVER:
            self._delivered_by.popleft()

    def take_back(self, queue: Queue[R], size: int) -> None:
        """Take back bytes that were handed over on credit and refused at once."""
        queue.in_flight -= size
        self._charge(queue, -size)

    def revoke_all(self) -> None:
        """Revoke all credit: every queue must be admitted before it hands over again."""
        for topic in self._topics.values():
            for queue in topic.queues():
                self._revoke(queue)

    def _revoke(self, queue: Queue[R]) -> None:
        """Revoke a queue's credit, so that no record overtakes those that wait from now on."""
        if queue.credit:
            self.take_back(queue, queue.credit)
            queue.credit = 0

    def _room(self, queue: Queue[R]) -> float:
        topic, keep, reserve = queue.topic, self._keep, self._reserve
        return keep * (keep * (self._level_memory - topic.level.used) - reserve * topic.used) - reserve * queue.used

    # In

    def put(self, queue: Queue[R], record: R, *, raw: bool = False) -> bool:
        """Take a record for a queue; return False, and keep nothing, if the queue has no room.

        A raw record counts for the queue but waits to be sorted. While its topic `has_raw`, every record for a
        partition must be put as raw too.
        """
        topic, size = queue.topic, record.size
        self._revoke(queue)
        self._revoke(topic.unplaced)
        if size > self._room(queue) and (topic.level.used or size > self._level_memory):
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
        """Note a topic's partitions and those with a leader; return the waiting records of missing partitions."""
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
        """Return up to `limit` raw records, in order, if their topic's partitions are known; sort or drop each."""
        taken: list[R] = []
        for _ in range(len(self._raw)):
            topic = self._raw.popleft()
            records, room = topic.raw.records, limit - len(taken)
            if topic.partition_count:
                batch = [records.popleft() for _ in range(min(room, len(records)))]
                topic.sorting.update(dict.fromkeys(batch))
                taken += batch
            if records:
                self._raw.append(topic)
        return taken

    def sort(self, record: R, partition: int | None, size: int) -> None:
        """Put a raw record into the queue of its partition, with its serialised size, behind those sorted before.

        While one record for a queue is raw, all later ones are. So its records wait in order, and the first is the
        first to expire. A record that was purged since it was taken is ignored.
        """
        topic = record.queue.topic
        if record not in topic.sorting:
            return
        del topic.sorting[record]
        self._charge(record.queue, -record.size)
        record.size = size
        record.queue = queue = topic.queue(partition)
        self._charge(queue, size)
        # The record was in no queue when `expired` last looked.
        self._look_at = min(self._look_at, record.since + self._limits.patience)
        if queue.records is NOTHING:
            queue.records = deque()
        queue.records.append(record)
        list_queue(queue)

    def drop(self, record: R) -> bool:
        """Give up a raw record that was taken; return False if it was purged since."""
        if record not in record.queue.topic.sorting:
            return False
        del record.queue.topic.sorting[record]
        self._forget(record)
        return True

    # Out

    def drain(self, limit: int, now: float) -> list[Batch[R]]:
        """Return the batches to hand over now: turns until they come to `limit` bytes, or no queue can send."""
        batches: list[Batch[R]] = []
        turns: Turns = self._turns
        if self._throttle is not None:
            turns = self._throttle.turns
            in_flight = sum(self._throttle.counted(each, now) for topic in self.topics for each in topic.queues())
            limit = min(limit, self._throttle.room(in_flight, now))
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
        """Take the turn of a level: a turn of its next topic, which is a turn of that topic's next queue."""
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
        room = min(TURN, target.window - target.in_flight)
        if target is not queue:
            room = min(room, topic.sticky_left)
        records, taken, size = queue.records, list[R](), 0
        self._wire.handed_over(target, records[0].size, now)
        while records and size < room:
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
        """Take the reported bytes out of flight: their room is free again, and so is the credit of idle queues."""
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
    def next_room(self) -> float:
        """The time at which a quota lets something be handed over, infinite if there is none."""
        return math.inf if self._throttle is None else self._throttle.next_room

    def next_expiry(self) -> float:
        """Return when to call `expired` next: no record expires before."""
        return self._look_at

    def expired(self, now: float) -> list[R]:
        """Return the records that waited longer than they may, and forget them."""
        if now >= self._look_at:
            self._look_at = now + self._limits.patience
            for topic in self._topics.values():
                if sum(self._expire(queue, now) for queue in topic.queues()):
                    relist(topic)
                for queue in topic.queues():
                    if queue.records:
                        self._look_at = min(self._look_at, queue.records[0].since + self._limits.patience)
        expired, self._expired = self._expired, []
        return expired

    def purge(self, topics: Iterable[TopicQueues[R]]) -> list[R]:
        """Forget the records of some topics that wait or are being sorted, and return them.

        Records in flight will still be reported.
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
