"""Delay topics that fit themselves come to rest, stay within their bound, and retire without a record in them."""

import itertools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.delay.delay_topic_fitting import PRICE, DelayTopicsNow, fitted
from headway.core.delay.delay_topic_retirement import FitState, Seen, Waits, advanced, read_fit_state
from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import Ladder, writes_per_record
from headway.core.delay.recent_delays import HALF_LIFE, RecentDelays, delays_of, is_like, sum_of
from headway.core.delay.schedule import Schedule
from headway.core.untrusted import LATEST
from headway.errors import UnreadableError
from tests.property.core.delay.fit_day import MOST, OTHER_TOPICS, simulate

delays = st.dictionaries(
    st.one_of(st.integers(0, 10**6), st.integers(0, 10**11), st.sampled_from([30_000, 300_000, 86_400_000])),
    st.floats(0.001, 1e6),
    min_size=1,
    max_size=8,
)
delay_topics = st.sets(st.sampled_from(Ladder.exponential().delays[1:]), max_size=12).map(
    lambda more: (1000, *sorted(more))
)
most = st.integers(1, 20)


def cost(ladder: tuple[int, ...], weights: dict[int, float]) -> float:
    return writes_per_record(Ladder(ladder), weights) + PRICE * len(ladder)


@given(delay_topics, st.sets(st.integers(1001, 10**9), max_size=4), delays, most, st.booleans())
def test_lines_stay_within_their_bound_and_the_shortest_stays(
    ladder: tuple[int, ...], emptied: set[int], weights: dict[int, float], most: int, settled: bool
) -> None:
    with_topics = frozenset(ladder) | emptied
    barred = frozenset(itertools.islice(emptied, 1))
    chosen = fitted(DelayTopicsNow(ladder, with_topics, barred), weights, most, settled=settled)
    assert Ladder(chosen).delays[0] == 1000
    assert len(chosen) <= most
    assert len(with_topics.union(chosen)) <= max(most, len(with_topics))
    assert not barred.intersection(chosen)


@given(delay_topics, delays, most)
def test_lines_come_to_rest_for_delays_that_stay_the_same(
    ladder: tuple[int, ...], weights: dict[int, float], most: int
) -> None:
    steps = [ladder]
    topics = frozenset(ladder)
    for _ in range(12):
        steps.append(fitted(DelayTopicsNow(steps[-1], topics, idle=topics), weights, most))
        topics |= frozenset(steps[-1])
    assert steps[-1] == steps[-2]
    free = [each for each in steps if len(each) <= most]
    assert all(cost(after, weights) < cost(before, weights) for before, after in pairwise(free) if before != after)


def test_a_small_swing_changes_nothing_and_a_large_one_does_so_at_once() -> None:
    now = DelayTopicsNow((1000, 2000, 4000, 8000), frozenset({1000, 2000, 4000, 8000}))
    assert fitted(now, {1000: 50, 2000: 50, 4000: 50, 8000: 50, 16_000: 10}, 16) == now.ladder
    day = fitted(now, {8000: 100, 86_400_000: 1}, 16, settled=False)
    assert 86_400_000 in day
    assert writes_per_record(Ladder(day), {86_400_000: 1}) < 4


def test_without_delays_lines_stay_and_too_many_are_given_up() -> None:
    every = Ladder.exponential().delays
    assert fitted(DelayTopicsNow((1000, 4000), frozenset({1000, 4000})), {}, 16) == (1000, 4000)
    assert len(fitted(DelayTopicsNow(every, frozenset(every)), {}, 16)) == 16


STALE_FOR = 60
RETIREMENT = Waits(unused=300, known=STALE_FOR + 1, unread=40, barred=1000)


@given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from([8, 16, 32]), st.sampled_from("uwwrn")), max_size=60))
def test_a_line_is_deleted_only_when_it_is_empty_and_no_scheduler_knows_it_any_more(
    steps: list[tuple[int, int, str]],
) -> None:
    state, now, ladder = FitState(), 1, {8, 16, 32}
    topics = dict.fromkeys([8, 16, 32], 0)
    inside = dict.fromkeys(topics, 0)
    in_use_until = dict.fromkeys(topics, 0)
    written_at = dict.fromkeys(topics, 0)
    for wait, delay_topic, what in steps:
        now += wait
        if what == "u" and delay_topic not in state.retiring:  # fitted never chooses a barred delay topic
            ladder ^= {delay_topic}
        if delay_topic in ladder and delay_topic not in topics:
            topics[delay_topic], inside[delay_topic], written_at[delay_topic] = 0, 0, now
        if what == "w" and (delay_topic in ladder or now - in_use_until.get(delay_topic, -LATEST) <= STALE_FOR):
            assert delay_topic in topics  # nobody writes to a topic that is gone
            topics[delay_topic] += 1
            inside[delay_topic] += 1
            written_at[delay_topic] = now
        if what == "r" and delay_topic in topics and (delay_topic in ladder or delay_topic not in state.retiring):
            inside[delay_topic] = 0
        in_use_until |= dict.fromkeys(ladder, now)
        empty = {each for each in topics if not inside[each]}
        before = state
        state, to_delete = advanced(state, Seen(ladder, topics, empty), RETIREMENT, now)
        assert read_fit_state(state.encode()) == state
        for each in to_delete:
            assert each not in ladder
            assert not inside[each]
            assert now - written_at[each] >= RETIREMENT.unused
            assert each in before.retiring
            del topics[each]
        assert not {each for each in topics if inside[each]} & state.retiring  # what has records is read


@given(st.lists(st.tuples(st.integers(0, 3_600_000), st.integers(-5, 10**15)), max_size=400))
def test_recent_delays_are_bounded_and_read_as_they_were_stored(added: list[tuple[int, int]]) -> None:
    recent, now = RecentDelays(), 0
    for wait, delay in added:
        now += wait
        recent.add([delay], now)
        assert len(recent.weights(now)) <= 256
    stored = RecentDelays.decode(recent.encode(now))
    assert stored.weights(now) == pytest.approx(recent.weights(now), abs=1e-5)
    assert sum(recent.weights(now + HALF_LIFE).values()) == pytest.approx(sum(stored.weights(now).values()) / 2, 1e-3)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"at":1,"delays":[[1,-1]]}', b'{"at":1,"delays":[[1,1e99]]}'])
def test_delays_that_cannot_be_read_are_an_error(value: bytes) -> None:
    with pytest.raises(UnreadableError):
        RecentDelays.decode(value)


def test_only_records_that_came_in_are_counted_and_not_those_that_were_moved() -> None:
    def record(appended: int, generation: int = 0) -> Fetched:
        return Fetched(0, appended, 1, None, Schedule("a", 100_000, 0, 0, "t", generation=generation))

    records = [record(200), record(400), record(500), record(200, generation=1)]
    assert delays_of(0, records, Ladder((1000, 8000))) == [100_000, 100_000]
    assert delays_of(8000, [record(3900), record(7900)], Ladder((1000, 8000))) == [100_000]
    assert sum_of([{1: 2.0}, {1: 1.0, 3: 1.0}]) == {1: 3.0, 3: 1.0}
    assert is_like({1000: 10, 2000: 10}, {1000: 5, 2000: 5.1}, Ladder((1000, 2000)), 0.1)
    assert not is_like({1000: 10}, {1000: 10, 10_000: 1}, Ladder((1000,)), 0.1)


@pytest.mark.slow
def test_over_a_day_of_changing_delays_fitted_lines_are_fewer_write_less_and_lose_nothing() -> None:
    fitting, fixed = (simulate(24, fits=fits, every=6000) for fits in (True, False))
    assert fitting.lost == 0
    assert max(fitting.topics) <= MOST + OTHER_TOPICS < min(fixed.topics)
    assert fitting.writes_per_record < fixed.writes_per_record
    assert len(fitting.changes) <= 12
    assert min(fitting.lateness) >= 0
    assert max(fitting.lateness) < 500
    made_again = {delay_topic for delay_topic in fitting.made if fitting.made.count(delay_topic) > 1}
    assert not made_again
