"""Passwords and certificates that end under what runs, on a secured Apache Kafka, in the time that it really takes."""

import time
from datetime import timedelta
from pathlib import Path

import pytest

from headway import PriorityProducer
from headway.broker import LocalBroker
from headway.kafka.admin import Admin

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PATIENCE = 120.0


def test_a_producer_whose_certificate_has_ended_says_so_and_its_successor_takes_the_new_one(tmp_path: Path) -> None:
    with LocalBroker(secure=True) as broker:
        topic = "orders"
        Admin(broker.admin_config).create([f"{topic}-0"], 1)
        assert broker._security
        certificate = tmp_path / "admin.pem"
        files = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}
        config = {**broker.client_config("admin", certificate=True), **files, "max.priority": 1}
        broker._security.authority.issue("admin", certificate, lifetime=timedelta(seconds=15))
        with PriorityProducer({**config, "delivery.timeout.ms": 8000}) as producer:
            producer.send(topic, b"before").result(PATIENCE)
            time.sleep(16)
            broker.nodes[0].kill()
            broker.nodes[0].stop()
            broker.nodes[0].spawn()
            broker.nodes[0].wait_until_ready(time.monotonic() + PATIENCE)
            error = producer.send(topic, b"after").exception(PATIENCE)
            assert "alert certificate" in str(error)
        broker._security.authority.issue("admin", certificate)
        with PriorityProducer(config) as producer:
            producer.send(topic, b"after").result(PATIENCE)
