"""The gate for the rate limits of tenants and keys."""

from headway.core.engine.rate_limits import RateLimits
from headway.execution.gate import Gate
from headway.records.record_types import ConsumerRecord


class NamedRates(Gate):
    """Wakes the control thread when a rate limit of a tenant or key lets a record start.

    The engine enforces these limits.
    """

    def __init__(self, limits: RateLimits[ConsumerRecord]) -> None:
        self._limits = limits

    def changes_wait(self, now: float) -> bool:
        """Return whether a rate limit will let a record start before the control thread would wake anyway."""
        return self._limits.comes_earlier(now)
