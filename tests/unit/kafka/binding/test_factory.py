"""Clients of confluent_kafka come whole, whatever is typed meanwhile."""

import os
import re
import signal
import threading
from typing import Any

import confluent_kafka as ck
import pytest

from headway import ParallelConsumer
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
        "The callback stats_cb raised an error. The client continues.",
        "The callback error_cb raised an error. The client continues.",
    }


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("bootstrap.server", "The setting 'bootstrap.server' is not known. Did you mean 'bootstrap.servers'?"),
        ("sesion.timeout.ms", "The setting 'sesion.timeout.ms' is not known. Did you mean 'session.timeout.ms'?"),
        ("compresion.type", "The setting 'compresion.type' is not known. Did you mean 'compression.type'?"),
        (
            "levels.number",
            'Kafka\'s client refuses the configuration: No such configuration property: "levels.number".',
        ),
        ("shelf", "'shelf' is not a setting. Pass arguments of the class as keyword arguments, outside the settings."),
    ],
)
def test_an_unknown_setting_is_named_with_the_nearest_known_one(key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        make_client(ck.Producer, {"log_level": 0, key: "7"})


def test_a_typing_error_in_the_settings_of_a_consumers_producer_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"'transaction\.timout\.ms' is not known\. Did you mean 'transaction\.time"):
        ParallelConsumer(
            {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}, producer_config={"transaction.timout.ms": 9}
        )
