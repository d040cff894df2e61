"""Simulates the experiments with levels, by the slots of parallel consumers or by polls."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from headway.core.engine.lanes import Ordering
from headway.core.engine.slot_policies import make_slots
from headway.core.levels.policies import make_policy
from headway.experiments.level_setup import LEVELS, ConsumerName, LevelSetup, Way
from headway.experiments.poll_simulation import PolledLevels
from headway.experiments.run_log import OnProgress, RunLog
from headway.experiments.slot_simulation import Arriving, SimulatedMember, SimulatedRecord, simulate_slots
from headway.records.record_types import TopicPartition

_MAX_WAIT = 5.0  # seconds; only the policy `strict` uses it
_TOPIC = "records"


def simulate_levels(setup: LevelSetup, way: Way, consumer: ConsumerName, progress: OnProgress) -> RunLog:
    """Return the log of a run with simulated time.

    `progress` is called from time to time with the number of records that are done.
    """
    if consumer == "parallel":
        return simulate_slots(_arriving(setup, way), progress)
    return _Polls(setup, way).run(progress)


def _arriving(setup: LevelSetup, way: Way) -> Iterator[Arriving]:
    """Yield the waves, spread evenly over the partitions: one for each member and level."""
    levels = 1 if way.policy is None else LEVELS
    members = []
    for number in range(setup.members):
        policy = make_slots(way.policy or "fair", None, levels, setup.slots, max_wait=_MAX_WAIT)
        partitions = [TopicPartition(_TOPIC, partition=number, level=level) for level in range(levels)]
        members.append(SimulatedMember(partitions, setup.slots, Ordering.UNORDERED, levels, policy))
    ends: dict[TopicPartition, int] = {}
    for wave in setup.waves:
        for number, member in enumerate(members):
            numbers = range(number, wave.records, setup.members)
            if way.policy is None:  # the producer sends a record of each level in turn
                parts = [(0, [level for _ in numbers for level in range(LEVELS)])]
            else:
                parts = [(level, [level] * len(numbers)) for level in range(LEVELS)]
            for level, record_levels in parts:
                partition = TopicPartition(_TOPIC, partition=number, level=level)
                first = ends.get(partition, 0)
                ends[partition] = first + len(record_levels)
                records = [
                    SimulatedRecord(offset, b"", setup.seconds, record_level, wave.at)
                    for offset, record_level in enumerate(record_levels, first)
                ]
                yield Arriving(wave.at, member, partition, records)


class _PollingMember:
    """One consumer that polls, and what it needs to say which record came when."""

    def __init__(self, number: int, setup: LevelSetup, way: Way) -> None:
        levels = 1 if way.policy is None else LEVELS
        _, policy = make_policy(way.policy or "fair", None, levels, setup.poll_records)
        self.levels = PolledLevels(policy, levels, setup.poll_records)
        self.log = RunLog()
        self._setup = setup
        self._is_one_topic = way.policy is None
        self._counts = [len(range(number, wave.records, setup.members)) for wave in setup.waves]
        self._returned = [0] * levels

    def arrive(self, wave: int) -> None:
        """Add this member's part of a wave."""
        self.levels.arrive([self._counts[wave] * (LEVELS if self._is_one_topic else 1)] * len(self._returned))

    def poll(self, now: float) -> bool:
        """Poll, and log the returned records. Returns whether there were any."""
        polled = self.levels.poll(now)
        for level, times in enumerate(polled):
            for _ in times:
                number = self._returned[level]
                self._returned[level] += 1
                logged = (number % LEVELS, number // LEVELS) if self._is_one_topic else (level, number)
                self.log.note(logged[0], self._came(logged[1]), now, now + self._setup.seconds)
        return any(polled)

    def _came(self, number: int) -> float:
        for wave, count in zip(self._setup.waves, self._counts, strict=True):
            if number < count:
                return wave.at
            number -= count
        raise AssertionError("A poll has returned a record that never came.")


class _Polls:
    """A group of consumers, each of which waits for all records of a poll before the next one."""

    def __init__(self, setup: LevelSetup, way: Way) -> None:
        self._setup = setup
        self._members = [_PollingMember(number, setup, way) for number in range(setup.members)]

    def run(self, progress: OnProgress) -> RunLog:
        """Let the members poll until no record is left."""
        waves = [wave.at for wave in self._setup.waves]
        # At the same time, a wave comes before a poll.
        events = [(at, -1, wave) for wave, at in enumerate(waves)]
        events += [(0.0, number, 0) for number in range(len(self._members))]
        heapify(events)
        done = 0
        while events:
            now, number, wave = heappop(events)
            if number < 0:
                for member in self._members:
                    member.arrive(wave)
                continue
            member = self._members[number]
            if member.poll(now):
                heappush(events, (now + self._setup.seconds, number, 0))
            elif later := [at for at in waves if at > now]:
                heappush(events, (min(later), number, 0))
            done += 1
            progress(sum(len(each.log) for each in self._members))
        return RunLog.joined(member.log for member in self._members)
