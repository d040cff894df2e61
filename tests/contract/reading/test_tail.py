"""The thread that reads the newest records of a partition."""

import logging
import threading
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pytest

from headway.kafka.reading.tail import TailReader
from tests.contract.mock_brokers import mock_brokers


def test_an_unexpected_error_is_logged_and_later_records_are_read(caplog: pytest.LogCaptureFixture) -> None:
    heard = threading.Event()

    def answered(key: str, value: bytes) -> None:
        if value == b"first":
            raise RuntimeError("unexpected")
        heard.set()

    with mock_brokers() as brokers, caplog.at_level(logging.ERROR):
        brokers.create("answers")
        config: dict[str, Any] = {"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0}
        with closing(TailReader(config, "answers", 0, answered, lambda refused: None)):
            with closing(ck.Producer({"log_level": 0, **config})) as producer:
                for value in (b"first", b"second"):
                    producer.produce("answers", value, b"k", partition=0)
                assert producer.flush(10) == 0
            assert heard.wait(30)
    assert "Reading the topic answers raised an unexpected error" in caplog.text
