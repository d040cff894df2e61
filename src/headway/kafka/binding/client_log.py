"""Passes the log messages of librdkafka's clients on to `logging`. Without this, librdkafka would write to stderr."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headway.settings.config import Config, whole_number

log = logging.getLogger("headway.librdkafka")

# The levels of `logging` for librdkafka's log levels 0 to 7. The binding uses the same table.
_PYTHON_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
_DEFAULT_LEVEL = 6
_DEBUG_LEVEL = 7
# librdkafka logs at this level why a broker closed a connection, and that a heartbeat was not answered.
_NEEDED_LEVEL = 6
_REPEAT_AFTER = 10.0  # seconds


class Logger(Protocol):
    """The methods of `logging.Logger` that the binding calls."""

    def log(self, level: int, message: str, /, *args: object) -> object: ...


class ClientLog:
    """The logger of one client, which passes on the messages that the setting `log_level` selects.

    `on_line` is called with every message, and returns whether the message is about a connection. One client can log 60
    messages about connections a second. So only one such message is passed on every ten seconds, counted over all
    clients of the same brokers.

    `settings` contains the settings `logger` and `log_level` for the client.
    """

    def __init__(self, config: Config, on_line: Callable[[str], bool]) -> None:
        default = _DEBUG_LEVEL if config.get("debug") else _DEFAULT_LEVEL
        level = whole_number("log_level", config.get("log_level", default))
        self._min_level = _PYTHON_LEVELS[min(max(level, 0), len(_PYTHON_LEVELS) - 1)]
        self._logger: Logger = config.get("logger") or log
        self._about = f"{config.get('bootstrap.servers')} {id(self._logger)}"
        self._on_line = on_line
        self.settings: Config = {"logger": self, "log_level": max(level, _NEEDED_LEVEL)}

    def log(self, level: int, message: str, *args: object) -> None:
        """Process a log message.

        This never raises, because an error would make the binding drop the records of a fetch.
        """
        try:
            is_of_connection = self._on_line(str(args[-1]) if args else message)
            if level < self._min_level or (is_of_connection and _limit.is_too_soon(self._about, time.monotonic())):
                return
            self._logger.log(level, message, *args)
        except Exception:
            log.exception("A log message of librdkafka could not be passed on.")


class _LogThrottle:
    """Limits how often log messages about the connections to each cluster are passed on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the times at which messages were logged
        self._last: dict[str, float] = {}

    def is_too_soon(self, about: str, now: float) -> bool:
        with self._lock:
            self._last = {each: at for each, at in self._last.items() if now - at < _REPEAT_AFTER}
            if about in self._last:
                return True
            self._last[about] = now
            return False


_limit = _LogThrottle()
