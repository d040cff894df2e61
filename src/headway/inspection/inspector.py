"""Watches queues, dead-letter topics and schedulers from outside, for `headway top` and the dashboard."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from headway.core.levels.naming import is_topic_name
from headway.errors import ConfigError, HeadwayError, KafkaError
from headway.inspection.dead_letters_reader import DeadLettersReader
from headway.inspection.letters import Letter
from headway.inspection.member_metrics import (
    MemberFigures,
    MemberMetrics,
    handlers_of,
    quantile,
    seconds_per_record,
    tenants_of,
)
from headway.inspection.queues_reader import QueuesReader
from headway.inspection.rules_reader import RulesReader
from headway.inspection.schedulers_reader import SchedulersReader
from headway.inspection.seen_changes import LetterCounts, changes_between
from headway.inspection.snapshot import DeadLetterStatus, QueueStatus, RuleStatus, SchedulerStatus, SeenChange, Snapshot
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.log_bounds import LogBounds
from headway.metrics.table import HANDLER_DURATION, LEVEL_BORROWED, LEVEL_LENT, LEVEL_QUEUE_TIME, RULE_HELD
from headway.records.record_types import Message
from headway.runtime.lifecycle import Closable
from headway.settings.config import OWN_KEYS, Config

log = logging.getLogger(__name__)

EVERY = 2.0
"""The seconds between two readings."""

_LEAST_EVERY = 0.2
_SELDOM_EVERY = 5.0  # dead letters, schedulers and rules are read at most this often, in seconds
_FRACTION = 20  # … and at most a twentieth of the time is spent on each of them
_MOST_CHANGES = 200
_FIRST_WITHIN = 60.0
_CLOSED_WITHIN = 2.0


class _Seldom:
    """Decides when to do something that may take long: seldom, and only for a small fraction of the time."""

    def __init__(self) -> None:
        self._at = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._at

    def has_taken(self, seconds: float) -> None:
        self._at = time.monotonic() + max(_SELDOM_EVERY, _FRACTION * seconds)


class SnapshotReader(Closable):
    """Reads snapshots, one after the other, with one set of clients. Not thread-safe.

    The arguments are those of `Inspector`.
    """

    def __init__(
        self,
        config: Config,
        groups: Sequence[str] = (),
        topics: Sequence[str] = (),
        dead_letters: Sequence[str] = (),
        schedulers: Sequence[str] = (),
        every: float = EVERY,
        metrics: MemberMetrics | None = None,
    ) -> None:
        self._metrics = metrics
        self._queues = QueuesReader(config, groups, topics, every)
        kafka = {key: value for key, value in config.items() if key not in OWN_KEYS}
        records, groups_reader = self._queues.records, self._queues.groups
        self._dead_letters = DeadLettersReader(records, groups_reader, dead_letters)
        self._schedulers = SchedulersReader(records, groups_reader, LogBounds(kafka, "read_committed"), schedulers)
        self._dead_status: tuple[DeadLetterStatus, ...] = ()
        self._scheduler_status: tuple[SchedulerStatus, ...] = ()
        self._rules = RulesReader(config, groups)
        self._rule_status: tuple[RuleStatus, ...] = ()
        self._dead_due, self._schedulers_due, self._rules_due = _Seldom(), _Seldom(), _Seldom()
        self._dead_failures: list[str] = []
        self._scheduler_failures: list[str] = []
        self._rule_failures: list[str] = []
        self._letter_counts = LetterCounts()
        self._changes = deque[SeenChange](maxlen=_MOST_CHANGES)
        self._began = time.monotonic()
        self._before: Snapshot | None = None

    def close(self) -> None:
        """Close the connections."""
        self._queues.close()
        self._rules.close()
        if self._metrics:
            self._metrics.close()

    def read(self) -> Snapshot:
        """Read everything that is due, and return the state of all. Raises `KafkaError` if Kafka does not answer."""
        queues = self._queues
        queues.list_if_due(time.time(), self._schedulers.names)
        queues.read(now := time.time())
        self._if_due(self._dead_due, self._dead_failures, self._read_dead_letters)
        self._if_due(self._schedulers_due, self._scheduler_failures, self._read_schedulers)
        self._if_due(self._rules_due, self._rule_failures, self._read_rules)
        failures = [*queues.notes, *self._dead_failures, *self._scheduler_failures, *self._rule_failures]
        snapshot = Snapshot(
            taken_at=now,
            queues=queues.queues(now),
            members=queues.members(),
            dead_letters=self._dead_status,
            schedulers=self._scheduler_status,
            rules=self._rule_status,
            notes=tuple(dict.fromkeys(failures)),
            requests_per_second=self._requests() / max(1.0, time.monotonic() - self._began),
        )
        snapshot = self._with_metrics(snapshot)
        self._changes.extendleft(self._letter_counts.see(snapshot))
        if self._before is not None:
            self._changes.extendleft(changes_between(self._before, snapshot))
        self._before = snapshot = replace(snapshot, changes=tuple(self._changes))
        return snapshot

    def _with_metrics(self, snapshot: Snapshot) -> Snapshot:
        """Add what members report: tenants, and a better estimate of the seconds of work than the rate in Kafka."""
        if self._metrics is None or (now := self._metrics.latest) is None:
            return snapshot
        before = self._metrics.before
        queues = [_with_figures(queue, before, now) for queue in snapshot.queues]
        notes = (*snapshot.notes, *self._metrics.failures)
        return replace(
            snapshot,
            queues=tuple(queues),
            tenants=tuple(tenants_of(before, now)),
            handlers=tuple(handlers_of(now)),
            rules=tuple(_with_held(rule, now) for rule in snapshot.rules),
            notes=notes,
        )

    def _if_due(self, seldom: _Seldom, failures: list[str], read: Callable[[list[str]], None]) -> None:
        if not seldom.is_due():
            return
        began = time.monotonic()
        failures.clear()
        try:
            read(failures)
        except HeadwayError as error:
            failures.append(str(error))
        seldom.has_taken(time.monotonic() - began)

    def _read_dead_letters(self, failures: list[str]) -> None:
        self._dead_letters.read(time.time(), self._queues.existing, failures)
        self._dead_status = tuple(self._dead_letters.status())

    def _read_schedulers(self, failures: list[str]) -> None:
        self._scheduler_status = tuple(self._schedulers.read(time.time(), self._queues.existing, failures))

    def _read_rules(self, failures: list[str]) -> None:
        self._rule_status = self._rules.read(time.time(), self._queues.existing, failures)

    def _requests(self) -> int:
        return (
            self._queues.requests
            + self._queues.groups.requests
            + self._dead_letters.requests
            + self._schedulers.requests
            + self._rules.requests
        )


class Inspector(Closable):
    """Watches queues from outside, in one thread that reads Kafka at intervals. Any thread can call its methods.

    It joins no group, commits nothing, and needs the permissions Describe on the groups, and Describe and Read on the
    topics.

    What it reads is bounded: 200 groups, 20,000 partitions, 40 single records a reading, the newest 2,000 letters of a
    dead-letter topic, and 5,000 schedules of a scheduler. Letters are read once.

    A reading sends three requests for each group, and one or two to each broker for each 500 partitions, besides a few
    fetches. With 5 levels of 300 partitions each and a million dead letters on one broker, these are 12 requests a
    second with readings every two seconds, and 0.1 s of processor time for each reading (docs/design/measurements.md).

    Args:
        config: The settings of librdkafka.
        groups: The groups to watch, by their logical names. By default the level groups, and the groups with an offset
            map.
        topics: The topics to watch, by their logical names. By default all topics of the groups.
        dead_letters: The dead-letter topics to read. By default those whose names end as is usual, such as `-dead`.
        schedulers: The schedulers to read. By default all that have topics.
        metrics: The addresses of the members' metrics. With them, snapshots have the tenants, and `seconds_of_work` is
            computed from the handlers' times and slots. Needs the extra `prometheus`.
        every: The seconds between two readings, at least 0.2.

    Raises:
        ConfigError: A setting or an argument is not valid.
        KafkaError: Kafka cannot be reached.
    """

    def __init__(
        self,
        config: Config,
        *,
        groups: Sequence[str] = (),
        topics: Sequence[str] = (),
        dead_letters: Sequence[str] = (),
        schedulers: Sequence[str] = (),
        metrics: Sequence[str] = (),
        every: float = EVERY,
    ) -> None:
        if not every >= _LEAST_EVERY:
            raise ConfigError(f"every is {every!r}; it must be at least {_LEAST_EVERY:g} seconds.")
        self._config = config
        self._every = every
        members = MemberMetrics(metrics) if metrics else None
        try:
            self._reader = SnapshotReader(config, groups, topics, dead_letters, schedulers, every, members)
        except BaseException:
            if members:
                members.close()
            raise
        self._changed = threading.Condition()
        self._latest: Snapshot | None = None
        self._failure: HeadwayError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headway-inspector", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading. A request that is on its way is not waited for long."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_CLOSED_WITHIN)

    def snapshot(self, timeout: float = _FIRST_WITHIN) -> Snapshot:
        """Return the latest snapshot. The first call waits for the first reading, for at most `timeout` seconds.

        Raises `KafkaError` if there is none in time. Later failures are `notes` of the snapshot.
        """
        return self._wait(lambda latest: True, timeout)

    def latest(self) -> Snapshot | None:
        """Return the latest snapshot at once, or None if there is none yet. Raises `KafkaError` if Kafka is silent."""
        with self._changed:
            if self._latest is None and self._failure is not None:
                raise self._failure
            return self._latest

    def newer(self, than: Snapshot, timeout: float = _FIRST_WITHIN) -> Snapshot:
        """Wait up to `timeout` seconds for a snapshot that is newer than this one, and return the latest one."""
        try:
            return self._wait(lambda latest: latest is not than, timeout)
        except KafkaError:
            return self.snapshot(0.0)

    def _wait(self, is_wanted: Callable[[Snapshot], bool], timeout: float) -> Snapshot:
        def has_come() -> bool:
            found = self._latest is not None and is_wanted(self._latest)
            return found or self._closing.is_set() or (self._latest is None and self._failure is not None)

        with self._changed:
            self._changed.wait_for(has_come, timeout)
            if self._latest is not None and (is_wanted(self._latest) or self._closing.is_set()):
                return self._latest
            raise self._failure or KafkaError(f"Kafka has not answered within {timeout:g} s. Check that it is up.")

    def record(self, kafka_topic: str, partition: int, offset: int) -> Message | None:
        """Read one record, with its value. Returns None if there is no record at this offset.

        Each call uses a client of its own, and takes some tenths of a second. Raises `KafkaError` if the partition
        cannot be read.
        """
        if not is_topic_name(kafka_topic) or partition < 0 or offset < 0:
            return None
        with GroupInspector(self._config, "headway-inspection") as reader:
            end = reader.ends([(kafka_topic, partition)]).get((kafka_topic, partition), 0)
            found = reader.read((kafka_topic, partition), offset, min(end, offset + 1))
            return next(found, None)

    def letter(self, topic: str, partition: int, offset: int) -> Letter | None:
        """Read one dead letter, with its value. Returns None if there is none. Raises the same errors as `record`.

        `settled` is always False, because the commits that remember it are not read.
        """
        message = self.record(topic, partition, offset)
        return None if message is None else Letter.of(message, settled=False)

    def _run(self) -> None:
        good: Snapshot | None = None  # the latest one, to which a note is added while Kafka does not answer
        with self._reader:
            for _ in self._intervals():
                try:
                    self._show(good := self._reader.read(), None)
                except HeadwayError as error:
                    self._show(good and _with_note(good, str(error)), error)
                except Exception as error:  # the next reading may succeed
                    log.exception("Reading the state of queues raised an unexpected error. The thread continues.")
                    failure = KafkaError(f"The state of queues cannot be read: {error!r}")
                    self._show(good and _with_note(good, str(failure)), failure)

    def _intervals(self) -> Iterator[None]:
        while not self._closing.is_set():
            began = time.monotonic()
            yield
            self._closing.wait(max(0.0, self._every - (time.monotonic() - began)))

    def _show(self, snapshot: Snapshot | None, failure: HeadwayError | None) -> None:
        with self._changed:
            self._latest, self._failure = snapshot, failure
            self._changed.notify_all()


def _with_held(rule: RuleStatus, now: MemberFigures) -> RuleStatus:
    held = now.total(RULE_HELD, rule.group, rule.id)
    return rule if held is None else replace(rule, held=round(held))


def _with_note(snapshot: Snapshot, note: str) -> Snapshot:
    return replace(snapshot, notes=(note, *snapshot.notes))


def _with_figures(queue: QueueStatus, before: MemberFigures | None, now: MemberFigures) -> QueueStatus:
    """Add what members report of a queue: times, shares, and what levels lend and borrow."""
    group, levels = queue.group, []
    seconds = seconds_per_record(before, now, group)
    for level in queue.levels:
        name = "" if level.level is None else str(level.level)
        levels.append(
            replace(
                level,
                seconds_of_work=level.seconds_of_work if seconds is None else level.not_done * seconds,
                share=now.share(group, name),
                lent=now.total(LEVEL_LENT, group, name),
                borrowed=now.total(LEVEL_BORROWED, group, name),
                queue_seconds=quantile(before, now, LEVEL_QUEUE_TIME, group, name),
            )
        )
    handler_seconds = quantile(before, now, HANDLER_DURATION, group, "")
    return replace(queue, levels=tuple(levels), handler_seconds=handler_seconds)
