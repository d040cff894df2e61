"""What librdkafka's clients log, on its way to `logging`: never raw to stderr."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

log = logging.getLogger("headway.librdkafka")

# librdkafka's levels 0 to 7 as the binding translates them.
_PYTHON_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
_DEFAULT_LEVEL = 6
_LEVEL_OF_LOST_REQUESTS = 5
_LOST_HEARTBEAT = "Timed out ConsumerGroupHeartbeatRequest"


class Logger(Protocol):
    """The part of `logging.Logger` that the binding calls."""

    def log(self, level: int, message: str, /, *args: Any) -> Any: ...


class ClientLog:
    """A logger for one client, which passes on what the setting `log_level` asks for.

    `on_lost_heartbeat` is called when librdkafka gave up waiting for the answer to a heartbeat (KIP-848), which it
    only logs. The settings `logger` and `log_level` of the client come from `settings`.
    """

    def __init__(self, config: Mapping[str, Any], on_lost_heartbeat: Callable[[], None]) -> None:
        level = int(config.get("log_level", _DEFAULT_LEVEL))
        self._least = _PYTHON_LEVELS[min(max(level, 0), len(_PYTHON_LEVELS) - 1)]
        self._logger: Logger = config.get("logger") or log
        self._on_lost_heartbeat = on_lost_heartbeat
        self.settings: Mapping[str, Any] = {"logger": self, "log_level": max(level, _LEVEL_OF_LOST_REQUESTS)}

    def log(self, level: int, message: str, *args: Any) -> None:
        """Take a line; raises nothing, as the binding would drop the records that it is fetching."""
        try:
            if args and _LOST_HEARTBEAT in str(args[-1]):
                self._on_lost_heartbeat()
            if level >= self._least:
                self._logger.log(level, message, *args)
        except Exception:
            log.exception("A line of librdkafka's log could not be passed on.")
