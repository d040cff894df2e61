"""Passwords and certificates that end under what runs, on a secured Apache Kafka, in the time that it really takes."""

import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headway import Producer, Relay, Scheduler
from headway.broker import LocalBroker
from headway.core.roles import permissions_of
from headway.delay.topics import create_topics
from headway.errors import AuthenticationError
from headway.kafka.admin import Admin
from headway.kafka.reading.group_inspector import GroupInspector
from tests.broker.delay_cluster import LADDER, QUICK
from tests.broker.secured_role import Certificate, change_password, start_again

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PATIENCE = 120.0
PROGRAM = """
from headway import worker

@worker("{topic}", group="{topic}", levels=1, config={{"session.timeout.ms": 6000, "reconnect.backoff.max.ms": 500}})
def handle(record, context):
    print(record.value.decode(), flush=True)
"""


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def committed(broker: LocalBroker, group: str) -> int:
    """Return the offset that the group of a worker with one level has committed."""
    with GroupInspector(broker.admin_config, f"{group}-0") as onlooker:
        [(offset, _)] = onlooker.committed([(f"{group}-0", 0)]).values() or [(0, b"")]
    return offset


def test_a_worker_whose_password_was_renewed_is_started_again_with_the_new_one(tmp_path: Path) -> None:
    topic, user = f"orders-{uuid.uuid4().hex[:8]}", "shop"
    with LocalBroker(secure=True, properties={"listener.name.sasl_ssl.connections.max.reauth.ms": "2000"}) as broker:
        config = broker.add_user(user)
        Admin(broker.admin_config).create([f"{topic}-0"], 1)
        for operation in ("Read", "Write"):
            broker.grant(user, operation, "Topic", topic, prefixed=True)
        broker.grant(user, "Read", "Group", topic, prefixed=True)
        file, log, out = tmp_path / "shop.properties", tmp_path / "log", tmp_path / "out"
        (tmp_path / "billing.py").write_text(PROGRAM.format(topic=topic))

        def write(password: str) -> None:
            settings = {**config, "sasl.password": password, "auto.offset.reset": "earliest"}
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

        def send(value: bytes) -> None:
            with Producer({**broker.admin_config, "levels": 1}) as producer:
                producer.send(topic, value).result(PATIENCE)

        write(config["sasl.password"])
        command = [str(Path(sys.executable).with_name("headway")), "worker", "billing", "--config-file", str(file)]
        with log.open("w") as errors, out.open("w") as output:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=errors)
            try:
                send(b"before")
                wait_for(lambda: "before" in out.read_text())
                wait_for(lambda: committed(broker, topic) == 1)
                change_password(broker, user, "another")
                write("another")
                wait_for(lambda: "This process ends" in log.read_text())
                send(b"after")
                wait_for(lambda: "after" in out.read_text())
            finally:
                process.terminate()
                process.wait(PATIENCE)
        said = log.read_text()
        assert process.returncode == 0, said
        assert out.read_text().splitlines() == ["before", "after"]
        assert re.search(
            r"This process ends: The broker at .* refuses this client: .*The client was connected before", said
        ), said
        assert len(re.findall("FAIL", said)) <= 12, said  # one every ten seconds, in a minute or so
        assert "another" not in said


def test_a_relay_whose_password_was_renewed_ends_with_the_reason_and_its_successor_delivers_once() -> None:
    name, user = f"delay-{uuid.uuid4().hex[:8]}", "relay-of-the-shop"
    with LocalBroker(secure=True, properties={"listener.name.sasl_ssl.connections.max.reauth.ms": "2000"}) as broker:
        target = f"{name}-target"
        Admin(broker.admin_config).create([target], 1)
        create_topics(broker.admin_config, name, LADDER, 1)
        config = {**broker.add_user(user), **QUICK}
        for permission in permissions_of("relay", [], {"scheduler": [name], "topic": [target]}):
            broker.grant(user, permission.operation, permission.resource, permission.name, prefixed=permission.prefixed)
        with Scheduler(broker.admin_config, name=name) as scheduler:
            with Relay(config, name=name) as relay, ThreadPoolExecutor(1) as threads:
                run = threads.submit(relay.run)
                scheduler.send_later("before", b"before", target, 0.2)
                wait_for(lambda: relay.counts["delivered"] == 1)
                change_password(broker, user, "another")
                wait_for(run.done)
            scheduler.send_later("after", b"after", target, 0.2)
            error = run.exception()
            assert isinstance(error, AuthenticationError)
            assert "invalid credentials" in str(error)
            assert config["sasl.password"] not in str(error)
            with Relay({**config, "sasl.password": "another"}, name=name).running() as relay:
                wait_for(lambda: relay.counts["delivered"] == 1)
        assert values(broker, target) == [b"after", b"before"]


def values(broker: LocalBroker, topic: str) -> list[bytes | None]:
    """Return what is committed in a topic of one partition, sorted."""
    settings = {**broker.admin_config, "group.id": "none", "enable.partition.eof": True}
    with closing(Consumer({"log_level": 0, **settings})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while (message := consumer.poll(60)) and not message.error():
            found.append(message.value())
        assert message
    return sorted(found, key=lambda value: value or b"")


def test_a_worker_whose_certificate_was_renewed_is_started_again_with_the_new_one(tmp_path: Path) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    with LocalBroker(secure=True) as broker:
        Admin(broker.admin_config).create([f"{topic}-0"], 1)
        file, log, out = (tmp_path / each for each in ("shop.properties", "log", "out"))
        certificate = Certificate(broker, tmp_path)
        config = {**certificate.config, "auto.offset.reset": "earliest"}
        file.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        (tmp_path / "billing.py").write_text(PROGRAM.format(topic=topic))
        ends = certificate.issue(timedelta(seconds=30))

        def send(value: bytes) -> None:
            with Producer({**broker.admin_config, "levels": 1}) as producer:
                producer.send(topic, value).result(PATIENCE)

        command = [str(Path(sys.executable).with_name("headway")), "worker", "billing", "--config-file", str(file)]
        with log.open("w") as errors, out.open("w") as output:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=errors)
            try:
                send(b"before")
                wait_for(lambda: "before" in out.read_text())
                wait_for(lambda: committed(broker, topic) == 1)
                wait_for(lambda: time.monotonic() > ends)  # that of the certificate
                start_again(broker)
                send(b"after")
                wait_for(lambda: "alert certificate" in log.read_text())
                certificate.issue()
                wait_for(lambda: "after" in out.read_text())
            finally:
                process.terminate()
                process.wait(PATIENCE)
        said = log.read_text()
        assert process.returncode == 0, said
        assert out.read_text().splitlines() == ["before", "after"]
        assert re.search(r"This process ends: The broker at .* refuses this client: .*certificate", said)


def test_a_relay_whose_certificate_was_renewed_ends_with_the_reason_and_its_successor_delivers_once(
    tmp_path: Path,
) -> None:
    name = f"delay-{uuid.uuid4().hex[:8]}"
    with LocalBroker(secure=True) as broker:
        target = f"{name}-target"
        Admin(broker.admin_config).create([target], 1)
        create_topics(broker.admin_config, name, LADDER, 1)
        certificate = Certificate(broker, tmp_path)
        config = {**certificate.config, **QUICK}
        ends = certificate.issue(timedelta(seconds=40))
        with Scheduler(broker.admin_config, name=name) as scheduler:
            with Relay(config, name=name) as relay, ThreadPoolExecutor(1) as threads:
                run = threads.submit(relay.run)
                scheduler.send_later("before", b"before", target, 0.2)
                wait_for(lambda: relay.counts["delivered"] == 1)
                wait_for(lambda: time.monotonic() > ends)
                start_again(broker)
                wait_for(run.done)
            scheduler.send_later("after", b"after", target, 0.2)
            error = run.exception()
            assert isinstance(error, AuthenticationError)
            assert "certificate" in str(error)
            certificate.issue()
            with Relay(config, name=name).running() as relay:
                wait_for(lambda: relay.counts["delivered"] == 1)
        assert values(broker, target) == [b"after", b"before"]


def test_a_producer_whose_certificate_has_ended_says_so_and_its_successor_takes_the_new_one(tmp_path: Path) -> None:
    with LocalBroker(secure=True) as broker:
        topic = "orders"
        Admin(broker.admin_config).create([f"{topic}-0"], 1)
        certificate = Certificate(broker, tmp_path)
        config = {**certificate.config, "levels": 1}
        ends = certificate.issue(timedelta(seconds=15))
        with Producer({**config, "delivery.timeout.ms": 8000}) as producer:
            producer.send(topic, b"before").result(PATIENCE)
            wait_for(lambda: time.monotonic() > ends)
            start_again(broker)
            error = producer.send(topic, b"after").exception(PATIENCE)
            assert "alert certificate" in str(error)
        certificate.issue()
        with Producer(config) as producer:
            producer.send(topic, b"after").result(PATIENCE)
