"""A secured local broker: nobody gets in without a login, does anything without a right, or learns a secret."""

import json
import re
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from headway.broker import LocalBroker
from headway.broker.certificates import Authority
from headway.broker.ports import free_ports
from headway.errors import KafkaError as HeadwayKafkaError
from headway.errors import LocalBrokerError
from headway.kafka.admin import Admin
from tests.broker.delay_cluster import MISSED_SOON

pytestmark = pytest.mark.kafka

PATIENCE = 60


def produce(config: dict[str, Any], topic: str, value: bytes = b"one") -> int | None:
    """Send one record; return the code of its error, None when it was stored."""
    errors: list[KafkaError | None] = []
    producer = Producer({**config, "log_level": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE) == 0
    producer.close()
    [error] = errors
    return error.code() if error else None


def consume(config: dict[str, Any], topic: str, group: str) -> bytes | int | None:
    """Return the first record's value as a group's member reads it, or the code of the error that comes instead."""
    consumer = Consumer({**config, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0})
    consumer.subscribe([topic])
    try:
        record = consumer.poll(PATIENCE)
        assert record
        error = record.error()
        return error.code() if error else record.value()
    finally:
        consumer.close()


@pytest.fixture
def topic(headway_secure_broker: LocalBroker, headway_topic: str) -> str:
    """A topic with one partition, which `admin` made."""
    Admin(headway_secure_broker.admin_config).create([headway_topic], 1)
    return headway_topic


@pytest.fixture
def user(headway_secure_broker: LocalBroker) -> str:
    """A new user without rights."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    headway_secure_broker.add_user(name)
    return name


def test_the_superuser_may_do_everything(headway_secure_broker: LocalBroker, topic: str) -> None:
    assert headway_secure_broker.admin_config["security.protocol"] == "SASL_SSL"
    assert produce(headway_secure_broker.admin_config, topic) is None
    assert consume(headway_secure_broker.admin_config, topic, topic) == b"one"


@pytest.mark.quick("password")
@pytest.mark.parametrize("certificate", [False, True], ids=["password", "certificate"])
def test_another_user_may_do_what_is_granted_until_it_is_revoked(
    headway_secure_broker: LocalBroker, topic: str, user: str, certificate: bool
) -> None:
    broker = headway_secure_broker
    config = broker.client_config(user, certificate=certificate)
    assert produce(config, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    broker.grant(user, "Write", "Topic", topic[:-1], prefixed=True)
    assert produce(config, topic) is None
    broker.grant(user, "Read", "Topic", topic)
    assert consume(config, topic, topic) == KafkaError.GROUP_AUTHORIZATION_FAILED
    broker.grant(user, "Read", "Group", topic)
    assert consume(config, topic, topic) == b"one"
    broker.revoke(user, "Write", "Topic", topic[:-1], prefixed=True)
    assert produce(config, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(HeadwayKafkaError, match=f"there is no ACL Write on Topic {topic} for User:{user}"):
        broker.revoke(user, "Write", "Topic", topic)


def test_app_may_do_nothing_at_first(headway_secure_broker: LocalBroker, topic: str) -> None:
    assert produce(headway_secure_broker.client_config(), topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert Admin(headway_secure_broker.client_config("app")).topics() == {}


def test_rights_on_groups_transactions_and_the_cluster_can_be_granted(
    headway_secure_broker: LocalBroker, user: str
) -> None:
    for resource, name in (("Group", "g"), ("TransactionalId", "*"), ("Cluster", "kafka-cluster")):
        headway_secure_broker.grant(user, "Describe", resource, name)
        headway_secure_broker.revoke(user, "Describe", resource, name)


def test_a_broker_is_known_by_its_certificate_and_a_client_by_its_secret(
    headway_secure_broker: LocalBroker, tmp_path: Path
) -> None:
    broker = headway_secure_broker
    stranger = Authority(tmp_path)
    stranger.make()
    stranger.issue("admin", tmp_path / "admin.pem")
    forged = {"ssl.certificate.location": str(tmp_path / "admin.pem"), "ssl.key.location": str(tmp_path / "admin.pem")}
    password, certificate = broker.admin_config, broker.client_config("admin", certificate=True)
    port = broker.nodes[0].port
    assert Admin({**password, "bootstrap.servers": f"localhost:{port}"}).broker_count() == 1
    assert Admin(certificate).broker_count() == 1
    for config, reason in (
        ({**password, "ssl.ca.location": str(stranger.certificate)}, "certificate verify failed"),
        ({**password, "sasl.password": "guessed"}, "Authentication failed"),
        ({**certificate, **forged}, "SSL|Disconnected|no answer"),
        ({**certificate, "ssl.certificate.location": "", "ssl.key.location": ""}, "SSL|Disconnected|no answer"),
        ({"bootstrap.servers": broker.bootstrap_servers}, "Disconnected|no answer"),
    ):
        with pytest.raises(HeadwayKafkaError, match=reason):
            Admin(config).broker_count()


def test_the_page_about_the_broker_shows_a_test_that_passes(
    headway_secure_broker: LocalBroker, headway_topic: str
) -> None:
    page = Path(__file__).parents[2] / "docs" / "broker.md"
    program = next(text for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "def " in text)
    found: dict[str, Any] = {}
    exec(compile(program, page.name, "exec"), found)  # noqa: S102 - our own text
    found["test_orders_need_a_right"](headway_secure_broker, headway_topic)


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """Watch the command lines and environments of all that this process starts, as often as possible."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not over.wait(0.002):
            for process in me.children(recursive=True):
                try:
                    seen.update((" ".join(process.cmdline()), str(process.environ())))
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def headway(*arguments: object, code: int = 0) -> str:
    """Run the command; return what it prints, be it an error."""
    script = Path(sys.executable).with_name("headway")
    done = subprocess.run(
        [script, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def secrets_of(data_dir: Path) -> list[str]:
    """Return the passwords, and a line of each private key."""
    files = data_dir / "security"
    passwords = [file.read_text() for file in files.glob("*.password")]
    keys = [file.read_text().splitlines()[1] for file in (*files.glob("*.pem"), files / "ca.key")]
    assert len(passwords) >= 2
    assert len(keys) >= 4
    return passwords + keys


@pytest.mark.slow
def test_a_kept_broker_keeps_users_and_rights_and_says_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir = tmp_path / "data"
    here = ("--data-dir", data_dir)
    printed = ""
    try:
        with command_lines() as seen:
            printed += headway("broker", "start", "--secure", "--port", *free_ports(1), *here)
        file = data_dir / "security" / "admin.properties"
        for shown in ("security.protocol  SASL_SSL", "sasl.username      app", f"--config-file {file}"):
            assert shown in printed
        assert "Created orders" in headway("topics", "create", "orders", "--config-file", file)
        printed += headway("broker", "status", *here)
        assert "(secure)" in printed
        status = json.loads(headway("broker", "status", *here, "--json"))
        assert status["secure"]
        broker = LocalBroker.attach(data_dir)
        broker.grant("app", "Write", "Topic", "orders")
        broker.add_user("relay")
        broker.grant("relay", "Write", "Topic", "orders")
        printed += repr(broker) + repr(broker.nodes) + repr(vars(broker))
    finally:
        printed += headway("broker", "stop", *here)
    authority = (data_dir / "security" / "ca.crt").read_bytes()
    with pytest.raises(LocalBrokerError, match="created with secure=True, but secure=False was requested"):
        LocalBroker(data_dir=data_dir, secure=False).start()
    with LocalBroker(data_dir=data_dir) as broker:
        assert broker.secure
        assert (data_dir / "security" / "ca.crt").read_bytes() == authority
        assert [produce(broker.client_config(user), "orders") for user in ("admin", "app", "relay")] == [None] * 3
        assert produce(broker.client_config("relay", certificate=True), "orders") is None
    secrets = secrets_of(data_dir)
    others = [file for file in data_dir.rglob("*") if file.is_file() and file.parent.name != "security"]
    told = {str(file): file.read_bytes().decode("latin-1") for file in others}
    told |= {"printed": printed, "logged": caplog.text, "seen": "\n".join(seen)}
    assert "kafka.tools.StorageTool" in told["seen"]
    assert [(where, secret) for where, text in told.items() for secret in secrets if secret in text] == []
    files = list((data_dir / "security").iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert not [file for file in files if file.name.startswith((".", "tmp", "format"))]


@pytest.mark.slow
def test_three_secured_nodes_work_while_one_is_away() -> None:
    with LocalBroker(nodes=3, secure=True, properties=MISSED_SOON) as broker:
        Admin(broker.admin_config).create(["orders"], 3)
        broker.grant("app", "Write", "Topic", "orders")
        broker.grant("app", "Read", "Topic", "orders")
        # A consumer asks for its group's coordinator though it commits nothing, and tells of a refusal.
        broker.grant("app", "Read", "Group", "none")
        broker.add_user("relay")
        broker.grant("relay", "Write", "Topic", "orders")
        broker.nodes[0].kill()
        assert produce(broker.client_config(), "orders") is None
        assert produce(broker.client_config("relay", certificate=True), "orders") is None
        broker.nodes[0].start()
        broker.nodes[1].stop()
        broker.nodes[1].start()
        consumer = Consumer({**broker.client_config(), "group.id": "none", "enable.auto.commit": False, "log_level": 0})
        consumer.assign([TopicPartition("orders", partition, 0) for partition in range(3)])
        assert [record.value() for record in consumer.consume(2, PATIENCE)] == [b"one", b"one"]
        consumer.close()
