"""The rates of tenants and keys, which hold works back in the engine: they change for how long a thread may wait."""

from headway.core.engine.rate_limits import RateLimits
from headway.execution.gate import Gate
from headway.records.record_types import ConsumerRecord


class NamedRates(Gate):
    """The gate of an engine's `limits`: the engine holds works back, and this wakes the thread that waits for them."""

    def __init__(self, limits: RateLimits[ConsumerRecord]) -> None:
        self._limits = limits

    def changes_wait(self, now: float) -> bool:
        """Return whether a permit will come at a time that nobody waits for yet."""
        return self._limits.is_news(now)
