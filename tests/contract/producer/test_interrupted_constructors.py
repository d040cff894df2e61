"""An interrupt in the constructor of a producer leaves no thread behind."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headway import AsyncProducer, Producer

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
TOKEN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize("make", [Producer, AsyncProducer])
def test_an_interrupt_is_raised_once_a_producer_is_whole_and_closed(
    make: Callable[[dict[str, Any]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        monkeypatch.setattr(threading.Thread, "start", start)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(NOWHERE)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread.name


def test_an_interrupt_ends_the_fetch_of_a_token_at_once() -> None:
    waiting = threading.Event()

    def fetch(argument: str | None) -> tuple[str, float]:
        signal.raise_signal(signal.SIGINT)
        waiting.wait(60)
        return "", 0.0

    with pytest.raises(KeyboardInterrupt):
        Producer({**NOWHERE, **TOKEN, "oauth_cb": fetch})
