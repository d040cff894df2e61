"""Looks after the records that have failed for good and are held in their place (`Retries(then="hold")`).

They are released when the circuit breaker closes again, or by a rule (`execution/gates/rules_gate.py`). If they leave
no space for other records, the oldest of them become dead letters.
"""

import logging
from collections.abc import Mapping
from typing import Any

from headway.core.engine.kept_records import Fullness, KeptRecords
from headway.execution.dispatch import Dispatch
from headway.execution.gate import Gate
from headway.execution.gates.circuit_gate import CircuitGate

log = logging.getLogger(__name__)

_LOOK_EVERY = 2.0  # the time between two looks at how full partitions are, in seconds


class HeldFailures(Gate):
    """Releases held records when the circuit closes, and makes the oldest of a full partition dead letters.

    Args:
        dispatch: The dispatch.
        circuit: The circuit breaker of the handler, if there is one.
    """

    def __init__(self, dispatch: Dispatch, circuit: CircuitGate | None) -> None:
        self._dispatch = dispatch
        self._circuit = circuit
        self._closings = 0
        self._records = KeptRecords(dispatch.engine)
        self._look_at = 0.0

    def look(self, now: float) -> None:
        """Release records if the circuit has closed, and look how full the partitions are. Never waits."""
        if self._circuit and self._circuit.closings != self._closings:
            self._closings = self._circuit.closings
            self._release(self._circuit, now)
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            with self._dispatch.lock:
                found = list(self._records.relieve(now))
            for each in found:
                _log(each)

    def close(self) -> None:
        """Do nothing, because there are no requests to abandon."""

    def metrics(self) -> Mapping[str, Any]:
        """Return the metric `held_failures`, the number of held records."""
        return {"held_failures": len(self._dispatch.engine.kept())}

    def _release(self, circuit: CircuitGate, now: float) -> None:
        engine = self._dispatch.engine
        with self._dispatch.lock:
            released = engine.release_kept(filter(circuit.has_opened_it, engine.kept()), now)
        if released:
            log.info("The circuit breaker is closed again, so %d records that had failed are tried again.", released)


def _log(found: Fullness) -> None:
    partition, kept, fullness, given_up = found
    if given_up:
        log.warning(
            "%r cannot receive more records, because %d held records have filled its offset map or its memory. The "
            "oldest %d of them become dead letters.",
            *(partition, kept, given_up),
        )
    else:
        log.warning(
            "The offset map of %r is %.0f %% full, and %d records are held there that have failed. When it is full, "
            "the oldest of them become dead letters. `headway rules release` lets them start again.",
            *(partition, 100 * fullness, kept),
        )
