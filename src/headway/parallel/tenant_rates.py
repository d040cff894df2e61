"""Finds the rate limit of each tenant, according to the option `tenant_rate_limit`.

Invariant: each tenant has a rate or no limit, even if the user's function raises an error.
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
"""A rate that applies to each tenant, a mapping from tenants to rates with `"*"` for all others, or a function."""

_OTHERS = "*"
# How often the function is called for a tenant, in seconds. It is called repeatedly because a tenant's rate can change.
_ASK_EVERY = 60.0
# The rate of a tenant if the function has not returned a valid one, in records per second. Such a tenant must neither
# flood a service nor come to a stop.
_WITHOUT_ANSWER = 1.0


class AskedRates:
    """Caches the rates that the user's function returns.

    The function is called before the engine receives a tenant's records. It must not be called at the time when the
    engine needs a rate, because the lock is then held.
    """

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function
        # The rate of each tenant, and the time after which the function must be called again.
        self._known: dict[str, tuple[float | None, float]] = {}
        self._failures = FailureLog(log, logging.WARNING)

    def learn(self, tenants: Iterable[str]) -> None:
        """Call the function for each tenant whose rate is unknown or a minute old.

        The caller must not hold any lock.
        """
        now = time.monotonic()
        for tenant in set(tenants):
            if (known := self._known.get(tenant)) is None or now >= known[1]:
                self._known[tenant] = self._ask(tenant, known, now), now + _ASK_EVERY
        self._failures.log_totals(now)

    def of(self, tenant: str) -> float | None:
        """Return the rate of a tenant, or None if the tenant has no limit.

        `learn` must have been called for the tenant.
        """
        return self._known[tenant][0]

    def _ask(self, tenant: str, known: tuple[float | None, float] | None, now: float) -> float | None:
        try:
            rate = self._function(tenant)
            if rate is None:
                return None
            if not is_number(rate) or not 0 < rate < math.inf:
                raise ValueError(f"The function returned {shown(rate)}; it must return a number above 0, or None.")
            return float(rate)
        except KeyboardInterrupt:  # Ctrl-C ends the run, so it does not count as an error of the user's function
            raise
        except BaseException as error:
            kept = _WITHOUT_ANSWER if known is None else known[0]
            sentence = "tenant_rate_limit returned no valid rate for the tenant %r, whose limit stays at %s: %s"
            self._failures.log("tenant_rate_limit", now, error, sentence, tenant, kept)
            return kept

    def end(self) -> None:
        """Log how many failures are held back. Must be called at the end of the run."""
        self._failures.end(time.monotonic())


def checked_tenant_rates(rates: Any) -> tuple[float | Callable[[str], float | None], AskedRates | None]:
    """Convert the option to the rates for the engine. If the option is a function, also return its `AskedRates`.

    Raises `ConfigError` if the option is invalid.
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
            f"tenant_rate_limit is {shown(rates)}; it must be a number above 0, a mapping from the names of tenants to "
            "such numbers, as in {'big': 100, '*': 10}, or a function that returns the number for a tenant."
        )
    check_above_zero("tenant_rate_limit", rates)
    return rates, None


def _checked_mapping(rates: Mapping[Any, Any]) -> dict[str, float | None]:
    for tenant, rate in rates.items():
        if not isinstance(tenant, str):
            raise ConfigError(
                f"tenant_rate_limit has the key {shown(tenant)}; each key must be the name of a tenant, '' for records "
                "without a tenant, or '*' for all other tenants."
            )
        if rate is not None:
            check_above_zero(f"tenant_rate_limit[{tenant!r}]", rate)
    return {str(tenant): None if rate is None else float(rate) for tenant, rate in rates.items()}
