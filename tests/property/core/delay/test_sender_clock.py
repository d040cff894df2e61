"""The brokers' time by a sender whose own clock is wrong."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.delay.sender_clock import SenderClock

BROKER = 1_760_000_000_000  # its time in ms at the monotonic time 0
ROUND_TRIPS = st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 60)), min_size=1, max_size=10)

STEPS = st.integers(5_000, 10**8) | st.integers(-(10**8), -5_000)  # ms, more than a round trip takes


def broker_at(monotonic: float, stepped: int = 0) -> float:
    return BROKER + stepped + monotonic * 1000


def observe(clock: SenderClock, now: float, trips: list[tuple[float, float, float]], stepped: int = 0) -> float:
    """Observe records with these ways to the broker and back, in seconds, each after a pause; return the time then."""
    for there, back, pause in trips:
        stamp = int(broker_at(now + there, stepped))
        clock.observe(stamp, now, now + there + back)
        now += there + back + pause
    return now


@given(ROUND_TRIPS, st.integers(-(10**8), 10**8), STEPS)
def test_a_corrected_time_is_never_behind_the_brokers_and_right_within_a_round_trip(
    trips: list[tuple[float, float, float]], error: int, stepped: int
) -> None:
    clock = SenderClock()
    for step in (0, stepped):  # after a step of the brokers' clock, too
        now = observe(clock, 1000.0, trips[:1] if step else trips, step)
        wall = (broker_at(now, step) + error) / 1000
        known = wall * 1000 + clock.correction(now, wall)
        assert abs(known - broker_at(now, step)) <= 4100 + 10  # two clocks drift apart meanwhile
        if known != wall * 1000:
            assert known >= broker_at(now, step) - 1


@given(ROUND_TRIPS)
def test_a_clock_that_is_right_is_left_alone(trips: list[tuple[float, float, float]]) -> None:
    clock = SenderClock()
    now = observe(clock, 1000.0, trips)
    assert clock.correction(now, broker_at(now) / 1000) == 0


def test_before_anything_is_known_the_own_clock_counts() -> None:
    assert SenderClock().correction(5.0, 100.0) == 0
