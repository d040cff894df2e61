"""Delayed delivery while the broker's own clock steps: a real Kafka whose wall clock the test puts forward and back."""

import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from headway.broker import LocalBroker
from tests.broker.delay_cluster import DelayCluster, wait_until

HOUR = 3600
COMPILER = shutil.which("cc")


class SteppedClock:
    """The wall clock of what is started with `environment`."""

    def __init__(self, directory: Path) -> None:
        library, self._file = directory / "stepped_clock.so", directory / "step"
        source = Path(__file__).with_name("stepped_clock.c")
        subprocess.run([COMPILER or "cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}
        self._file.write_bytes(struct.pack("l", 0))

    def step_to(self, seconds: int) -> None:
        """So many seconds ahead of the right time."""
        with self._file.open("r+b") as file:  # in place: it is mapped into the process
            file.write(struct.pack("l", seconds))


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
def test_a_brokers_clock_that_steps_an_hour_makes_nothing_early_lost_or_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SteppedClock(tmp_path)
    with monkeypatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        broker = LocalBroker(data_dir=tmp_path / "broker", ephemeral=True).start()
    with broker:
        cluster = DelayCluster(broker.bootstrap_servers)
        due: dict[bytes, float] = {}
        with cluster.scheduler() as scheduler, cluster.relay():

            def schedule(name: str, seconds: float) -> None:
                for n in range(20):
                    key = f"{name} {n}".encode()
                    due[key] = scheduler.send_later(key, b"v", cluster.target, seconds + n * 0.01).due
                scheduler.flush()

            schedule("now", 0)
            cluster.wait_for_keys(due)
            schedule("within the hour", 1000)
            schedule("after the hour", HOUR + 3)
            clock.step_to(HOUR)
            schedule("overdue", 10)
            cluster.wait_for_keys(due)
            clock.step_to(0)
            time.sleep(1.1)  # so long a relay relies on what it has seen of the clock
            schedule("after a step back", 1)
            cluster.wait_for_keys(due)
            before = len(due)
            schedule("in time", 5)
            clock.step_to(-HOUR)
            wait_until(lambda: time.time() > due[b"in time 19"] + 0.3)  # for what must not come
            assert len(cluster.read()) == before
            clock.step_to(0)
            cluster.wait_for_keys(due)
        found = cluster.read()
        assert sorted(message.key() for message in found) == sorted(due)
        for message in found:
            assert message.timestamp()[1] >= due[message.key()] * 1000
