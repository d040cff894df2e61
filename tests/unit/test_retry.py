"""Decisions about failed records: pure, whatever the user's function does."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.retry import Again, DeadLetter, FatalError, RetriableError, Retries, exponential, fixed


def decide(retries: Retries, attempt: int = 1, error: BaseException | None = None) -> Again | DeadLetter:
    return retries.decide("record", attempt, error or OSError(), now=100.0, chance=0.0)


def test_by_default_a_record_is_tried_for_ever_with_growing_delays() -> None:
    assert [decide(Retries(), attempt) for attempt in (1, 2, 10**6)] == [Again(101.0), Again(102.0), Again(160.0)]


def test_a_fatal_error_is_not_retried() -> None:
    assert decide(Retries(), error=FatalError()) == DeadLetter("FatalError is not retried")
    assert decide(Retries(fatal=(ValueError,)), error=UnicodeError()) == DeadLetter("UnicodeError is not retried")


def test_a_retriable_error_is_retried_though_it_is_also_one_of_the_fatal_ones() -> None:
    class BusyError(RetriableError, ValueError):
        pass

    assert decide(Retries(fixed(1), fatal=(ValueError,)), error=BusyError()) == Again(101.0)


def test_the_delay_can_be_a_function_of_record_attempt_and_error() -> None:
    seen: list[tuple[Any, ...]] = []

    def delay(*arguments: Any) -> float:
        seen.append(arguments)
        return 7

    error = OSError()
    assert decide(Retries(delay=delay), 3, error) == Again(107.0)
    assert seen == [("record", 3, error)]


@pytest.mark.parametrize("given", [math.nan, math.inf, "soon", None, ZeroDivisionError()])
def test_a_failing_delay_function_does_not_stick_the_record(given: Any) -> None:
    def delay(record: object, attempt: int, error: BaseException) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    verdict = decide(Retries(fixed(2), delay=delay))
    assert isinstance(verdict, Again)
    assert verdict.at == 102.0
    assert isinstance(verdict.delay_error, Exception)


def test_a_negative_delay_is_none() -> None:
    assert decide(Retries(delay=lambda record, attempt, error: -5)) == Again(100.0)


@given(st.floats(0.001, 100), st.floats(1, 10), st.floats(0, 1), st.integers(1, 10**9), st.floats(0, 1))
def test_an_exponential_delay_is_within_its_bounds(
    first: float, factor: float, jitter: float, attempt: int, chance: float
) -> None:
    delay = exponential(first, factor, 60.0, jitter)(attempt, chance)
    assert 0 <= delay <= 60
    assert delay >= min(60, first) * (1 - jitter) * 0.999
