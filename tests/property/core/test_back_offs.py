"""Back-offs: whatever they are made with, their delays are finite, bounded, and grow as they say."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.retry import Again, Retries, exponential_backoff, fixed_backoff
from headway.errors import ConfigError

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.booleans() | st.none() | st.text()
attempts = st.integers(1, 10**6)
chances = st.floats(0, 1)


@given(st.tuples(numbers, numbers, numbers, numbers), attempts, chances)
def test_an_exponential_back_off_is_refused_or_keeps_between_its_bounds(
    arguments: Any, attempt: int, chance: float
) -> None:
    try:
        backoff = exponential_backoff(*arguments)
    except ConfigError:
        return
    first, _, longest, jitter = arguments
    delay = backoff(attempt, chance)
    assert 0 <= delay <= longest
    assert math.isfinite(delay)
    assert delay >= min(first, longest) * (1 - jitter) * (1 - 1e-9)
    assert backoff(attempt + 1, 0.0) >= backoff(attempt, 0.0) >= delay
    Retries(backoff)  # it is not refused as one


@given(numbers, attempts, chances)
def test_a_fixed_back_off_is_refused_or_the_same_each_time(seconds: Any, attempt: int, chance: float) -> None:
    try:
        backoff = fixed_backoff(seconds)
    except ConfigError:
        return
    assert backoff(attempt, chance) == seconds >= 0
    Retries(backoff)


class BusyError(TimeoutError): ...


KINDS: list[type[BaseException]] = [OSError, TimeoutError, BusyError, ValueError, KeyError, Exception, BaseException]


@given(st.lists(st.sampled_from(KINDS), unique=True), st.sampled_from(KINDS), attempts)
def test_of_back_offs_by_exception_that_of_the_nearest_class_decides(
    kinds: list[type[BaseException]], raised: type[BaseException], attempt: int
) -> None:
    backoffs = {kind: fixed_backoff(at) for at, kind in enumerate(kinds)}
    retries = Retries(fixed_backoff(100), by_exception=backoffs)
    caught = [kind for kind in kinds if issubclass(raised, kind)]
    nearest = next((kind for kind in caught if all(issubclass(kind, other) for other in caught)), None)
    expected = kinds.index(nearest) if nearest else 100
    assert retries.decide("record", attempt, raised(), now=1000.0, random_number=0.5) == Again(1000.0 + expected)


@pytest.mark.parametrize("backoff", [fixed_backoff(5), exponential_backoff()])
def test_a_back_off_is_kept_as_it_was_declared(backoff: Any) -> None:
    assert Retries(backoff).backoff is backoff
