"""The rate limits of tenants, from the option `tenant_rate_limit`: a number, a mapping, or a user's function.

Invariant: each tenant has a rate or None, even if the user's function fails.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headway.declarations import check_above_zero, check_function, is_number, shown
from headway.errors import ConfigError
from headway.execution.failure_log import FailureLog

log = logging.getLogger(__name__)

TenantRates = float | Mapping[str, float | None] | Callable[[str], float | None]
"""A rate for each tenant, rates by name with `"*"` for all others, or a function from a tenant to its rate."""

_OTHERS = "*"
_ASK_EVERY = 60.0  # seconds; the rate that the function returns can change, for example with a customer's contract
_WITHOUT_ANSWER = 1.0  # per second; a tenant whose rate is unknown must neither flood a service nor stop


class AskedRates:
    """The rates that a user's function returns.

    The function is called before the engine receives a tenant's records. The engine reads the rates under its lock, and
    no user's function must be called there.
    """

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function
        self._known: dict[str, tuple[float | None, float]] = {}  # by tenant, with the time to ask again
        self._failures = FailureLog(log, logging.WARNING)

    def learn(self, tenants: Iterable[str]) -> None:
        """Call the function for tenants whose rate is unknown or a minute old. Call this without a lock."""
        now = time.monotonic()
        for tenant in set(tenants):
            if (known := self._known.get(tenant)) is None or now >= known[1]:
                self._known[tenant] = self._ask(tenant, known, now), now + _ASK_EVERY
        self._failures.log_totals(now)

    def of(self, tenant: str) -> float | None:
        """Return the rate of a tenant that `learn` was called with, or None if the tenant has no limit."""
        return self._known[tenant][0]

    def _ask(self, tenant: str, known: tuple[float | None, float] | None, now: float) -> float | None:
        try:
            rate = self._function(tenant)
            if rate is None:
                return None
            if not is_number(rate) or not 0 < rate < math.inf:
                raise ValueError(f"it returned {shown(rate)}, which must be above 0 and finite, or None")
            return float(rate)
        except KeyboardInterrupt:  # Ctrl-C
            raise
        except BaseException as error:
            kept = _WITHOUT_ANSWER if known is None else known[0]
            sentence = "The function tenant_rate_limit returned no rate for the tenant %r, which keeps the limit %s: %s"
            self._failures.log("tenant_rate_limit", now, error, sentence, tenant, kept)
            return kept

    def end(self) -> None:
        """Log the failures that were held back. Call it at the end of the run."""
        self._failures.end(time.monotonic())


def checked_tenant_rates(rates: Any) -> tuple[float | Callable[[str], float | None], AskedRates | None]:
    """Return the rates for the engine, and their `AskedRates` if they come from a user's function.

    Raises `ConfigError` if the rates are invalid.
    """
    if isinstance(rates, Mapping):
        by_name = _checked_mapping(rates)
        others = by_name.pop(_OTHERS, None)
        return lambda tenant: by_name.get(tenant, others), None
    if not is_number(rates) and callable(rates):
        check_function("tenant_rate_limit", rates, ("tenant",))
        asked = AskedRates(rates)
        return asked.of, asked
    if not is_number(rates):
        raise ConfigError(
            f"tenant_rate_limit is {shown(rates)}; it must be a number above 0, a mapping of tenants' names to such "
            "numbers, as {'big': 100, '*': 10}, or a function that returns the number for a tenant."
        )
    check_above_zero("tenant_rate_limit", rates)
    return rates, None


def _checked_mapping(rates: Mapping[Any, Any]) -> dict[str, float | None]:
    for tenant, rate in rates.items():
        if not isinstance(tenant, str):
            raise ConfigError(
                f"tenant_rate_limit has the tenant {shown(tenant)}; each must be the name of a tenant, '' for records "
                "without one, or '*' for all others."
            )
        if rate is not None:
            check_above_zero(f"tenant_rate_limit[{tenant!r}]", rate)
    return {str(tenant): None if rate is None else float(rate) for tenant, rate in rates.items()}
