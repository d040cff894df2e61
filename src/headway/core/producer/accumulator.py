"""The records that were sent and not yet reported on: who has room, and what is handed over next.

Most records wait nowhere: their queue is *admitted* to hand over at once, on *credit* for about a request's bytes, and
only the sizes are kept. Whoever would overtake another, or has no window or room left, waits: in the queue of its
partition, or in its topic's *undesignated* queue if any partition will do. A *raw* record, not serialised yet, waits in
its topic's raw queue until it is sorted into one of these. What was handed over is *in flight* until it is reported,
within its queue's window (`FlowControl`). The Kafka client finds the partition of a record with a key quicker than we
do: such records are *unplaced*, together in one queue, for as long as that has room and nobody of the topic waits.

Each level has an equal part of the memory to itself. In it a topic, and in a topic a queue, may use at most
`1 - reserve` of what it would find alone: so a flood leaves room for whoever comes next, and two floods leave room for
a third. (Dynamic thresholds, Choudhury and Hahne 1998: the number of topics need not be known.)

Invariants: what a level uses never passes its part; the records of a partition leave in the order in which they came,
those that came raw as well; a partition that cannot send holds up only itself; levels get their shares of the bytes
handed over, topics of a level and queues of a topic take turns; all costs are per record or per turn, never per queue;
a queue with nothing on its way holds no credit.
"""

from collections import deque
from collections.abc import Collection, Iterable
from typing import Generic, NamedTuple

from headway.core.producer.flow_control import FlowControl
from headway.core.producer.queues import ANY_PARTITION, Batch, Level, Queue, R, TopicQueues
from headway.core.producer.turn_policies import TurnPolicy

# The bytes of a turn, and of what sticks to one partition of those that any will do for: about a request.
_TURN = 64 * 1024
# The bytes of a credit, which is at most one of so many parts of a level's memory. To ask for one takes ten times what
# a record takes that need not.
_CREDIT = 256 * 1024
_CREDITS = 64
# Unplaced records of which none was reported for so many seconds are stuck.
_STUCK_AFTER = 0.5


class Limits(NamedTuple):
    """How much may wait, in bytes, and for how long, in seconds."""

    memory: int = 64 * 1024 * 1024
    reserve: float = 0.2  # the part of the room found that each leaves to its like
    window: int = 4 * 1024 * 1024  # in flight of one partition; the last record may pass it
    patience: float = 300.0


class Accumulator(Generic[R]):
    """Takes records of several levels, and gives them out in batches. For one thread at a time.

    The caller makes its records with `size` and `since`, gets `TopicQueues` once per topic, hands over those whose
    queue has credit or is admitted, puts the others into their queues, drains, and settles what was reported.
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
        self._topics: dict[str, TopicQueues[R]] = {}
        self._raw: deque[TopicQueues[R]] = deque()
        self._expired: list[R] = []
        self._look_at = 0.0
        self.reported: list[Queue[R]] = []  # the queues that have `returned`

    def topic(self, kafka_topic: str, level: int) -> TopicQueues[R]:
        """The queues of a topic, made when they are first asked for."""
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
        """The bytes of all that waits or is in flight."""
        return sum(level.used for level in self._levels)

    @property
    def waiting(self) -> int:
        """How many records were not handed over yet."""
        return sum(topic.waiting for topic in list(self._topics.values()))

    # At once

    def admit(self, queue: Queue[R], size: int, now: float) -> bool:
        """Whether a record may be handed over now, past the queue: it then has credit for this one, and others.

        Not where it would overtake one that waits, and not where window or room is used up.
        """
        topic = queue.topic
        if topic.waiting if queue is topic.unplaced else (queue.records or topic.has_raw):
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
        """The queue by which a record for any partition may be handed over now: see `admit`."""
        if not topic.partition_count:
            return topic.unplaced if self.admit(topic.unplaced, size, now) else None
        queue = None if topic.undesignated.records else self._sticky(topic)
        if queue is None or not self.admit(queue, size, now):
            return None
        topic.sticky_left -= queue.credit  # as `settle` gives it back
        return queue

    def has_room_soon(self, queue: Queue[R], size: int, now: float) -> bool:
        """Whether a record with a key had better wait for the unplaced ones' room than go by its own partition.

        A flood uses up their room, and has it back record by record. To find partitions for what comes meanwhile would
        double its cost, so each of them takes a credit's worth: that is enough for who sends little. If none of the
        unplaced is reported any more, they are stuck, and the partitions have all of their own room.
        """
        unplaced = queue.topic.unplaced
        is_full = not queue.topic.waiting and self._room(unplaced) < size
        return is_full and queue.used >= self._credit and now - unplaced.reported_at < _STUCK_AFTER

    def take_back(self, queue: Queue[R], size: int) -> None:
        """What was handed over on credit was refused at once."""
        queue.in_flight -= size
        self._charge(queue, -size)

    def revoke_all(self) -> None:
        """Whoever hands over next must be admitted before."""
        for topic in self._topics.values():
            for queue in topic.queues():
                self._revoke(queue)

    def _revoke(self, queue: Queue[R]) -> None:
        """Who waits from now on must not be overtaken on credit."""
        if queue.credit:
            self.take_back(queue, queue.credit)
            queue.credit = 0

    def _room(self, queue: Queue[R]) -> float:
        topic, keep, reserve = queue.topic, self._keep, self._reserve
        return keep * (keep * (self._level_memory - topic.level.used) - reserve * topic.used) - reserve * queue.used

    # In

    def put(self, queue: Queue[R], record: R, *, raw: bool = False) -> bool:
        """Take a record for a queue; False, and nothing is kept, where it has no room.

        A raw record counts for the queue but waits to be sorted; so must any for a partition while its topic `has_raw`.
        """
        topic, size = queue.topic, record.size
        self._revoke(queue)
        self._revoke(topic.unplaced)
        if size > self._room(queue) and (topic.level.used or size > self._level_memory):
            return False
        record.queue = queue
        self._charge(queue, size)
        topic.waiting += 1
        if raw:
            if not topic.raw.records:
                self._raw.append(topic)
            topic.raw.records.append(record)
        else:
            queue.records.append(record)
            if not queue.listed:
                self._list(queue)
        return True

    def _charge(self, queue: Queue[R], size: int) -> None:
        queue.used += size
        queue.topic.used += size
        queue.topic.level.used += size

    def learn(self, topic: TopicQueues[R], partition_count: int, leaders: Collection[int]) -> list[R]:
        """How many partitions a topic has and which can be sent to; the waiting records of those that it has not."""
        topic.partition_count = partition_count
        topic.leaders = frozenset(leaders)
        if topic.sticky is not None and topic.sticky.partition not in topic.leaders:
            topic.sticky = None
        missing = [queue for number, queue in topic.partitions.items() if number >= partition_count]
        refused = [record for queue in missing for record in self._empty(queue)]
        self._relist(topic)
        return refused

    # Sorting

    def take_raw(self, limit: int) -> list[R]:
        """Raw records of topics whose partitions are known, at most `limit`, in order; each is sorted or dropped."""
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
        """A raw record's partition and bytes are known: it waits there, behind those that were sorted before.

        While some for a queue are raw all are, so its records wait in order, and the first is the first to expire.
        Nothing becomes of one that was purged since it was taken.
        """
        topic = record.queue.topic
        if record not in topic.sorting:
            return
        del topic.sorting[record]
        self._charge(record.queue, -record.size)
        record.size = size
        record.queue = queue = topic.queue(partition)
        self._charge(queue, size)
        # It was in no queue while the others were looked at.
        self._look_at = min(self._look_at, record.since + self._limits.patience)
        queue.records.append(record)
        self._list(queue)

    def drop(self, record: R) -> bool:
        """A raw record that was taken is not sent at all; False if it was purged since."""
        if record not in record.queue.topic.sorting:
            return False
        del record.queue.topic.sorting[record]
        self._forget(record)
        return True

    # Out

    def drain(self, limit: int, now: float) -> list[Batch[R]]:
        """What is handed over now: turns until they come to `limit` bytes, or no queue can send."""
        batches: list[Batch[R]] = []
        while limit > 0 and (level := self._turns.pick([each.oldest() for each in self._levels], now)) is not None:
            batch = self._take_turn(self._levels[level], now)
            if batch is not None:
                batches.append(batch)
                limit -= batch.size
                self._turns.charge(level, batch.size)
        return batches

    def _take_turn(self, level: Level[R], now: float) -> Batch[R] | None:
        """The turn of a level is one of its next topic, which is one of that one's next queue."""
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
            self._list(queue)
        return batch

    def _take(self, queue: Queue[R], now: float) -> Batch[R] | None:
        topic = queue.topic
        target = self._sticky(topic) if queue is topic.undesignated else queue
        if target is None or not queue.records:
            return None
        room = min(_TURN, target.window - target.in_flight)
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

    def _sticky(self, topic: TopicQueues[R]) -> Queue[R] | None:
        """Where records without a partition go: where the last ones went until that is a batch, then to most room."""
        sticky = topic.sticky
        if sticky is None or topic.sticky_left <= 0 or not self._can_send(sticky):
            last = ANY_PARTITION if sticky is None else sticky.partition
            after_last = sorted(topic.leaders, key=lambda number: (number - last - 1) % topic.partition_count)
            able = [queue for number in after_last if self._can_send(queue := topic.queue(number))]
            topic.sticky = min(able, key=lambda queue: queue.used, default=None)
            topic.sticky_left = _TURN
        return topic.sticky

    def settle(self, now: float) -> None:
        """What was reported since is not in flight any more; its room is free again, and idle queues' credit."""
        queues = self.reported[:]
        self.reported.clear()
        for queue in queues:
            size, queue.returned = queue.returned, 0
            queue.reported_at = now
            self.take_back(queue, size)
            self._wire.reported(queue, size, now)
            if queue.in_flight == queue.credit:
                if queue is queue.topic.sticky:
                    queue.topic.sticky_left += queue.credit
                self._revoke(queue)
            self._list(queue)
            self._list(queue.topic.undesignated)
        self._wire.share(now)

    def _can_send(self, queue: Queue[R]) -> bool:
        return queue.partition in queue.topic.leaders and queue.in_flight < queue.window

    def _list(self, queue: Queue[R]) -> None:
        """Give a queue turns, if it can use one."""
        topic = queue.topic
        if queue.listed or not queue.records or queue is topic.raw:
            return
        if self._can_send(queue) or (queue is topic.undesignated and topic.leaders):
            queue.listed = True
            topic.turns.append(queue)
            if not topic.listed:
                topic.listed = True
                topic.level.turns.append(topic)

    # What is given up

    def next_expiry(self) -> float:
        """When to ask for what is expired: no record expires before."""
        return self._look_at

    def expired(self, now: float) -> list[R]:
        """The records that waited longer than they may; they are forgotten."""
        if now >= self._look_at:
            self._look_at = now + self._limits.patience
            for topic in self._topics.values():
                if sum(self._expire(queue, now) for queue in topic.queues()):
                    self._relist(topic)
                for queue in topic.queues():
                    if queue.records:
                        self._look_at = min(self._look_at, queue.records[0].since + self._limits.patience)
        expired, self._expired = self._expired, []
        return expired

    def purge(self, topics: Iterable[TopicQueues[R]]) -> list[R]:
        """Forget what waits or is being sorted of some topics, and return it; what is in flight will be reported."""
        purged: list[R] = []
        for topic in topics:
            purged += topic.sorting
            for record in topic.sorting:
                self._forget(record)
            topic.sorting.clear()
            for queue in topic.queues():
                purged += self._empty(queue)
            self._relist(topic)
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

    def _relist(self, topic: TopicQueues[R]) -> None:
        """Who has turns, from the start: after something rare."""
        if topic.listed:
            topic.level.turns.remove(topic)
            topic.listed = False
        topic.turns.clear()
        for queue in topic.queues():
            queue.listed = False
            self._list(queue)
