"""The log of librdkafka's clients, passed on to `logging`: never raw to stderr."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headway.settings.config import Config, whole_number

log = logging.getLogger("headway.librdkafka")

# librdkafka's levels 0 to 7 as the binding translates them.
_PYTHON_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
_DEFAULT_LEVEL = 6
_DEBUG_LEVEL = 7
# Only this level tells why a broker closed a connection, and that a heartbeat was lost.
_NEEDED_LEVEL = 6
_AGAIN_AFTER = 10.0


class Logger(Protocol):
    """The part of `logging.Logger` that the binding calls."""

    def log(self, level: int, message: str, /, *args: object) -> object: ...


class ClientLog:
    """A logger for one client, which passes on the lines that the setting `log_level` asks for.

    `hear(line)` gets every line, and returns whether it is about a connection. Such lines come up to 60 times a second,
    for each client. Of all clients of the same brokers one such line is passed on every ten seconds. `settings` holds
    the client's settings `logger` and `log_level`.
    """

    def __init__(self, config: Config, hear: Callable[[str], bool]) -> None:
        default = _DEBUG_LEVEL if config.get("debug") else _DEFAULT_LEVEL
        level = whole_number("log_level", config.get("log_level", default))
        self._least = _PYTHON_LEVELS[min(max(level, 0), len(_PYTHON_LEVELS) - 1)]
        self._logger: Logger = config.get("logger") or log
        self._about = f"{config.get('bootstrap.servers')} {id(self._logger)}"
        self._hear = hear
        self.settings: Config = {"logger": self, "log_level": max(level, _NEEDED_LEVEL)}

    def log(self, level: int, message: str, *args: object) -> None:
        """Take a line; raises nothing, as the binding would drop the records that it is fetching."""
        try:
            is_of_connection = self._hear(str(args[-1]) if args else message)
            if level >= self._least and not (is_of_connection and _turns.is_too_soon(self._about, time.monotonic())):
                self._logger.log(level, message, *args)
        except Exception:
            log.exception("A line of librdkafka's log could not be passed on.")


class _Turns:
    """The time at which a line about the connections to some brokers was passed on last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}

    def is_too_soon(self, about: str, now: float) -> bool:
        with self._lock:
            self._last = {each: at for each, at in self._last.items() if now - at < _AGAIN_AFTER}
            if about in self._last:
                return True
            self._last[about] = now
            return False


_turns = _Turns()
