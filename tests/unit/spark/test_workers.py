"""Workers on a cluster that cannot be told to stop, without Spark and Kafka."""

import threading
from typing import Any

import pytest

from headway.errors import HeadwayError, KafkaError
from headway.spark import workers
from headway.spark.workers import ClusterWorkers


class Mute:
    """A control topic that takes nothing."""

    def say(self, run: str, word: bytes) -> None:
        raise KafkaError("The topic headway-control did not take a record.")


class Cluster:
    """Each job runs until it is cancelled, but the first ends as given, when so many `parties` are `together`."""

    def __init__(self, parties: int, first: workers.Ended | None = None) -> None:
        self.together = threading.Barrier(parties)
        self._first = first
        self._cancelled = threading.Event()
        self._index = threading.local()

    def setJobGroup(self, group: str, name: str) -> None:  # noqa: N802
        self._group = group

    def parallelize(self, indices: list[int], _: int) -> Any:
        [self._index.value] = indices
        return self

    def mapPartitions(self, _: Any) -> Any:  # noqa: N802
        return self

    def collect(self) -> list[workers.Ended]:
        self.together.wait(30)
        if self._first is not None and self._index.value == 0:
            return [self._first]
        assert self._cancelled.wait(30)
        raise RuntimeError("cancelled")

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        assert group == self._group
        self._cancelled.set()


@pytest.fixture(autouse=True)
def plain_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "InheritableThread", threading.Thread)


def workers_on(cluster: Any, n: int) -> ClusterWorkers:
    control: Any = Mute()
    return ClusterWorkers(cluster, workers.WorkerTask("billing:bill", {}, {}, None, 5.0, "run", 0), n, control)


def test_workers_that_cannot_be_told_to_stop_are_cancelled() -> None:
    cluster = Cluster(parties=3)
    with workers_on(cluster, 2) as running:
        cluster.together.wait(30)
        running.stop()
        assert running.wait(30)


def test_when_one_cannot_go_on_and_the_others_cannot_be_told_they_are_cancelled_too() -> None:
    running = workers_on(Cluster(3, workers.Ended(None, "billing:bill cannot go on")), 3)
    with pytest.raises(HeadwayError, match="cannot go on"):
        running.wait(30)
