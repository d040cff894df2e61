"""Finds the tenant of each record, according to the option `tenant`.

Invariant: each record has a tenant, even if the user's function raises an error.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from headway.declarations import check_above_zero, check_function, shown
from headway.errors import ConfigError
from headway.execution.failure_log import FailureLog
from headway.parallel.tenant_rates import AskedRates, checked_tenant_rates
from headway.records.record_types import ConsumerRecord

log = logging.getLogger(__name__)

Tenant = str | Callable[[ConsumerRecord], str | None]
"""`"header:NAME"`, `"key"`, `"key:SEPARATOR"`, or a function of the record."""

NO_TENANT = ""
UNKNOWN_TENANT = "(unknown)"

_HEADER, _KEY = "header:", "key:"
_KINDS = (
    "it must be 'header:NAME' for a header, 'key' for the whole key, 'key:SEPARATOR' for the part of the key before "
    "the separator, as in 'key:/', or a function of the record."
)


class Tenancy:
    """Finds the tenant of each record, and provides the weights and rate limits of tenants.

    If the user has passed a function for the rates, it is called when a tenant's first record arrives, and then once a
    minute. Errors of the user's functions are logged. Raises `ConfigError` if the declaration is invalid.
    """

    def __init__(self, tenant: Any, weights: Any = None, rates: Any = None) -> None:
        self._name_of = _naming(tenant)
        self.weights = _checked_weights(weights)
        self.rates: float | Callable[[str], float | None] | None = None
        self._asked_rates: AskedRates | None = None
        if rates is not None:
            self.rates, self._asked_rates = checked_tenant_rates(rates)
        self._failures = FailureLog(log, logging.WARNING)

    def of(self, records: Sequence[ConsumerRecord]) -> list[str]:
        """Return the tenant of each record. The caller must hold no lock, because this calls the user's function."""
        names = [self._of(record) for record in records]
        if self._asked_rates:
            self._asked_rates.learn(names)
        self._failures.log_totals(time.monotonic())
        return names

    def _of(self, record: ConsumerRecord) -> str:
        try:
            name = self._name_of(record)
            if name is None:
                return NO_TENANT
            if issubclass(type(name), str):
                # Converted to a plain `str`, because methods of a subclass could run the user's code.
                return str.__getitem__(name, slice(None))
            raise TypeError(f"The function returned {shown(name)}, which is neither a str nor None.")
        except KeyboardInterrupt:  # Ctrl-C must end the run, so it does not count as an error of the user's function
            raise
        except BaseException as error:
            sentence = "The tenant of %r could not be found, so the record counts for the tenant %r: %s"
            self._failures.log(record.topic, time.monotonic(), error, sentence, record, UNKNOWN_TENANT)
            return UNKNOWN_TENANT

    def end(self) -> None:
        """Log how many failures are held back. Must be called at the end of the run."""
        self._failures.end(time.monotonic())
        if self._asked_rates:
            self._asked_rates.end()


def _naming(tenant: Any) -> Callable[[ConsumerRecord], Any]:
    if callable(tenant):
        check_function("tenant", tenant, ("record",))
        return tenant  # type: ignore[no-any-return]
    if not isinstance(tenant, str):
        raise ConfigError(f"tenant is {shown(tenant)}; {_KINDS}")
    if tenant == "key":
        return lambda record: _text(record.raw_key)
    if name := tenant.removeprefix(_HEADER) if tenant.startswith(_HEADER) else "":
        return lambda record: _text(next((value for header, value in record.headers if header == name), None))
    if separator := tenant.removeprefix(_KEY).encode() if tenant.startswith(_KEY) else b"":
        return lambda record: _text((record.raw_key or b"").partition(separator)[0])
    raise ConfigError(f"tenant is {shown(tenant)}; {_KINDS}")


def _text(name: str | bytes | None) -> str:
    if not name:
        return NO_TENANT
    return name if isinstance(name, str) else name.decode(errors="backslashreplace")


def _checked_weights(weights: Any) -> Mapping[str, float]:
    if weights is None:
        return {}
    if not isinstance(weights, Mapping) or not all(isinstance(name, str) for name in weights):
        raise ConfigError(
            f"tenant_weights is {shown(weights)}; it must be a mapping from the names of tenants to weights, as in "
            "{'big': 2.0}."
        )
    for name, weight in weights.items():
        check_above_zero(f"tenant_weights[{name!r}]", weight)
    return MappingProxyType({str(name): float(weight) for name, weight in weights.items()})
