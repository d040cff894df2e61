"""Records and contexts that a test makes to call a handler."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway import ConsumerRecord, worker
from headway.errors import ConfigError, DeserializationError
from headway.testing import context, record
from tests.contract.testing.shop import Order, bill


@worker("plain", group="plain", config={"key.deserializer": bytes.decode})
def plain(record: ConsumerRecord) -> None: ...


@pytest.mark.parametrize(
    ("value", "arrives"), [("text", b"text"), (b"bytes", b"bytes"), (None, None), ({"n": 1}, {"n": 1})]
)
def test_a_value_arrives_as_it_would_from_a_topic(value: Any, arrives: Any) -> None:
    assert record(value).value == arrives


def test_with_a_worker_value_key_topic_and_level_are_as_declared() -> None:
    given = record({"number": 7}, "customer", worker=bill)
    assert given.value == Order(7)
    assert (given.raw_value, given.raw_key, given.key) == (b'{"number":7}', b"customer", b"customer")
    assert (given.topic, given.level, given.kafka_topic) == ("orders", 0, "orders-0")
    assert record(Order(8), worker=bill, level=2).value == Order(8)
    assert record(worker=plain, key="k", value={"n": 1}).value == b'{"n":1}'
    assert record(worker=plain, key="k").key == "k"
    assert record(worker=plain).level == 0
    assert record(worker=plain).kafka_topic == "plain"


def test_what_the_worker_cannot_read_raises_where_the_handler_asks() -> None:
    given = record("{", worker=bill)
    with pytest.raises(DeserializationError):
        _ = given.value


def test_headers_time_and_place_are_those_given() -> None:
    given = record("v", topic="orders", level=1, partition=3, offset=4, headers=[("a", b"1")], timestamp=5)
    assert list(given.headers) == [("a", b"1")]
    assert (given.timestamp, given.partition, given.offset, given.leader_epoch) == (5, 3, 4, None)
    assert str(given.origin) == "orders-1-3-4"
    assert given.expires is None


def test_a_context_has_what_is_given() -> None:
    given = context(3, last_error=OSError("gone"), level=2, queue_time=5, state="pool")
    assert (given.attempt, given.level, given.state) == (3, 2, "pool")
    assert str(given.last_error) == "gone"
    assert given.last_failed_at is not None
    assert 5 <= given.queue_time < 6
    assert context().last_error is None
    assert context().last_failed_at is None
    assert context().state is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: context(0),
        lambda: record(object()),
        lambda: record("v", worker=print),
        lambda: record("v", partition=-1),
        lambda: record("v", level=-1),
    ],
)
def test_what_cannot_be_is_refused(call: Any) -> None:
    with pytest.raises(ConfigError):
        call()


WITHOUT = """
import sys

sys.modules["psutil"] = None

def test_needs_a_broker(headway_broker): ...
def test_needs_a_secure_broker(headway_secure_broker): ...
def test_needs_a_mock(headway_mock):
    assert headway_mock.settings
"""


def test_a_fixture_says_which_extra_it_needs(tmp_path: Path) -> None:
    (tmp_path / "test_without.py").write_text(WITHOUT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, check=False, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60)
    assert "1 passed, 2 errors" in ran.stdout
    assert "The local broker needs psutil, which is not installed: pip install 'cjdk" in ran.stdout
    assert "Traceback" not in ran.stdout
