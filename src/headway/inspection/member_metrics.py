"""Reads the `/metrics` of members, which have what Kafka does not: tenants, handler times and slots."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from headway.errors import ConfigError
from headway.inspection.snapshot import HandlerStatus, TenantStatus
from headway.metrics.table import (
    CIRCUIT_OPEN,
    HANDLER_DURATION,
    HANDLER_LANES,
    HANDLER_RUNNING,
    HANDLER_SLOTS,
    HANDLER_WAITING,
    LEVEL_BORROWED,
    LEVEL_LENT,
    LEVEL_QUEUE_TIME,
    LEVEL_SHARE,
    RULE_HELD,
    TENANT_TIME,
    TENANT_WAITING,
    Metric,
)
from headway.runtime.extras import how_to_install
from headway.runtime.lifecycle import Closable

_EVERY = 5.0  # seconds
_ANSWERED_WITHIN = 2.0
_MOST_BYTES = 8_000_000
_MOST_URLS = 200
_CLOSED_WITHIN = 3.0
_GAUGES = frozenset(
    metric.name
    for metric in (
        CIRCUIT_OPEN,
        HANDLER_LANES,
        HANDLER_RUNNING,
        HANDLER_SLOTS,
        HANDLER_WAITING,
        LEVEL_BORROWED,
        LEVEL_LENT,
        LEVEL_SHARE,
        RULE_HELD,
    )
)

_BUCKETS = frozenset(f"{metric.name}_bucket" for metric in (HANDLER_DURATION, LEVEL_QUEUE_TIME))

Buckets = Mapping[float, float]
"""For each upper bound of a histogram, the number of values up to this bound, as Prometheus has them."""

TenantKey = tuple[str, str]
"""A group and the name of a tenant."""


class HandlerTotals(NamedTuple):
    """The handlers of a group, over all members that were read: their total time and attempts, and their slots."""

    seconds: float = 0.0
    attempts: float = 0.0
    slots: float = 0.0


class MemberFigures(NamedTuple):
    """What the members report at one time. `tenants` has the handler time of each tenant.

    `gauges` has the values of the metrics in `_GAUGES`, one for each member, by name, by group, and by level, handler
    or rule.
    `histograms` has the histograms of all members together, by name, group and level. Those of a group's handlers are
    added up.
    """

    at: float
    tenants: Mapping[TenantKey, float]
    waiting: Mapping[TenantKey, int]
    handlers: Mapping[str, HandlerTotals]
    gauges: Mapping[tuple[str, str, str], Sequence[float]] = MappingProxyType({})
    histograms: Mapping[tuple[str, str, str], Buckets] = MappingProxyType({})

    @classmethod
    def of(cls, at: float, samples: Iterable[tuple[str, Mapping[str, str], float]]) -> "MemberFigures":
        """Add up the samples of all members. Each sample is a name, its labels, and a value."""
        tenants, waiting = defaultdict[TenantKey, float](float), defaultdict[TenantKey, int](int)
        handlers = defaultdict[str, HandlerTotals](HandlerTotals)
        gauges = defaultdict[tuple[str, str, str], list[float]](list)
        histograms = defaultdict[tuple[str, str, str], dict[float, float]](dict)
        for name, labels, value in samples:
            group, tenant = labels.get("group", ""), labels.get("tenant", "")
            totals = handlers[group]
            if name in _GAUGES:
                gauges[name, group, labels.get("level") or labels.get("handler") or labels.get("rule", "")].append(
                    value
                )
            if name in _BUCKETS and (bound := _bound(labels.get("le", ""))) is not None:
                buckets = histograms[name.removesuffix("_bucket"), group, labels.get("level", "")]
                buckets[bound] = buckets.get(bound, 0.0) + value
            elif name == TENANT_TIME.name:
                tenants[group, tenant] += value
            elif name == TENANT_WAITING.name:
                waiting[group, tenant] += round(value)
            elif name == f"{HANDLER_DURATION.name}_sum":
                handlers[group] = totals._replace(seconds=totals.seconds + value)
            elif name == f"{HANDLER_DURATION.name}_count":
                handlers[group] = totals._replace(attempts=totals.attempts + value)
            elif name == HANDLER_SLOTS.name:
                handlers[group] = totals._replace(slots=totals.slots + value)
        return cls(at, tenants, waiting, handlers, gauges, histograms)

    def total(self, metric: Metric, group: str, which: str) -> float | None:
        """Return the sum of a metric over all members, or None if no member reports it."""
        values = self.gauges.get((metric.name, group, which))
        return None if values is None else sum(values)

    def share(self, group: str, level: str) -> float | None:
        """Return the share of a level, on average over the members, or None if no member reports it."""
        values = self.gauges.get((LEVEL_SHARE.name, group, level))
        return None if values is None else sum(values) / len(values)


def _bound(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def quantile(
    before: MemberFigures | None, now: MemberFigures, metric: Metric, group: str, level: str, fraction: float = 0.95
) -> float | None:
    """Return the value below which a fraction of a histogram's latest values are, about as exact as its bounds.

    The latest values are those since the figures `before`, if there were any. None if there are none.
    """
    name = metric.name, group, level
    buckets = now.histograms.get(name, {})
    earlier = before.histograms.get(name, {}) if before else {}
    latest = {bound: count - earlier.get(bound, 0.0) for bound, count in buckets.items()}
    if any(count < 0 for count in latest.values()):
        latest = dict(buckets)  # a member has restarted, and counts from 0 again
    wanted = fraction * max(latest.values(), default=0.0)
    if not wanted > 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in sorted(latest.items()):
        if count >= wanted:
            return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


def tenants_of(before: MemberFigures | None, now: MemberFigures) -> list[TenantStatus]:
    """Return the tenants, those that use the most first."""
    found = []
    for (group, tenant), seconds in now.tenants.items():
        used = None
        if before is not None and now.at > before.at:
            # A member that has restarted counts from 0 again.
            used = max(0.0, seconds - before.tenants.get((group, tenant), 0.0)) / (now.at - before.at)
        found.append(TenantStatus(group, tenant, seconds, now.waiting.get((group, tenant)), used))
    return sorted(found, key=lambda each: (-(each.handler_seconds_per_second or 0.0), -each.handler_seconds))


def handlers_of(now: MemberFigures) -> list[HandlerStatus]:
    """Return the handlers, by group and name."""
    names = sorted({(group, which) for name, group, which in now.gauges if name == HANDLER_SLOTS.name})

    def total(metric: Metric, group: str, handler: str) -> int:
        return round(now.total(metric, group, handler) or 0)

    return [
        HandlerStatus(
            group,
            handler,
            running=total(HANDLER_RUNNING, group, handler),
            slots=total(HANDLER_SLOTS, group, handler),
            waiting=total(HANDLER_WAITING, group, handler),
            lanes=total(HANDLER_LANES, group, handler),
            is_circuit_open=total(CIRCUIT_OPEN, group, handler) > 0,
        )
        for group, handler in names
    ]


def seconds_per_record(before: MemberFigures | None, now: MemberFigures, group: str) -> float | None:
    """Return how long one record keeps all slots of a group busy: the mean handler time divided by the slots.

    The mean is that of the attempts since the figures `before`, if there were any. None if the group is not measured.
    """
    totals, earlier = now.handlers.get(group), before.handlers.get(group) if before else None
    if totals is None or totals.slots <= 0 or totals.attempts <= 0:
        return None
    seconds, attempts = totals.seconds, totals.attempts
    if earlier is not None and attempts > earlier.attempts and seconds >= earlier.seconds:
        seconds, attempts = seconds - earlier.seconds, attempts - earlier.attempts
    return seconds / attempts / totals.slots


class MemberMetrics(Closable):
    """Reads the members' metrics every five seconds, in a thread of its own, because members can be slow to answer.

    Args:
        urls: The addresses of the members' metrics, such as `http://10.0.0.7:8080/metrics`.

    Raises:
        ConfigError: An address is not valid, or the package that parses metrics is not installed.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        for url in urls:
            _check(url)
        if len(urls) > _MOST_URLS:
            raise ConfigError(f"{len(urls)} addresses of metrics were given; at most {_MOST_URLS} are read.")
        self._parse = _parser()
        self._urls = urls
        self.before: MemberFigures | None = None
        self.latest: MemberFigures | None = None
        self.failures: Sequence[str] = ()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headway-member-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        self._thread.join(_CLOSED_WITHIN)

    def _run(self) -> None:
        while not self._closing.is_set():
            began, failures = time.monotonic(), list[str]()
            samples = [sample for url in self._urls for sample in self._read(url, failures)]
            self.before, self.latest = self.latest, MemberFigures.of(time.time(), samples)
            self.failures = failures
            self._closing.wait(max(0.0, _EVERY - (time.monotonic() - began)))

    def _read(self, url: str, failures: list[str]) -> list[tuple[str, Mapping[str, str], float]]:
        if self._closing.is_set():
            return []
        try:
            with urlopen(Request(url), timeout=_ANSWERED_WITHIN) as answer:  # noqa: S310 - the scheme was checked
                text = answer.read(_MOST_BYTES).decode(errors="replace")
            return [(each.name, each.labels, each.value) for family in self._parse(text) for each in family.samples]
        except (OSError, URLError, ValueError) as error:
            failures.append(f"The metrics at {_shown(url)} cannot be read: {error}.")
            return []


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{_shown(url)} is not the address of metrics; give one such as http://10.0.0.7:8080/metrics."
        )


def _shown(url: str) -> str:
    """Return an address without the user's name and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _parser() -> Callable[[str], Iterable[Any]]:
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - needs an extra
    except ImportError:
        how = how_to_install("prometheus")
        raise ConfigError(f"Reading metrics needs prometheus_client. Install it: {how}.") from None
    return text_string_to_metric_families
