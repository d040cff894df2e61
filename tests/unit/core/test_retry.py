"""Decisions about failed records: pure, whatever the user's function does."""

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.retry import Again, GiveUp, Retries, Verdict, exponential_backoff, fixed_backoff
from headway.errors import FatalError, RetriableError


def decide(retries: Retries, attempt: int = 1, error: BaseException | None = None) -> Verdict:
    return retries.decide("record", attempt, error or OSError(), now=100.0, random_number=0.0)


def test_by_default_a_record_is_tried_for_ever_with_growing_delays() -> None:
    assert [decide(Retries(), attempt) for attempt in (1, 2, 10**6)] == [Again(101.0), Again(102.0), Again(160.0)]


def test_a_fatal_error_is_not_retried() -> None:
    assert decide(Retries(), error=FatalError()) == GiveUp("FatalError is not retried")
    assert decide(Retries(fatal=(ValueError,)), error=UnicodeError()) == GiveUp("UnicodeError is not retried")


def test_a_retriable_error_is_retried_though_it_is_also_one_of_the_fatal_ones() -> None:
    class BusyError(RetriableError, ValueError):
        pass

    assert decide(Retries(fixed_backoff(1), fatal=(ValueError,)), error=BusyError()) == Again(101.0)


def test_an_exception_has_the_backoff_of_its_class_or_of_its_nearest_base() -> None:
    retries = Retries(
        fixed_backoff(1), by_exception={OSError: fixed_backoff(2), ConnectionError: exponential_backoff(7, jitter=0)}
    )
    errors = ConnectionResetError(), TimeoutError(), ValueError()
    assert [decide(retries, error=each) for each in errors] == [Again(107.0), Again(102.0), Again(101.0)]
    assert decide(retries, 2, ConnectionResetError()) == Again(114.0)


def test_an_exception_whose_class_cannot_be_looked_up_has_the_default_backoff() -> None:
    class Unhashable(type):
        __hash__ = None  # type: ignore[assignment]

    class OddError(OSError, metaclass=Unhashable):
        pass

    verdict = decide(Retries(fixed_backoff(7), by_exception={OSError: fixed_backoff(2)}), error=OddError())
    assert isinstance(verdict, Again)
    assert verdict.at == 101.0


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

    verdict = decide(Retries(fixed_backoff(2), delay=delay))
    assert isinstance(verdict, Again)
    assert verdict.at == 102.0
    assert isinstance(verdict.delay_error, Exception)


def test_a_negative_delay_is_none() -> None:
    assert decide(Retries(delay=lambda record, attempt, error: -5)) == Again(100.0)


@given(st.floats(0.001, 100), st.floats(1, 10), st.floats(0, 1), st.integers(1, 10**9), st.floats(0, 1))
def test_an_exponential_delay_is_within_its_bounds(
    first: float, factor: float, jitter: float, attempt: int, chance: float
) -> None:
    delay = exponential_backoff(first, factor, 60.0, jitter)(attempt, chance)
    assert 0 <= delay <= 60
    assert delay >= min(60, first) * (1 - jitter) * 0.999


@given(
    st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.none(),
    st.none() | st.floats(allow_nan=True) | st.text(),
    st.floats(0, 100),
    st.integers(1, 1000),
)
def test_a_delay_is_never_less_than_the_error_asks_for_up_to_a_day(
    asked: float | None, given_by_function: Any, backoff: float, attempt: int
) -> None:
    delay = None if given_by_function is None else lambda record, attempt, error: given_by_function
    plain = Retries(fixed_backoff(backoff), delay=delay)
    without, with_wait = (
        plain.decide("record", attempt, error, now=0.0, random_number=0.0)
        for error in (RetriableError(), RetriableError("busy", retry_after=asked))
    )
    assert isinstance(without, Again)
    assert isinstance(with_wait, Again)
    least = 0.0 if asked is None or math.isnan(asked) or asked < 0 else min(asked, 86_400)
    assert with_wait.at == max(without.at, least)
    assert type(with_wait.delay_error) is type(without.delay_error)


def test_what_asks_for_a_wait_that_is_no_number_is_tried_again_all_the_same() -> None:
    error = RetriableError(retry_after="soon")  # type: ignore[arg-type]
    assert decide(Retries(fixed_backoff(2)), error=error) == Again(102.0)


def test_an_error_that_asks_for_a_wait_still_ends_after_max_attempts() -> None:
    busy = RetriableError("busy", retry_after=5)
    assert decide(Retries(max_attempts=3), 2, busy) == Again(105.0)
    assert decide(Retries(max_attempts=3), 3, busy) == GiveUp("attempt 3 of 3 failed", tried_out=True)


def test_attempts_that_tried_nothing_do_not_count_whatever_the_others_end_with() -> None:
    retries = Retries(exponential_backoff(jitter=0), max_attempts=2)

    def decided(attempt: int, error: BaseException, untried: int) -> Verdict:
        return retries.decide("record", attempt, error, 100.0, 0.0, untried)

    held_back = RetriableError(untried=True)
    assert decided(7, held_back, 6) == Again(101.0, untried=True)
    for error in (OSError(), RetriableError()):
        assert decided(8, error, 7) == Again(101.0)
        assert decided(9, held_back, 7) == Again(101.0, untried=True)
        assert decided(10, error, 8) == GiveUp("attempt 2 of 2 failed", tried_out=True)


def test_a_subclass_need_not_know_of_the_wait() -> None:
    class BusyError(RetriableError):
        def __init__(self, host: str) -> None:
            Exception.__init__(self, host)

    assert decide(Retries(fixed_backoff(2)), error=BusyError("a")) == Again(102.0)


def test_the_wait_survives_a_copy_through_pickle() -> None:
    copy = pickle.loads(pickle.dumps(RetriableError("busy", retry_after=3, untried=True)))  # noqa: S301 - our own bytes
    assert (copy.args, copy.retry_after, copy.untried) == (("busy",), 3, True)
