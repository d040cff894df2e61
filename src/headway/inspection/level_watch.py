"""Follows one level of a queue from one reading to the next."""

from collections.abc import Mapping

from headway.core.offsets.trailer import log_mark
from headway.inspection.arrangement import LevelSource
from headway.inspection.partition_watch import PartitionWatch
from headway.inspection.rates_and_ages import Rates
from headway.inspection.snapshot import LevelStatus
from headway.kafka.binding.capi import CommittedOffset, Partition


class LevelWatch:
    """The partitions of a level, and the rates at which its records arrive and are done."""

    def __init__(self, source: LevelSource, every: float) -> None:
        self.source = source
        self._every = every
        self.partitions: dict[int, PartitionWatch] = {}
        self._rates = Rates()
        self._topic_id = ""
        self._is_first = True

    def see(
        self,
        now: float,
        bounds: Mapping[Partition, tuple[int, int]],
        commits: Mapping[Partition, CommittedOffset],
        members: Mapping[Partition, str],
        topic_id: str,
    ) -> None:
        """Take in a reading of all topics and groups. Partitions without bounds do not exist any more."""
        topic = self.source.kafka_topic
        if topic_id and topic_id != self._topic_id:
            if self._topic_id:
                self.partitions, self._rates = {}, Rates()  # the topic was deleted and created again
            self._topic_id = topic_id
        there = sorted(number for name, number in bounds if name == topic)
        self.partitions = {number: self._watch(number, now) for number in there}
        mark = log_mark(topic_id) if topic_id else None
        for number, watch in self.partitions.items():
            place = topic, number
            watch.see(now, bounds[place], commits.get(place), members.get(place), mark)
        watches = self.partitions.values()
        self._rates.see(now, sum(each.log_end for each in watches), sum(each.not_done for each in watches))
        self._is_first = False

    def _watch(self, number: int, now: float) -> PartitionWatch:
        return self.partitions.get(number) or PartitionWatch(number, now, self._every, was_there=self._is_first)

    def status(self, now: float) -> LevelStatus:
        """Return the state as a value for a snapshot."""
        partitions = tuple(watch.status(now) for watch in self.partitions.values())
        oldest = min((each.oldest for each in partitions if each.oldest is not None), default=None)
        return LevelStatus(
            level=self.source.level,
            kafka_topic=self.source.kafka_topic,
            group=self.source.group,
            partitions=partitions,
            oldest_seconds=None if oldest is None else max(0.0, now - oldest),
            arrived_per_second=self._rates.arrived_per_second,
            done_per_second=self._rates.done_per_second,
            seconds_of_work=self._rates.seconds_of_work(sum(each.not_done for each in partitions)),
        )
