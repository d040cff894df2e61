"""Making confluent_kafka's clients."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import confluent_kafka as ck

from headway.config import explain_refused
from headway.errors import ConfigError

T = TypeVar("T")


def make_client(kind: Callable[[dict[str, Any]], T], config: Mapping[str, Any]) -> T:
    """A client of this kind; raises `ConfigError` for a setting that librdkafka does not know or take."""
    try:
        with _ctrl_c_waits():
            return kind(dict(config))
    except ck.KafkaException as error:
        raise ConfigError(explain_refused(error.args[0].str(), config)) from error


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """A Ctrl-C while it reads the settings would be lost: the binding takes it for a setting without a name.

    Only the main thread handles signals. To block them would not do: another thread would take this one.
    """
    handle = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handle):
        yield
        return
    came: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda *signals: came.append(signals))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handle)
        if came:
            handle(*came[0])
