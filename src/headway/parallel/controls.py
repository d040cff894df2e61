"""Controls of a parallel consumer while it runs: pauses, commits on request, credentials, and figures."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from headway.declarations import check_kind, check_place, check_whole, shown
from headway.errors import ClosedError, ConfigError
from headway.execution.dispatch import Dispatch
from headway.execution.metrics import ParallelMetrics
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.forks import made_before_fork
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.parallel.commits import Commits
from headway.parallel.fetching import Fetching
from headway.parallel.places import Place
from headway.parallel.run_parts import RunParts
from headway.records.record_types import TopicPartition
from headway.runtime.flag import Flag
from headway.runtime.wakeup import Wakeup
from headway.settings.config import ParallelSettings


class Controls:
    """The base of the parallel consumer: what any thread may ask of it while it runs."""

    _settings: ParallelSettings
    _dispatch: Dispatch
    _levels: LevelConsumers
    _committing: Commits
    _parts: RunParts
    _wake: Wakeup
    _fetching: Fetching
    _ended: Flag
    _is_forked = False

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on, at once if a broker has refused the earlier ones.

        Open connections go on. May be called from any thread. Raises `ConfigError` for credentials that librdkafka does
        not take.
        """
        self._check_open()
        for client in (*self._levels, *self._parts.clients):
            client.set_sasl_credentials(username, password)
        change_credentials(self._settings.kafka, username, password)

    # Pauses

    def pause(
        self, partitions: Iterable[TopicPartition] | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Start nothing and fetch nothing until `resume`: of these partitions, of a topic, of a level, or of all.

        Running handlers go on. A pause lasts through rebalances, also for partitions that come later.
        """
        self._check_open()
        chosen = self._chosen(partitions, topic, level)
        if partitions is not None or topic is not None or level is not None:
            with self._dispatch.lock:
                self._fetching.pauses.begin(chosen, topic=topic, level=level)
            self._fetching.hold()
        else:
            self._dispatch.paused = True
        self._wake.set()

    def resume(
        self, partitions: Iterable[TopicPartition] | None = None, *, topic: str | None = None, level: int | None = None
    ) -> None:
        """Go on after `pause` with the same arguments; without any, after all pauses."""
        self._check_open()
        chosen = self._chosen(partitions, topic, level)
        with self._dispatch.lock:
            if partitions is not None or topic is not None or level is not None:
                self._fetching.pauses.end(chosen, topic=topic, level=level)
            else:
                self._fetching.pauses.end_all()
                self._dispatch.paused = False
        self._fetching.hold()
        self._wake.set()

    def paused(self) -> set[TopicPartition]:
        """Return the partitions of this consumer that are paused."""
        self._check_process()
        with self._dispatch.lock:
            assigned = self.assignment()
            return assigned if self._dispatch.paused else set(self._fetching.pauses.covered(assigned))

    def _chosen(
        self, partitions: Iterable[TopicPartition] | None, topic: str | None, level: int | None
    ) -> Collection[TopicPartition]:
        """Return the partitions; raises `ConfigError` for what is none, and for a level that does not exist."""
        if isinstance(partitions, (str, TopicPartition)):
            raise ConfigError(
                f"{shown(partitions)} is no collection of partitions. Give [TopicPartition(…)], or a topic by name, as "
                'topic="orders".'
            )
        chosen = list(partitions or ())
        for partition in chosen:
            check_kind(
                "A partition", partition, TopicPartition, 'a TopicPartition, as TopicPartition("orders", partition=3)'
            )
        for each in (*(partition.level for partition in chosen), *(() if level is None else (level,))):
            check_whole("level", each, 0)
            self._levels[each]  # raises for one that does not exist
        if topic is not None and not isinstance(topic, str):
            raise ConfigError(f"topic is {shown(topic)}; it must be the name of a topic.")
        return chosen

    # Places in the log

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on with this offset of an assigned partition, as the next commit says; returns at once.

        Nothing of the partition starts before its running handlers have ended, or the `hand_over_timeout` is over. What
        they do counts no more, and neither does what was done and not committed. An offset outside the log stands for
        its nearest end. Raises `ConfigError` for a partition that is not assigned now.
        """
        check_place("offset", offset)
        self._seek([partition], Place("offset", offset))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on at the beginning of these partitions, or of all that are assigned, as `seek` does."""
        self._seek(partitions, Place("beginning"))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Skip what these partitions, or all that are assigned, hold when this is carried out, as `seek` does."""
        self._seek(partitions, Place("end"))

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on with the first record of this time or later, in milliseconds since the epoch, as `seek` does."""
        check_place("timestamp", timestamp)
        self._seek(partitions, Place("time", timestamp))

    def _seek(self, partitions: Iterable[TopicPartition] | None, place: Place) -> None:
        self._check_open()
        chosen = self.assignment() if partitions is None else self._chosen(partitions, None, None)
        self._fetching.seek(dict.fromkeys(chosen, place))
        self._wake.set()

    def request_commit(self) -> None:
        """Commit the completed records now, before the next commit is due; returns at once."""
        self._check_open()
        self._committing.request()
        self._wake.set()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions of all levels that are assigned to this consumer now; from any thread."""
        self._check_process()
        return self._levels.assignment()

    @property
    def work_remaining(self) -> int:
        """The number of records that were fetched and are not done."""
        self._check_process()
        return self._dispatch.work_remaining

    def metrics(self) -> ParallelMetrics:
        """Return the counts of records done, running and waiting."""
        self._check_process()
        refused = next((level.refused for level in self._levels if level.refused), None)
        return replace(
            self._dispatch.metrics(),
            refused=refused or self._committing.refused,
            deleted_unread=sum(sum(member.deleted_unread.values()) for member in self._levels),
        )

    def forked(self) -> None:
        """Do nothing any more: this object is the copy in a forked process, without threads."""
        self._is_forked = True

    def _check_process(self) -> None:
        if self._is_forked:
            raise made_before_fork("consumer")

    def _check_open(self) -> None:
        self._check_process()
        if self._ended.is_set():
            raise ClosedError("The consumer is closed. Make a new one to go on.")
