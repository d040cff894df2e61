"""Clients of confluent_kafka come whole, whatever is typed meanwhile."""

import os
import signal
import threading
from typing import Any

import confluent_kafka as ck
import pytest

from headway.errors import ConfigError
from headway.kafka.binding.factory import make_client


@pytest.fixture(autouse=True)
def _python_handles_ctrl_c() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_a_client_is_made_is_raised_afterwards() -> None:
    made: list[object] = []

    def make(config: dict[str, Any]) -> ck.Producer:
        os.kill(os.getpid(), signal.SIGINT)
        made.append(ck.Producer({"log_level": 0, **config}))
        return made[0]  # type: ignore[return-value]

    # Another thread, which does not mind signals, takes it where the main one would not.
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, args=(30,))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        make_client(make, {"bootstrap.servers": "localhost:1", "log_level": 0})
    ended.set()
    thread.join()
    assert made


def test_a_setting_that_there_is_not_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'levels'\?"):
        make_client(ck.Producer, {"level": 3})


def test_what_a_users_callback_raises_is_logged_and_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("seven")

    config = {"bootstrap.servers": "localhost:1", "group.id": "g", "statistics.interval.ms": 1, "log_level": 0}
    consumer = make_client(ck.Consumer, config | {"stats_cb": fail, "error_cb": fail})
    try:
        consumer.subscribe(["orders"])
        while len({record.message for record in caplog.records}) < 2:
            consumer.consume(1, 0.05)
    finally:
        consumer.close()
    assert {record.message for record in caplog.records} == {
        "The setting stats_cb raised an error; the client goes on.",
        "The setting error_cb raised an error; the client goes on.",
    }
