"""The log of a circuit breaker: it opens with a warning, and tells when it is closed again."""

import logging
import threading
from collections.abc import Sequence

from headway.core.engine.circuit import Circuit
from headway.core.retry import Verdict, failure_behind
from headway.core.user_errors import description_of
from headway.execution.jobs import RecordWork

log = logging.getLogger(__name__)


class CircuitLog:
    """The log of one circuit, told once of each change; to be used from any thread, without the dispatch's lock."""

    def __init__(self) -> None:
        self._is_open = False
        self._lock = threading.Lock()

    def tell(self, circuit: Circuit | None, failures: Sequence[tuple[RecordWork, BaseException, Verdict]]) -> None:
        """Tell the log if the circuit has opened or closed since the last call; the failures are the latest."""
        if circuit is None or circuit.is_open == self._is_open:
            return
        if circuit.is_open and not failures:
            return  # whoever reports the failure that opened it tells of it, with the error
        with self._lock:
            is_news = circuit.is_open != self._is_open
            self._is_open = is_open = circuit.is_open
        if is_news and is_open:
            failed, keys = circuit.opened_with
            last = f" The last: {description_of(failure_behind(failures[-1][1]))}" if failures else ""
            log.warning(
                "The circuit breaker is open, as %d of %d keys failed: one attempt at a time is made until some "
                "succeed again, and those that fail do not count.%s",
                *(failed, keys, last),
            )
        elif is_news:
            log.warning("The circuit breaker is closed: attempts succeed again, and all slots are used.")
