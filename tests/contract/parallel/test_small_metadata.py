"""Brokers with a small `offset.metadata.max.bytes`: offsets are committed all the same. On real Kafkas."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import ParallelConsumer, Retries
from headway.broker import LocalBroker
from tests.contract.conftest import Cluster, cluster_of
from tests.contract.parallel import odd_handlers
from tests.contract.parallel.members import committed, consumer, log_ends, maps_of, send, topic_of, wait_for
from tests.contract.parallel.test_transactions import reader

pytestmark = pytest.mark.kafka

RECORDS = 8_000
FIRST = 1_200  # of these, whose map is too large
Run = Callable[[ParallelConsumer], None]
RUNS: dict[str, Run] = {
    "thread": lambda parallel: parallel.run(odd_handlers.fail_at_some),
    "async": lambda parallel: parallel.run(odd_handlers.fail_at_some_async),
    "process": lambda parallel: parallel.run(odd_handlers.fail_at_some),
}


@pytest.fixture(scope="module", params=[pytest.param(0, marks=pytest.mark.slow), 128])
def limited(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, int]]:
    """A Kafka that takes so many characters beside an offset."""
    with LocalBroker(properties={"offset.metadata.max.bytes": str(request.param)}) as broker:
        yield cluster_of(broker), request.param


@pytest.fixture
def goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Once it is there, all records can be handled."""
    path = tmp_path / "goes-on"
    monkeypatch.setenv(odd_handlers.GOES_ON, str(path))
    return path


class Running:
    """A consumer in a thread of its own that tries some records again and again."""

    def __init__(self, cluster: Cluster, topic: str, run: Run, **options: Any) -> None:
        defaults: dict[str, Any] = {"retries": Retries(lambda *_: 0.5), "max_concurrency": 32, "processes": 1}
        self.consumer = consumer(cluster, topic, defaults | options, **{"auto.commit.interval.ms": 50})
        self._thread = threading.Thread(target=run, args=(self.consumer,))
        self._thread.start()

    def wait_until_it_is_held(self) -> int:
        """Until nothing more is done for a second; how many were."""
        done, since = -1, 0
        while since < 20:
            now = self.consumer.metrics().done
            since = since + 1 if now == done and now > 0 else 0
            done = now
            assert not self.consumer.failure
            threading.Event().wait(0.05)
        return done

    def close(self) -> None:
        """End it, and what runs comes again."""
        self.consumer.close(drain=False)
        self._thread.join(30)
        assert not self.consumer.failure


def is_warning(message: str) -> bool:
    return "Kafka refuses an offset map of" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["async", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("thread", "process"))]
)
def test_offsets_are_committed_with_what_has_room_of_their_map_and_the_partition_waits_for_its_gap(
    limited: tuple[Cluster, int], goes_on: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, limit = limited
    topic = topic_of(cluster, 1)
    send(cluster, topic, ((str(i), "v") for i in range(FIRST)))
    running = Running(cluster, topic, RUNS[mode], executor="process" if mode == "process" else None)
    try:
        wait_for(lambda: committed(cluster, topic) and any(map(is_warning, caplog.messages)))
        send(cluster, topic, ((str(i), "v") for i in range(FIRST, RECORDS)))
        assert running.wait_until_it_is_held() < RECORDS / 2
        [(offset, metadata)] = committed(cluster, topic).values()
        assert offset == 0
        assert len(metadata) <= limit
        assert bool(maps_of(committed(cluster, topic))[0].complete) == (limit > 0)
        goes_on.touch()
        wait_for(lambda: committed(cluster, topic) == {0: (RECORDS, b"")})
    finally:
        running.close()
    assert sum(map(is_warning, caplog.messages)) == 1
    assert not any("A commit of level" in message for message in caplog.messages)


@pytest.mark.slow
def test_each_output_of_a_transaction_is_there_once_though_no_map_remembers_its_record(
    limited: tuple[Cluster, int], goes_on: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, _ = limited
    topic = topic_of(cluster, 1)
    cluster.create_topics([f"{topic}-out"])
    send(cluster, topic, ((str(i), str(i)) for i in range(RECORDS)))
    run: Run = lambda parallel: parallel.run_and_produce(odd_handlers.copy_all_but_some)  # noqa: E731
    running = Running(cluster, topic, run, commit_mode="transactional")
    try:
        running.wait_until_it_is_held()
    finally:
        running.close()  # what it did and could not commit comes again
    goes_on.touch()
    running = Running(cluster, topic, run, commit_mode="transactional")
    try:
        # A transaction's end is in the log as well.
        wait_for(lambda: committed(cluster, topic) == {0: (log_ends(cluster, topic)[0], b"")})
        with reader(cluster, f"{topic}-out") as found:
            wait_for(lambda: len(found.values) >= RECORDS)
            assert Counter(found.values) == Counter(map(str, range(RECORDS)))
    finally:
        running.close()
    assert 1 <= sum(map(is_warning, caplog.messages)) <= 2  # once in each run
