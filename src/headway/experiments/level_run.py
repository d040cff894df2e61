"""Runs the experiments with levels on a real Kafka."""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.experiments.kafka_members import ParallelMember, PollingConsumer, RunClock, RunMember, Topics, work_value
from headway.experiments.kafka_run import TimedRecord, TopicOfRun, run_group, topic_of_run
from headway.experiments.level_setup import LEVELS, ConsumerName, LevelSetup, Way
from headway.experiments.run_log import OnProgress, RunLog


def run_levels(
    config: Mapping[str, Any],
    setup: LevelSetup,
    way: Way,
    consumer: ConsumerName,
    speed: float,
    progress: OnProgress,
) -> RunLog:
    """Return the log of a run on Kafka in which all times are divided by `speed`.

    The times in the log are those of the experiment: at a speed of 10, a second of the log has taken 100 ms. With a
    policy, each level is a topic with one partition for each consumer; without one, a single topic has all of them.
    """
    levels = None if way.policy is None else LEVELS
    partitions = setup.members * (LEVELS if levels is None else 1)
    clock = RunClock(speed)
    with topic_of_run(config, partitions, levels) as topic:
        members = _members(config, topic, setup, way, consumer, clock)
        return run_group(config, topic, clock, members, _records(setup, levels, partitions), setup.total, progress)


def _members(
    config: Mapping[str, Any], topic: TopicOfRun, setup: LevelSetup, way: Way, consumer: ConsumerName, clock: RunClock
) -> list[RunMember]:
    config = {**config, "group.id": topic.name, "auto.offset.reset": "earliest"}
    policy = way.policy or "fair"
    if consumer == "parallel":
        levels = {} if topic.levels is None else {"levels": topic.levels}
        return [
            # Unordered, because the original's pool of threads keeps no order either, and its levels share their keys.
            ParallelMember(config | levels, topic.name, clock, setup.slots, "unordered", policy)
            for _ in range(setup.members)
        ]
    config |= {"levels": topic.levels or 1, "max.poll.records": setup.poll_records}
    topics: Topics = {topic.name: 0} if topic.levels is None else topic.name
    return [PollingConsumer(config, topics, clock, policy) for _ in range(setup.members)]


def _records(setup: LevelSetup, levels: int | None, partitions: int) -> Iterator[TimedRecord]:
    """Yield the records as the original producer sends them: one of each level in turn, with the same key."""
    values = [work_value(level, setup.seconds) for level in range(LEVELS)]
    first = 0
    for wave in setup.waves:
        for number in range(first, first + wave.records):
            for level, value in enumerate(values):
                yield TimedRecord(
                    wave.at, number % partitions, None if levels is None else level, b"%d" % number, value
                )
        first += wave.records
