"""Simulates parallel consumers: the real engine decides which record starts, and time is a number.

A handler takes the seconds that its record has, and everything else takes no time. So what a simulation shows is due to
the order in which the engine starts records, at any number of records and slots.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count, islice

from headway.core.engine.attempt import Attempt
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.slot_policies import SlotPolicy
from headway.core.offsets.offset_map import OffsetMap
from headway.experiments.run_log import OnProgress, RunLog
from headway.records.record_types import TopicPartition

_LEAST_BUFFER = 1000  # as in a real consumer
_COMMIT_EVERY = 5.0  # seconds


@dataclass(slots=True, eq=False)
class SimulatedRecord:
    """A record: its place and key for the engine, the seconds that it takes, and what the log says about it."""

    offset: int
    raw_key: bytes
    seconds: float
    level: int
    came: float


class SimulatedMember:
    """One parallel consumer of a group, with its partitions."""

    def __init__(
        self, partitions: Iterable[TopicPartition], slots: int, ordering: Ordering, levels: int, policy: SlotPolicy
    ) -> None:
        self.engine: Engine[SimulatedRecord] = Engine(
            ordering, levels=levels, slots=policy, buffer=max(_LEAST_BUFFER, 4 * slots)
        )
        self.log_ends: dict[TopicPartition, int] = {}
        self.free = slots
        self.wakes_at: float | None = None
        self._backlog: dict[TopicPartition, deque[SimulatedRecord]] = {}
        self._commit_at = _COMMIT_EVERY
        for partition in partitions:
            self._backlog[partition] = deque()
            self.log_ends[partition] = 0
            self.engine.assign(partition, OffsetMap(0))

    def store(self, partition: TopicPartition, records: Sequence[SimulatedRecord]) -> None:
        """Append records to the log of a partition."""
        self._backlog[partition].extend(records)
        self.log_ends[partition] += len(records)

    def start(self, now: float) -> list[Attempt[SimulatedRecord]]:
        """Fetch, and start records in the free slots."""
        if now >= self._commit_at:
            self.engine.committed(self.engine.tick())
            self._commit_at = now + _COMMIT_EVERY
        while self._fetch(now):  # the first demand is small, because the engine does not know yet how large records are
            pass
        started: list[Attempt[SimulatedRecord]] = []
        # A call can return fewer attempts than there are free slots although more records are ready.
        while self.free and (attempts := self.engine.take(self.free, now)):
            self.free -= len(attempts)
            started += attempts
        return started

    def end(self, attempt: Attempt[SimulatedRecord], now: float) -> None:
        """Mark a record as done, and free its slot."""
        self.engine.finish(attempt, now)
        self.free += 1

    def _fetch(self, now: float) -> bool:
        """Fetch what the engine demands. Returns whether there were any records."""
        has_fetched = False
        demand, paused = self.engine.demand(), self.engine.paused()
        for partition, backlog in self._backlog.items():
            wanted = min(demand[partition.level], len(backlog))
            if wanted and partition not in paused:
                records = list(islice(backlog, wanted))
                for _ in records:
                    backlog.popleft()
                demand[partition.level] -= wanted
                self.engine.receive(partition, records, now)
                has_fetched = True
        return has_fetched


class Arriving:
    """Records that come to a partition of a member at one time."""

    def __init__(
        self, at: float, member: SimulatedMember, partition: TopicPartition, records: Sequence[SimulatedRecord]
    ) -> None:
        self.at = at
        self.member = member
        self.partition = partition
        self.records = records


def simulate_slots(arriving: Iterable[Arriving], progress: OnProgress) -> RunLog:
    """Let all records come and be handled, and return the log.

    `progress` is called from time to time with the number of records that are done.
    """
    order = count()
    events: list[tuple[float, int, SimulatedMember, Arriving | Attempt[SimulatedRecord] | None]]
    events = [(each.at, next(order), each.member, each) for each in arriving]
    heapify(events)
    log = RunLog()
    while events:
        now = events[0][0]
        touched: dict[SimulatedMember, None] = {}
        while events and events[0][0] == now:
            _, _, member, event = heappop(events)
            touched[member] = None
            if isinstance(event, Arriving):
                member.store(event.partition, event.records)
            elif event is not None:
                member.end(event, now)
        for member in touched:
            for attempt in member.start(now):
                record = attempt.record
                log.note(record.level, record.came, now, now + record.seconds)
                heappush(events, (now + record.seconds, next(order), member, attempt))
            wake = member.engine.next_wake() if member.free else None
            if wake is not None and wake > now and wake != member.wakes_at:
                member.wakes_at = wake
                heappush(events, (wake, next(order), member, None))
        progress(len(log))
    return log
