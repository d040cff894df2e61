"""The local broker is a real one: it keeps records, loses nodes, and leaves nothing behind."""

import json
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from headway.broker import LocalBroker, local_broker, node, ports
from headway.broker.ports import choose_ports, free_ports
from headway.errors import LocalBrokerError, PortTakenError
from headway.kafka.admin import Admin
from tests.broker.delay_cluster import MISSED_SOON

pytestmark = pytest.mark.kafka

PATIENCE = 60


def quiet(broker: LocalBroker, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A client's configuration that says nothing when its broker goes down, as brokers do here."""
    return {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **(more or {})}


def create(broker: LocalBroker, topic: str) -> None:
    admin = AdminClient(quiet(broker))
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE)


def produce(broker: LocalBroker, topic: str, *values: bytes) -> None:
    failed: list[object] = []
    producer = Producer(quiet(broker, {"enable.idempotence": True}))
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(PATIENCE) == 0
    producer.close()
    assert failed == []


def consume(broker: LocalBroker, topic: str, count: int) -> list[bytes | None]:
    group = {"group.id": uuid.uuid4().hex, "isolation.level": "read_committed"}
    consumer = Consumer(quiet(broker, group))
    consumer.assign([TopicPartition(topic, 0, 0)])  # quicker than joining the group
    try:
        return [record.value() for record in consumer.consume(count, PATIENCE)]
    finally:
        consumer.close()


def gone(pids: list[int]) -> bool:
    """Whether the processes end; a zombie that nobody waits for has ended."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that another process does, and no longer than it lives."""
    while not what():
        assert process.poll() is None
        time.sleep(0.001)


def test_records_and_transactions_go_through(headway_broker: LocalBroker, headway_topic: str) -> None:
    create(headway_broker, headway_topic)
    producer = Producer(quiet(headway_broker, {"transactional.id": headway_topic}))
    producer.init_transactions(PATIENCE)
    for value, finish in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(headway_topic, value)
        producer.flush(PATIENCE)
        finish(PATIENCE)
    producer.close()
    assert consume(headway_broker, headway_topic, 1) == [b"committed"]


def test_a_topic_is_not_created_by_a_misspelt_name(headway_broker: LocalBroker, headway_topic: str) -> None:
    admin = AdminClient(quiet(headway_broker))
    assert headway_topic not in admin.list_topics(timeout=PATIENCE).topics
    error = admin.list_topics(headway_topic, PATIENCE).topics[headway_topic].error
    assert error is not None
    assert "UNKNOWN_TOPIC" in error.name()


@pytest.mark.slow
def test_records_survive_a_restart_and_given_properties_reach_kafka(tmp_path: Path) -> None:
    with LocalBroker(data_dir=tmp_path / "data") as broker:
        create(broker, "orders")
        produce(broker, "orders", b"kept")
        address = broker.bootstrap_servers
    with LocalBroker(data_dir=tmp_path / "data", properties={"message.max.bytes": "7654321"}) as broker:
        assert broker.bootstrap_servers == address
        assert consume(broker, "orders", 1) == [b"kept"]
        node = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = AdminClient(quiet(broker))
        settings = admin.describe_configs([node])[node].result(PATIENCE)
        assert settings["message.max.bytes"].value == "7654321"
        with pytest.raises(LocalBrokerError, match=r"is already running in"):
            LocalBroker(data_dir=tmp_path / "data").start()
        assert broker.running


@pytest.mark.slow
def test_an_ephemeral_broker_leaves_nothing() -> None:
    with LocalBroker() as broker:
        pid = broker.nodes[0].pid
        assert pid is not None
        assert broker.data_dir.exists()
    assert gone([pid])
    assert not broker.data_dir.exists()


@pytest.mark.slow
def test_three_nodes_lose_nothing_when_one_is_killed_and_take_it_back() -> None:
    with LocalBroker(nodes=3, properties=MISSED_SOON) as broker:
        alone = [Admin({"bootstrap.servers": f"127.0.0.1:{node.port}"}) for node in broker.nodes]
        assert [admin.broker_count() for admin in alone] == [3, 3, 3]
        create(broker, "orders")
        produce(broker, "orders", b"before")
        broker.nodes[0].kill()
        assert [node.running for node in broker.nodes] == [False, True, True]
        produce(broker, "orders", b"meanwhile")
        broker.nodes[0].start()
        broker.nodes[1].stop()
        produce(broker, "orders", b"after")
        assert consume(broker, "orders", 3) == [b"before", b"meanwhile", b"after"]


@pytest.mark.slow
def test_ports_that_are_taken_before_kafka_listens_on_them_are_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, [free] = other.getsockname()[1], free_ports(1)
        chosen = iter([([taken], [free]), ([free], [taken])])
        monkeypatch.setattr(local_broker, "choose_ports", lambda *args: next(chosen, None) or choose_ports(*args))
        with LocalBroker() as broker:
            create(broker, "orders")
            produce(broker, "orders", b"one")
            assert consume(broker, "orders", 1) == [b"one"]


@pytest.mark.slow
def test_a_port_that_another_takes_while_java_starts_is_an_error_though_somebody_listens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (ports, node):
        monkeypatch.setattr(module, "require_free", lambda port: None)  # it was free a moment ago
    with socket.create_server(("127.0.0.1", 0)) as other:
        broker = LocalBroker(data_dir=tmp_path, port=other.getsockname()[1])
        with pytest.raises(PortTakenError, match="was taken by another process"):
            broker.start()
        assert not broker.running


def test_a_node_is_started_once(headway_broker: LocalBroker) -> None:
    with pytest.raises(LocalBrokerError, match="Node 1 is already running"):
        headway_broker.nodes[0].start()


def test_a_property_that_kafka_refuses_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    broker = LocalBroker(data_dir=tmp_path / "data", ephemeral=True, properties={"num.partitions": "many"})
    with pytest.raises(LocalBrokerError, match="refused a property: Invalid value many"):
        broker.start()
    assert not broker.running
    assert not broker.data_dir.exists()


@pytest.mark.slow
def test_a_damaged_data_directory_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    broker = LocalBroker(data_dir=tmp_path).start()
    broker.stop()
    (tmp_path / "node-1" / "data" / "meta.properties").write_text("damaged")
    with pytest.raises(LocalBrokerError, match=f"restore {tmp_path} from a backup, or delete it"):
        LocalBroker(data_dir=tmp_path).start()


START = """
import sys
from headway.broker import LocalBroker
with LocalBroker(data_dir=sys.argv[1], ephemeral=True) as broker:
    print(broker.nodes[0].pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another Python process, that starts an ephemeral broker in `tmp_path / "data"` and prints its process id."""
    command = [sys.executable, "-c", START, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_broker_of_a_killed_python_process_is_stopped(other: subprocess.Popen[str], tmp_path: Path) -> None:
    assert other.stdout
    pid = int(other.stdout.readline())
    [guard] = [each for each in psutil.Process(other.pid).children() if each.pid != pid]
    other.kill()
    assert gone([pid, guard.pid])
    assert not (tmp_path / "data").exists()


def test_ctrl_c_while_starting_stops_what_was_started(other: subprocess.Popen[str], tmp_path: Path) -> None:
    pid_file = tmp_path / "data" / "node-1" / "pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text() != "", other)
    pid = int(pid_file.read_text())
    other.send_signal(signal.SIGINT)
    assert other.wait(PATIENCE) != 0
    assert gone([pid])
    assert not (tmp_path / "data").exists()


def headway(*arguments: object, code: int = 0) -> str:
    """Run the command; return what it prints, be it an error."""
    script = Path(sys.executable).with_name("headway")
    done = subprocess.run(
        [script, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose broker is stopped at the end, whatever the test did."""
    yield tmp_path / "data"
    if (tmp_path / "data").exists():
        LocalBroker.attach(tmp_path / "data").stop()


def test_the_command_starts_shows_and_stops_a_broker(data_dir: Path) -> None:
    here = ("--data-dir", data_dir)
    [port] = free_ports(1)
    started = headway("broker", "start", *here, "--port", port)
    assert f"bootstrap.servers  127.0.0.1:{port}" in started
    broker = json.loads(headway("broker", "status", *here, "--json"))
    assert broker["running"]
    again = headway("broker", "start", *here, code=1)
    assert again.startswith("headway: A broker is already running in")
    assert len(again.splitlines()) == 1
    assert "Stopped" in headway("broker", "stop", *here)
    assert gone([broker["nodes"][0]["pid"]])
    assert "No broker is running" in headway("broker", "status", *here, code=1)
    assert headway("broker", "stop", *here) == "No broker was running.\n"
