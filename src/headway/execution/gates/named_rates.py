"""The rate limits of tenants and keys, as a gate of the dispatch."""

from headway.core.engine.rate_limits import RateLimits
from headway.execution.gate import Gate
from headway.records.record_types import ConsumerRecord


class NamedRates(Gate):
    """Wakes the control thread when a permit of the engine's rate limits becomes due; the engine does the rest."""

    def __init__(self, limits: RateLimits[ConsumerRecord]) -> None:
        self._limits = limits

    def changes_wait(self, now: float) -> bool:
        """Return whether a permit becomes due before the control thread would wake by itself."""
        return self._limits.comes_earlier(now)
