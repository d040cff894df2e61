"""The circuit breaker beside a model that keeps every attempt, in random sequences of reports."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.engine.circuit import Circuit, CircuitBreaker
from headway.errors import ConfigError

KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["good", "bad", "neither"]), KEYS),
        st.tuples(st.just("wait"), st.floats(0, 40)),
    ),
    max_size=150,
)
BOUNDS = st.builds(
    CircuitBreaker,
    failing=st.floats(0.1, 1),
    least=st.integers(2, 6),
    window=st.floats(1, 60),
    longest=st.floats(1, 60),
)


class Model:
    """All attempts since the circuit was last closed, and when the next probe may start."""

    def __init__(self, bounds: CircuitBreaker) -> None:
        self.bounds = bounds
        self.is_open = False
        self.attempts: list[tuple[str, bool, float]] = []
        self.wait, self.good, self.probe_at = 1.0, 0, 0.0

    def report(self, what: str, key: str, now: float) -> None:
        if self.is_open:
            self._probed(what, now)
        elif what != "neither":
            self.attempts.append((key, what == "bad", now))
            last = {each: (bad, at) for each, bad, at in self.attempts}
            tried = [bad for bad, at in last.values() if at >= now - self.bounds.window]
            if what == "bad" and sum(tried) >= self.bounds.least and sum(tried) >= self.bounds.failing * len(tried):
                self.is_open, self.wait, self.good, self.probe_at = True, 1.0, 0, now + 1.0

    def _probed(self, what: str, now: float) -> None:
        if what == "good":
            self.good, self.wait, self.probe_at = self.good + 1, 1.0, now
            if self.good == 3:
                self.is_open, self.attempts = False, []
            return
        if what == "bad":
            self.good, self.wait = 0, min(self.bounds.longest, 2 * self.wait)
        self.probe_at = now + self.wait


@given(BOUNDS, STEPS)
@example(CircuitBreaker(least=2), [("bad", "a"), ("bad", "b"), ("wait", 1.0), *[("good", "a")] * 3, ("bad", "a")])
def test_it_opens_and_closes_as_the_model_that_remembers_everything(
    bounds: CircuitBreaker, steps: list[tuple[str, Any]]
) -> None:
    circuit, model, now = Circuit(bounds), Model(bounds), 100.0
    for what, about in steps:
        if what == "wait":
            now += about
            continue
        assert circuit.allows(now) == (not model.is_open or now >= model.probe_at)
        if not circuit.allows(now):
            now = circuit.next_probe() or now
        attempt, was_open = object(), circuit.is_open
        circuit.started([attempt])
        assert circuit.allows(now) is not was_open
        if what == "good":
            circuit.succeeded(about, attempt, now)
        elif what == "bad":
            model.report(what, about, now)
            assert circuit.failed(about, attempt, now) == model.is_open
        closed = circuit.ended(attempt, now)
        if what != "bad":
            model.report(what, about, now)
        assert circuit.is_open is model.is_open
        assert closed == (was_open and not model.is_open)


@given(STEPS, BOUNDS)
def test_one_key_alone_never_opens_it(steps: list[tuple[str, Any]], bounds: CircuitBreaker) -> None:
    circuit, now = Circuit(bounds), 100.0
    for what, about in steps:
        if what == "wait":
            now += about
        elif what == "bad" or about == "a":
            assert not circuit.failed("a", object(), now)
        else:
            circuit.succeeded(about, object(), now)
    assert not circuit.is_open


@given(st.lists(st.sampled_from(["good", "bad"]), min_size=1, max_size=5), st.permutations(range(5)))
def test_a_batch_is_one_probe_and_those_that_began_before_are_none(results: list[str], order: list[int]) -> None:
    circuit = Circuit(CircuitBreaker(least=2))
    before = [object() for _ in range(3)]
    circuit.failed("a", before[0], 100.0)
    assert circuit.failed("b", before[1], 100.0)
    assert circuit.failed("c", before[2], 100.0)
    circuit.succeeded("c", before[2], 100.0)
    assert not any(circuit.ended(each, 100.0) for each in before)
    batch = [object() for _ in results]
    circuit.started(batch)
    assert circuit.next_probe() is None
    places = [place for place in order if place < len(batch)]
    for place in places:
        (circuit.failed if results[place] == "bad" else circuit.succeeded)("a", batch[place], 101.0)
        circuit.ended(batch[place], 101.0)
        assert (circuit.next_probe() is None) == (place != places[-1])
    assert circuit.next_probe() == (103.0 if "bad" in results else 101.0)
    assert circuit.is_open


def test_it_remembers_a_bounded_number_of_keys() -> None:
    circuit = Circuit(CircuitBreaker(failing=1.0, least=10_000, window=1e9))
    circuit.failed(-1, None, 0.0)
    for key in range(20_000):
        circuit.succeeded(key, None, 0.0)
    assert not any(circuit.failed(key, None, 1.0) for key in range(9_999))
    assert circuit.failed(9_999, None, 1.0)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"failing": 0}, "failing is 0"),
        ({"failing": True}, "failing is True"),
        ({"failing": float("nan")}, "failing is nan"),
        ({"least": 1}, "least is 1"),
        ({"least": 10_001}, "at most 10,000"),
        ({"window": 0}, "window is 0"),
        ({"longest": 0.5}, "longest is 0.5"),
    ],
)
def test_bounds_that_cannot_be_are_refused(bounds: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CircuitBreaker(**bounds)
