"""Controls of a parallel consumer while it runs: pauses, commits on request, credentials, and figures."""

import threading
from dataclasses import replace

from headway.config import ParallelSettings
from headway.errors import ClosedError
from headway.execution.dispatch import Dispatch
from headway.execution.metrics import ParallelMetrics
from headway.kafka.binding.connection import change_credentials
from headway.kafka.consumer.level_consumers import LevelConsumers
from headway.parallel.commits import Commits
from headway.parallel.run_parts import RunParts
from headway.records import TopicPartition
from headway.runtime.wakeup import Wakeup


class Controls:
    """The base of the parallel consumer: what any thread may ask of it while it runs."""

    _settings: ParallelSettings
    _dispatch: Dispatch
    _levels: LevelConsumers
    _committing: Commits
    _parts: RunParts
    _wake: Wakeup
    _ended: threading.Event

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on, at once if a broker has refused the earlier ones.

        Open connections go on. May be called from any thread. Raises `ConfigError` for credentials that librdkafka does
        not take.
        """
        self._check_open()
        for client in (*self._levels, *self._parts.clients):
            client.set_sasl_credentials(username, password)
        change_credentials(self._settings.kafka, username, password)

    def pause(self) -> None:
        """Start nothing and fetch nothing until `resume`; running handlers go on."""
        self._set_paused(True)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        self._check_open()
        self._dispatch.paused = paused
        self._wake.set()

    def request_commit(self) -> None:
        """Commit the completed records now, before the next commit is due; returns at once."""
        self._check_open()
        self._committing.request()
        self._wake.set()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions of all levels that are assigned to this consumer now; from any thread."""
        return self._levels.assignment()

    @property
    def work_remaining(self) -> int:
        """The number of records that were fetched and are not done."""
        return self._dispatch.work_remaining

    def metrics(self) -> ParallelMetrics:
        """Return the counts of records done, running and waiting."""
        refused = next((level.refused for level in self._levels if level.refused), None)
        return replace(self._dispatch.metrics(), refused=refused or self._committing.refused)

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise ClosedError("The consumer is closed. Make a new one to go on.")
