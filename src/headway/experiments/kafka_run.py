"""One run on a real Kafka: topics of its own, a group that has joined, records at their times, and the log."""

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from headway.core.levels.naming import level_topic
from headway.errors import HeadwayError
from headway.experiments.kafka_members import RunClock, RunMember
from headway.experiments.run_log import OnProgress, RunLog
from headway.kafka.admin import Admin
from headway.priority.producer import Producer

_JOINED_WITHIN = 60.0  # seconds
_PROGRESS_WITHIN = 60.0
_ENDED_WITHIN = 15.0
_LOOK_EVERY = 0.05
_LINGER_MS = 20
_SHOW_AFTER = 1000  # records


class TimedRecord(NamedTuple):
    """A record to send: when, in seconds of the experiment, to which partition and level, its key and value."""

    at: float
    partition: int
    level: int | None
    key: bytes
    value: bytes


class TopicOfRun(NamedTuple):
    """The topic of a run. Without levels, `levels` is None."""

    name: str
    partitions: int
    levels: int | None

    @property
    def all_partitions(self) -> int:
        """The number of partitions of all levels."""
        return self.partitions * (self.levels or 1)

    @property
    def kafka_topics(self) -> list[str]:
        """The names of the topics in Kafka."""
        return [self.name] if self.levels is None else [level_topic(self.name, level) for level in range(self.levels)]


@contextmanager
def topic_of_run(config: Mapping[str, Any], partitions: int, levels: int | None) -> Iterator[TopicOfRun]:
    """Create a topic with a new name, and delete it at the end of the block."""
    topic = TopicOfRun(f"headway-experiment-{uuid.uuid4().hex[:8]}", partitions, levels)
    admin = Admin(config)
    admin.create(topic.kafka_topics, partitions)
    try:
        yield topic
    finally:
        with contextlib.suppress(HeadwayError):  # the broker might be stopping
            admin.delete(topic.kafka_topics)


def run_group(
    config: Mapping[str, Any],
    topic: TopicOfRun,
    clock: RunClock,
    members: Sequence[RunMember],
    records: Iterable[TimedRecord],
    total: int,
    progress: OnProgress,
) -> RunLog:
    """Wait until the group has joined, send the records at their times, and wait until all of them are done.

    The records that come at the time 0 are in Kafka before the group begins to handle any.

    The members are stopped in any case. Raises the error of a member that fails, and `HeadwayError` if the run stands
    still for a minute.
    """
    group = _Running(members, progress)
    try:
        group.wait_until_joined(topic.all_partitions)
        group.send(config, topic, clock, records)
        group.wait_until_done(total)
    finally:
        group.stop()
    return RunLog.joined(member.log for member in members)


def _send_one(producer: Producer, topic: TopicOfRun, record: TimedRecord) -> None:
    producer.send(topic.name, record.value, record.key, partition=record.partition, level=record.level)


class _Running:
    """The members of a group that run in the background, as the main thread sees them."""

    def __init__(self, members: Sequence[RunMember], progress: OnProgress) -> None:
        self._members = members
        self._progress = progress

    def wait_until_joined(self, partitions: int) -> None:
        least = partitions // len(self._members)
        deadline = time.monotonic() + _JOINED_WITHIN
        while True:
            assigned = [member.assigned() for member in self._members]
            if sum(assigned) == partitions and min(assigned) >= least:
                return
            if time.monotonic() > deadline:
                raise HeadwayError(
                    f"After {_JOINED_WITHIN:.0f} s, the {len(self._members)} consumers have {assigned} of {partitions} "
                    "partitions. Check that the brokers are not overloaded, and try again."
                )
            self._look()
            time.sleep(_LOOK_EVERY)

    def send(
        self, config: Mapping[str, Any], topic: TopicOfRun, clock: RunClock, records: Iterable[TimedRecord]
    ) -> None:
        levels = {} if topic.levels is None else {"levels": topic.levels}
        remaining = iter(records)
        with Producer({**config, **levels, "linger.ms": _LINGER_MS}) as producer:
            later = self._send_first(producer, topic, remaining)
            self._release(clock)
            for number, record in enumerate(chain(later, remaining)):
                while (ahead := record.at - clock.now()) > 0:
                    time.sleep(min(ahead / clock.speed, _LOOK_EVERY))
                    self._look()
                _send_one(producer, topic, record)
                if number % _SHOW_AFTER == 0:
                    self._look()

    @staticmethod
    def _send_first(producer: Producer, topic: TopicOfRun, records: Iterator[TimedRecord]) -> list[TimedRecord]:
        """Send the records that are there at the start. Returns the first record that comes later, if there is one."""
        later: list[TimedRecord] = []
        for record in records:
            if record.at > 0:
                later = [record]
                break
            _send_one(producer, topic, record)
        producer.flush()
        return later

    def _release(self, clock: RunClock) -> None:
        clock.start()
        for member in self._members:
            member.release()

    def wait_until_done(self, total: int) -> None:
        done, since = 0, time.monotonic()
        while (now_done := self._look()) < total:
            if now_done > done:
                done, since = now_done, time.monotonic()
            elif time.monotonic() > since + _PROGRESS_WITHIN:
                raise HeadwayError(
                    f"No record was handled in the last {_PROGRESS_WITHIN:.0f} s; {done:,} of {total:,} are done. "
                    "Check the brokers, and try again."
                )
            time.sleep(_LOOK_EVERY)

    def _look(self) -> int:
        """Show the progress, and return the number of records that are done. Raises the error of a failed member."""
        for member in self._members:
            if member.ended.done() and (error := member.ended.exception()):
                raise error
        done = sum(len(member.log) for member in self._members)
        self._progress(done)
        return done

    def stop(self) -> None:
        for member in self._members:
            member.stop()
        deadline = time.monotonic() + _ENDED_WITHIN
        for member in self._members:
            # An error of a member has been raised by `_look`; one that comes at the end changes nothing.
            with contextlib.suppress(Exception):
                member.ended.result(max(0.0, deadline - time.monotonic()))
