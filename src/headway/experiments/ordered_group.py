"""A group of consumers without levels: its ordering, members and slots, and the records that come to it."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.engine.lanes import Ordering, OrderingName
from headway.core.engine.slot_policies import FairSlots
from headway.experiments.kafka_members import ParallelMember, RunClock, work_value
from headway.experiments.kafka_run import TimedRecord, run_group, topic_of_run
from headway.experiments.run_log import OnProgress, RunLog
from headway.experiments.slot_simulation import Arriving, SimulatedMember, SimulatedRecord, simulate_slots
from headway.records.record_types import TopicPartition

MOST_SECONDS = 0.005
"""A handler takes from 0 to 5 ms, as in the Java parallel consumer's table."""
_SEED = 11


class ArrivingWork(NamedTuple):
    """A record: when it comes, the number of its key, and the seconds that it takes."""

    at: float
    key: int
    seconds: float


def random_work(records: int, keys: int, per_second: float | None = None) -> list[ArrivingWork]:
    """Return records with random keys and times, which are the same in each call.

    All records come at the start, or `per_second` of them in each second.
    """
    draw = random.Random(_SEED)  # noqa: S311 - no secret
    gap = 0.0 if per_second is None else 1 / per_second
    return [
        ArrivingWork(number * gap, draw.randrange(keys), draw.uniform(0, MOST_SECONDS)) for number in range(records)
    ]


@dataclass(frozen=True, slots=True)
class OrderedGroup:
    """The consumers of one topic, each with its slots. A key is always in the same partition."""

    ordering: OrderingName
    slots: int
    members: int = 1
    partitions: int = 1

    def simulated(self, work: Sequence[ArrivingWork], progress: OnProgress) -> RunLog:
        """Return the log of a run with simulated time."""
        partitions = [TopicPartition("records", partition=number) for number in range(self.partitions)]
        members = [
            SimulatedMember(partitions[number :: self.members], self.slots, Ordering(self.ordering), 1, FairSlots([1]))
            for number in range(self.members)
        ]
        return simulate_slots(self._arriving(partitions, members, work), progress)

    def _arriving(
        self, partitions: Sequence[TopicPartition], members: Sequence[SimulatedMember], work: Sequence[ArrivingWork]
    ) -> Iterator[Arriving]:
        ends = [0] * self.partitions
        for at, key, seconds in work:
            number = key % self.partitions
            record = SimulatedRecord(ends[number], b"%d" % key, seconds, 0, at)
            ends[number] += 1
            yield Arriving(at, members[number % self.members], partitions[number], [record])

    def on_kafka(
        self, config: Mapping[str, Any], work: Sequence[ArrivingWork], speed: float, progress: OnProgress
    ) -> RunLog:
        """Return the log of a run on Kafka in which all times are divided by `speed`."""
        clock = RunClock(speed)
        with topic_of_run(config, self.partitions, None) as topic:
            config = {**config, "group.id": topic.name, "auto.offset.reset": "earliest"}
            members = [
                ParallelMember(config, topic.name, clock, self.slots, self.ordering) for _ in range(self.members)
            ]
            records = (
                TimedRecord(at, key % self.partitions, None, b"%d" % key, work_value(0, seconds))
                for at, key, seconds in work
            )
            return run_group(config, topic, clock, members, records, len(work), progress)
