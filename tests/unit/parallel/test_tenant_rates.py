"""Rates of tenants that a user's function returns: asked for once, again after a minute, and kept if it fails."""

import logging
import math
from dataclasses import dataclass
from typing import Any

import pytest

from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.parallel.tenant_rates import AskedRates, checked_tenant_rates
from headway.records.record_types import TopicPartition


def test_a_mapping_gives_each_tenant_its_rate_and_all_others_that_of_the_star() -> None:
    of, asked = checked_tenant_rates({"big": 100, "free": None, "*": 10})
    assert asked is None
    assert callable(of)
    assert [of(tenant) for tenant in ("big", "free", "other", "")] == [100, None, 10, 10]
    of, _ = checked_tenant_rates({"big": 100})
    assert callable(of)
    assert of("other") is None


def test_a_function_is_asked_once_a_minute_for_each_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [1000.0], []

    def rate(tenant: str) -> float:
        calls.append(tenant)
        return float(len(calls))

    monkeypatch.setattr("headway.parallel.tenant_rates.time.monotonic", lambda: now[0])
    asked = AskedRates(rate)
    asked.learn(["a", "a", "a"])
    now[0] += 59
    asked.learn(["a"])
    assert (calls, asked.of("a")) == (["a"], 1.0)
    now[0] += 1
    asked.learn(["a", "b"])
    assert sorted(calls) == ["a", "a", "b"]
    assert {asked.of("a"), asked.of("b")} == {2.0, 3.0}


@pytest.mark.parametrize("bad", [KeyError("a"), 0, -1.0, math.inf, math.nan, True, "10", [1]], ids=repr)
def test_a_tenant_whose_rate_cannot_be_found_out_keeps_the_one_it_had_or_starts_one_a_second(
    bad: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, answers = [1000.0], {"known": [50.0, bad], "unknown": [bad], "free": [None, bad]}

    def rate(tenant: str) -> Any:
        answer = answers[tenant].pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("headway.parallel.tenant_rates.time.monotonic", lambda: now[0])
    asked = AskedRates(rate)
    asked.learn(["known", "free"])
    now[0] += 60
    with caplog.at_level(logging.WARNING):
        asked.learn(answers)
        asked.end()
    assert [asked.of(tenant) for tenant in ("known", "unknown", "free")] == [50.0, 1.0, None]
    assert "returned no valid rate for the tenant" in caplog.text


@dataclass(eq=False)
class Record:
    """What the engine asks of a record."""

    offset: int
    raw_key: bytes | None = None


def test_a_rate_that_has_changed_holds_for_records_that_wait_already() -> None:
    rates: list[float | None] = [1.0]
    engine = Engine[Record](Ordering.UNORDERED, tenants={}, tenant_rate=lambda _: rates[0])
    partition = TopicPartition("orders", partition=0, level=0)
    engine.assign(partition, OffsetMap(0))

    def receive(first: int, count: int, now: float) -> None:
        records = [Record(offset) for offset in range(first, first + count)]
        engine.receive(partition, records, now, tenants=["a"] * count)

    def started(begin: float, end: float) -> int:
        ticks = range(round(begin * 100), round(end * 100) + 1)
        return sum(len(engine.take(1000, tick / 100)) for tick in ticks)

    receive(0, 300, 100.0)
    assert started(100.0, 101.5) == 2
    rates[0] = 100.0
    receive(300, 1, 101.5)
    assert started(101.51, 102.5) == pytest.approx(100, abs=6)
    rates[0] = None
    receive(301, 1, 102.5)
    assert started(102.51, 102.52) > 150
    assert engine.take(1, 102.6) == []
