"""Years of delayed delivery in seconds: a world without Kafka, a clock that is turned, crashes by chance."""

import random
from collections import Counter
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from headway.core.delay.changes import Settled
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.recurrence import Recurrence
from headway.core.delay.relay_state import change_key
from headway.core.delay.schedule import Schedule
from tests.property.core.delay.delay_world import START, Record, World

YEAR = 365 * 86_400_000
LADDER = Ladder.exponential()


def random_delay(draw: random.Random) -> int:
    """From nothing to two years, each order of magnitude as often as the others."""
    return int(10 ** draw.uniform(0, 10.8))


def delivered_once(world: World, schedules: list[Schedule]) -> None:
    assert Counter(schedule.id for _, schedule in world.delivered) == Counter(schedule.id for schedule in schedules)


@pytest.mark.quick("0-60")
@pytest.mark.parametrize(("seed", "count"), [(0, 60), *((seed, 300) for seed in range(2))])
def test_delays_up_to_years_are_delivered_once_never_early_and_little_late(seed: int, count: int) -> None:
    world = World(LADDER, random.Random(seed))
    schedules = []
    for number in range(count):
        schedules.append(world.schedule(f"{number}", random_delay(world.draw)))
        world.run_until(world.now + world.draw.randrange(3_600_000))
    world.run_until(START + 3 * YEAR)
    delivered_once(world, schedules)
    assert all(schedule.due <= at <= schedule.due + 50 for at, schedule in world.delivered)
    for schedule in schedules:
        assert world.writes[schedule.id] <= world.ladder.writes(schedule.due - schedule.at) + 2


@pytest.mark.quick("0-150")
@pytest.mark.parametrize(("seed", "count"), [(0, 150), *((seed, 400) for seed in range(6))])
def test_nothing_is_lost_or_doubled_by_crashes_at_any_moment(seed: int, count: int) -> None:
    world = World(Ladder.exponential(1, 3, 6), random.Random(seed), room=4_000)
    schedules = []
    unreadable = []
    for number in range(count):
        schedules.append(world.schedule(f"{number}", int(world.draw.expovariate(1 / 20_000))))
        if world.draw.random() < 0.3:  # also beside others that wait in memory
            unreadable.append(Record(world.now, None, value=number))
            world.logs[world.draw.choice(list(world.logs))].append(unreadable[-1])
        world.run_until(world.now + world.draw.randrange(200), crash=0.1)
    world.run_until(world.now + 1_000_000, crash=0.1)
    delivered_once(world, schedules)
    assert Counter(map(id, world.refused)) == Counter(map(id, unreadable))
    assert all(schedule.due <= at for at, schedule in world.delivered)


@pytest.mark.quick("0", "1")
@pytest.mark.parametrize("seed", range(6))
def test_an_overdue_backlog_is_worked_off_once_and_in_order_however_often_the_relay_dies_meanwhile(seed: int) -> None:
    world = World(LADDER, random.Random(seed), at_once=150)  # more than leave in one turn
    schedules = [world.schedule(f"{number}", world.draw.randrange(1, 9) * 100) for number in range(400)]
    world.run_until(world.now + 50)  # all wait in memory, and leave it in quite another order than they came
    world.now += 2000
    while len(world.delivered) < len(schedules):
        world.step(crash=0.1)
    delivered_once(world, schedules)
    for due in {schedule.due for schedule in schedules}:
        order = [schedule.order for _, schedule in world.delivered if schedule.due == due]
        assert order == sorted(order)


@pytest.mark.quick("0-300")
@pytest.mark.parametrize(("seed", "count"), [(0, 300), *((seed, 1000) for seed in range(4))])
def test_records_of_one_due_time_keep_their_order_also_when_all_are_overdue(
    seed: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.core.delay.partition_relay.LEAVE_BESIDE", 1 + 3 * seed)
    world = World(LADDER, random.Random(seed), room=10_000_000)
    schedules = []
    for number in range(count):
        world.now += world.draw.randrange(100)
        due = -(-(world.now + world.draw.randrange(100_000)) // 5000) * 5000
        schedules.append(world.schedule(f"{number}", due - world.now))
        if seed % 2:
            world.run_until(world.now + 1)
    world.now += YEAR * world.draw.randrange(2)
    world.run_until(world.now + 110_000)
    delivered_once(world, schedules)
    for due in {schedule.due for schedule in schedules}:
        order = [schedule.order for _, schedule in world.delivered if schedule.due == due]
        assert order == sorted(order)


@pytest.mark.quick("0-500")
@pytest.mark.parametrize(("seed", "count"), [(0, 500), *((seed, 1000) for seed in range(12))])
def test_records_that_were_stored_long_after_they_were_scheduled_keep_their_order_and_are_on_time(
    seed: int, count: int
) -> None:
    world = World(Ladder.exponential(1, 2 + seed % 2, 8), random.Random(seed), room=10_000_000)
    schedules = []
    for number in range(count):
        world.run_until(world.now + world.draw.randrange(60), crash=0.01 * (seed % 3))
        ago = int(world.draw.expovariate(1 / 2000)) if world.draw.random() < 0.3 else 0
        due = -(-(world.now + world.draw.randrange(30_000)) // 5000) * 5000
        schedules.append(world.schedule(f"{number}", due - world.now + ago, ago))
    world.run_until(world.now + 100_000)
    delivered_once(world, schedules)
    assert all(schedule.due <= at <= schedule.due + 50 for at, schedule in world.delivered)
    for due in {schedule.due for schedule in schedules}:
        order = [(schedule.at, schedule.order) for _, schedule in world.delivered if schedule.due == due]
        assert order == sorted(order)


@pytest.mark.quick("0-False", "1-True", "2-False")
@pytest.mark.parametrize("low_latency", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_records_of_one_due_time_keep_their_order_though_the_brokers_stop_for_seconds(
    seed: int, low_latency: bool
) -> None:
    draw = random.Random(seed)
    world = World(Ladder.exponential(1, 2, 8), draw, room=10_000_000, stops=0.05, low_latency=low_latency)
    schedules = []
    for number in range(1000):
        world.run_until(world.now + draw.randrange(60), crash=0.0 if low_latency else 0.01 * (seed % 3))
        due = -(-(world.now + draw.randrange(10_000)) // 1000) * 1000
        schedules.append(world.schedule(f"{number}", due - world.now))
    world.run_until(world.now + 100_000)
    delivered_once(world, schedules)
    assert all(schedule.due <= at for at, schedule in world.delivered)
    for due in {schedule.due for schedule in schedules}:
        order = [schedule.order for _, schedule in world.delivered if schedule.due == due]
        assert order == sorted(order)


@pytest.mark.parametrize("fits", [True, False])
def test_of_what_is_overdue_equal_due_times_keep_their_order_as_long_as_all_of_it_fits_in_memory(fits: bool) -> None:
    count = 1500  # of 100 bytes each, in delay topics of all lengths
    world = World(LADDER, random.Random(8), room=100 * count + 1 if fits else 10 * count)
    schedules = []
    for number in range(count):
        world.now += world.draw.randrange(100)
        due = -(-(world.now + int(10 ** world.draw.uniform(0, 6))) // 50_000) * 50_000
        schedules.append(world.schedule(f"{number}", due - world.now))
    world.now += YEAR
    world.run_until(world.now + 50_000)
    delivered_once(world, schedules)
    order = [(schedule.due, schedule.order) for _, schedule in world.delivered]
    assert (order == sorted(order)) is fits


@pytest.mark.quick("2000")
@pytest.mark.parametrize("room", [2_000, 20_000])
def test_what_waits_in_memory_is_bounded_whatever_is_due_at_once(room: int) -> None:
    world = World(LADDER, random.Random(3), room=room)
    schedules = [world.schedule(f"{number}", 900 + number % 7) for number in range(3000)]
    most = 0
    for _ in range(2000):
        if not world.step(crash=0.02):
            world.now += 5
        most = max(most, world.relay.held)
    delivered_once(world, schedules)
    assert most <= room / 100 + 1 or most <= 3 * room / 100


def test_the_brokers_clock_may_step_back_an_hour_and_nothing_waits_for_it() -> None:
    world = World(LADDER, random.Random(4))
    early = [world.schedule(f"a{n}", 60_000 + n) for n in range(50)]
    world.run_until(world.now + 20_000)
    world.now -= 3_600_000
    late = [world.schedule(f"b{n}", 30_000 + n) for n in range(50)]
    world.run_until(world.now + 60_000)
    assert Counter(schedule.id for _, schedule in world.delivered) == Counter(schedule.id for schedule in late)
    world.run_until(world.now + 3_700_000)
    delivered_once(world, early + late)
    assert all(schedule.due <= at <= schedule.due + 50 for at, schedule in world.delivered)


def test_the_brokers_clock_may_step_forward_an_hour() -> None:
    world = World(LADDER, random.Random(4))
    schedules = [world.schedule(f"{n}", n * 1000) for n in range(100)]
    schedules += [world.schedule(f"later {n}", 7_200_000 + n) for n in range(50)]
    world.run_until(world.now + 20_000)
    world.now += 3_600_000
    world.run_until(world.now + 10_000)
    assert len(world.delivered) == 100
    world.run_until(world.now + 7_200_000)
    delivered_once(world, schedules)
    assert all(schedule.due <= at for at, schedule in world.delivered)


@pytest.mark.quick("0-100")
@pytest.mark.parametrize(("seed", "count"), [(0, 100), *((seed, 300) for seed in range(8))])
def test_cancellations_and_reschedules_are_settled_as_they_are_answered(seed: int, count: int) -> None:
    draw = random.Random(seed)
    world = World(Ladder.exponential(1, 3, 8), draw, room=50_000)
    schedules: list[Schedule] = []
    asked: dict[str, list[tuple[str, int | None]]] = {}
    for number in range(count):
        schedules.append(world.schedule(f"{number}", int(draw.expovariate(1 / 30_000))))
        if draw.random() < 0.6:
            chosen = draw.choice(schedules[-50:])
            to = None if draw.random() < 0.5 else world.now + int(draw.expovariate(1 / 60_000))
            asked.setdefault(chosen.id, []).append((world.ask(chosen, to), to))
        world.run_until(world.now + draw.randrange(300), crash=0.05)
    world.run_until(world.now + 10_000_000, crash=0.05)
    times = Counter(schedule.id for _, schedule in world.delivered)
    at = {schedule.id: (at, schedule.due) for at, schedule in world.delivered}
    for schedule in schedules:
        answers = [(to, answer) for token, to in asked.get(schedule.id, []) for answer in world.answers[token]]
        cancelled = any(to is None and answer is Settled.CANCELLED for to, answer in answers)
        assert times[schedule.id] == (0 if cancelled else 1), answers
        due = [to for to, answer in answers if to is not None and answer is Settled.RESCHEDULED]
        if not cancelled:
            assert at[schedule.id][1] == ([schedule.due, *due][-1])
            assert at[schedule.id][0] >= at[schedule.id][1]
    assert all(len(world.answers[token]) == 1 for each in asked.values() for token, _ in each)


@pytest.mark.parametrize("dies", [False, True])
def test_the_later_of_two_reschedules_wins_also_while_the_record_is_looked_for(dies: bool) -> None:
    world = World(LADDER, random.Random(5), search_ends=0)
    schedule = world.schedule("far", 4_000)
    tokens = [world.ask(schedule, START + 3_000), world.ask(schedule, START + 10_000)]
    world.step()
    if dies:
        world.crash()
    world.run_until(START + 20_000)
    assert world.answers == {token: [Settled.RESCHEDULED] for token in tokens}
    [(at, delivered)] = world.delivered
    assert START + 10_000 == delivered.due <= at


def test_a_schedule_can_be_brought_forward_from_far_away() -> None:
    world = World(LADDER, random.Random(5))
    schedule = world.schedule("far", YEAR)
    world.run_until(world.now + 86_400_000)
    token = world.ask(schedule, to := world.now + 5_000)
    world.run_until(world.now + 10_000)
    assert world.answers[token] == [Settled.RESCHEDULED]
    [(at, _)] = world.delivered
    assert to <= at <= to + 10
    world.run_until(START + 2 * YEAR)
    assert len(world.delivered) == 1
    assert not [key for key in world.stored if key.startswith("change:")]


def test_of_what_was_delivered_it_is_said_so_also_much_later() -> None:
    world = World(LADDER, random.Random(6))
    schedule = world.schedule("1", 5_000)
    world.run_until(world.now + 6_000)
    first = world.ask(schedule)
    world.run_until(world.now + 10)
    world.now += YEAR
    world.crash()
    second = world.ask(schedule)
    world.run_until(world.now + 1_000)
    assert world.answers == {first: [Settled.DELIVERED], second: [Settled.DELIVERED]}


def test_what_was_brought_forward_to_the_epoch_and_delivered_cannot_be_cancelled() -> None:
    world = World(LADDER, random.Random(6))
    schedule = world.schedule("1", 3_600_000)
    moved = world.ask(schedule, 0)
    world.run_until(world.now + 1_000)
    assert [schedule.id for _, schedule in world.delivered] == ["1"]
    cancelled = world.ask(schedule)
    world.run_until(world.now + 1_000)
    assert world.answers == {moved: [Settled.RESCHEDULED], cancelled: [Settled.DELIVERED]}


def test_a_recurring_schedule_fires_until_it_is_cancelled() -> None:
    world = World(LADDER, random.Random(7))
    schedule = world.schedule("r", 10_000, recurrence=Recurrence(interval=10_000))
    world.run_until(world.now + 95_000, crash=0.02)
    assert [each.due - START for _, each in world.delivered] == [10_000 * n for n in range(1, 10)]
    token = world.ask(schedule)
    world.run_until(world.now + 95_000, crash=0.02)
    assert world.answers[token] == [Settled.CANCELLED]
    assert len(world.delivered) == 9


@pytest.mark.parametrize("seed", range(4))
def test_with_low_latency_a_recurring_schedule_fires_once_each_time_again_after_crashes(seed: int) -> None:
    world = World(LADDER, random.Random(seed), low_latency=True)
    schedule = world.schedule("r", 10_000, recurrence=Recurrence(interval=10_000))
    world.run_until(world.now + 295_000, crash=0.05)
    assert {each.due - START for _, each in world.delivered} == {10_000 * n for n in range(1, 30)}
    before = len(world.delivered)
    world.run_until(world.now + 100_000)
    assert [each.due - START for _, each in world.delivered[before:]] == [10_000 * n for n in range(30, 40)]
    token = world.ask(schedule)
    world.run_until(world.now + 100_000)
    assert world.answers[token] == [Settled.CANCELLED]
    assert len(world.delivered) == before + 10


@pytest.mark.parametrize(("misfire", "fired"), [("coalesce", 1), ("fire", 60), ("skip", 10)])
def test_after_downtime_a_recurring_schedule_fires_as_its_policy_says(misfire: str, fired: int) -> None:
    world = World(LADDER, random.Random(8))
    recurrence = Recurrence(interval=60_000, misfire=misfire, older_than=600_000 - 5_000)  # type: ignore[arg-type]
    world.schedule("r", 60_000, recurrence=recurrence)
    world.now += 3_601_000
    world.run_until(world.now + 10_000)
    assert len(world.delivered) == fired
    world.run_until(world.now + 60_000)
    assert len(world.delivered) == fired + 1


def test_a_record_that_says_no_time_is_refused_once() -> None:
    world = World(LADDER, random.Random(9))
    for delay_topic in (MEMORY, 1000, 4000):
        world.logs[delay_topic].append(Record(world.now, b"{"))
    world.run_until(world.now + 10_000, crash=0.2)
    assert len(world.refused) == 3


def test_a_line_whose_topic_was_deleted_may_come_back_and_is_read_from_its_beginning() -> None:
    world = World(Ladder((1_000, 4_000)), random.Random(10))
    schedules = [world.schedule(f"{n}", 5_000) for n in range(10)]
    world.run_until(world.now + 6_000)
    assert "line:4000" in world.stored
    world.ladder = Ladder((1_000,))
    del world.logs[4_000]
    world.crash()
    world.step()
    assert "line:4000" not in world.stored
    world.ladder = Ladder((1_000, 4_000))
    world.logs[4_000] = []
    world.crash()
    schedules += [world.schedule(f"new {n}", 5_000) for n in range(20)]
    world.run_until(world.now + 6_000)
    delivered_once(world, schedules)


def test_a_topic_that_was_made_anew_is_read_from_its_beginning_though_as_much_was_done_in_the_one_before() -> None:
    world = World(LADDER, random.Random(10), topics={"memory": "a", "line:4000": "b", "commands": "c"})
    schedules = [world.schedule(f"{n}", 5_000) for n in range(30)]
    world.run_until(world.now + 6_000)
    world.topics = {"memory": "d", "line:4000": "e", "commands": "c"}
    for delay_topic in (MEMORY, 4_000):
        world.logs[delay_topic] = []
    schedules += [world.schedule(f"new {n}", 5_000 if n % 2 else 100) for n in range(80)]
    world.crash()
    world.run_until(world.now + 6_000)
    delivered_once(world, schedules)
    for _ in range(2):  # and what is stored is of the new ones
        world.crash()
        world.run_until(world.now + 10)
    delivered_once(world, schedules)


def test_progress_that_an_old_relay_stored_in_a_new_topic_hides_no_record_of_new_topics() -> None:
    world = World(LADDER, random.Random(10), topics={"memory": "a", "line:4000": "b", "commands": "c"})
    for number in range(30):
        world.schedule(f"{number}", 5_000)
    world.run_until(world.now + 6_000)
    world.topics = {"memory": "d", "line:4000": "e", "commands": "f"}
    for delay_topic in (MEMORY, 4_000):
        world.logs[delay_topic] = []
    # The topic of the state is new, too: it has what the relay stored before it noticed, and no ids.
    assert world.stored.pop("topics")
    world.delivered.clear()
    schedules = [world.schedule(f"new {n}", 5_000 if n % 2 else 100) for n in range(80)]
    world.crash()
    world.run_until(world.now + 6_000)
    delivered_once(world, schedules)


@pytest.mark.slow
def test_lines_may_change_while_records_are_pending() -> None:
    world = World(LADDER, random.Random(10))
    schedules = [world.schedule(f"{n}", n * 997) for n in range(1, 300)]
    world.run_until(world.now + 50_000)
    world.ladder = Ladder((2_000, 60_000))
    world.logs[60_000] = []
    world.crash()
    schedules += [world.schedule(f"new {n}", n * 997) for n in range(1, 300)]
    world.run_until(world.now + 400_000, crash=0.05)
    delivered_once(world, schedules)
    assert all(schedule.due <= at <= schedule.due + 100 for at, schedule in world.delivered)


def test_what_was_cancelled_stays_so_through_a_crash_amid_an_overdue_backlog() -> None:
    world = World(LADDER, random.Random(1), at_once=1_000)
    others = [world.schedule(f"{number}", 500) for number in range(400)]
    gone = world.schedule("gone", 900)
    token = world.ask(gone)
    world.now += 120_000  # no relay has run
    fetch, slow = world.fetch, world.ladder.delays[0]
    world.fetch = lambda delay_topic: None if delay_topic == slow else fetch(delay_topic)  # type: ignore[method-assign]
    for _ in range(20):  # all leave their delay topic, and wait for what that one may hold
        world.step()
    assert world.relay.held == len(others)
    world.fetch = fetch  # type: ignore[method-assign]
    world.step()
    assert 0 < len(world.delivered) < len(others)
    world.crash()
    world.run_until(world.now + 200_000)
    assert world.answers[token] == [Settled.CANCELLED]
    delivered_once(world, others)
    assert not [key for key in world.stored if key.startswith(change_key(""))]


def test_many_changes_are_forgotten_some_at_a_time() -> None:
    world = World(Ladder.exponential(1, 2, 3), random.Random(2), at_once=5_000, room=10_000_000)
    for number in range(5_000):
        world.ask(world.schedule(f"{number}", 3_000))
    most = 0
    while world.now < START + 200_000:
        tick = world.step()
        if not tick:
            world.now += 500
        most = max(most, sum(value is None for value in tick.state.values()))
    assert 0 < most <= 2_000
    assert not [key for key in world.stored if key.startswith(change_key(""))]
    assert not world.delivered


def test_what_was_delivered_is_said_to_be_though_the_clock_steps_back() -> None:
    world = World(LADDER, random.Random(3))
    schedule = world.schedule("1", 5_000)
    world.run_until(world.now + 6_000)
    world.now -= 30_000
    tokens = [world.ask(schedule), world.ask(schedule, world.now + 3_600_000)]
    world.run_until(world.now + 10_000)
    assert [world.answers[token] for token in tokens] == [[Settled.DELIVERED], [Settled.DELIVERED]]


def test_what_is_brought_forward_put_back_and_brought_forward_again_comes_when_it_was_said_last() -> None:
    world = World(LADDER, random.Random(4), search_ends=1.0)
    schedule = world.schedule("1", 1_000_000)
    world.run_until(world.now + 1_000)
    tokens = [world.ask(schedule, world.now + 60_000)]
    world.run_until(world.now + 1_000)
    tokens.append(world.ask(schedule, schedule.due))
    world.run_until(world.now + 70_000)
    last = world.now + 20_000
    tokens.append(world.ask(schedule, last))
    world.run_until(schedule.due + 100_000)
    assert [world.answers[token] for token in tokens] == [[Settled.RESCHEDULED]] * 3
    assert [at // 100 for at, _ in world.delivered] == [last // 100]


@pytest.mark.parametrize("misfire", ["coalesce", "fire", "skip"])
def test_a_recurring_schedule_outlives_relays_that_do_not_know_its_zone(
    misfire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(LADDER, random.Random(9))
    minute = 60_000
    recurrence = Recurrence(cron="* * * * *", zone="Europe/Berlin", misfire=misfire)
    world.schedule("r", 10_000, recurrence=recurrence)
    first = START + 10_000

    def unknown(key: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(key)

    with monkeypatch.context() as patch:
        patch.setattr("headway.core.delay.recurrence.ZoneInfo", unknown)
        world.crash()  # a relay on another machine reads the header, too
        world.run_until(START + 10 * minute)
        assert [schedule.due for _, schedule in world.delivered] == [first]
        assert world.refused == []
    world.run_until(START + 13 * minute)
    dues = [schedule.due for _, schedule in world.delivered]
    assert all(at >= due for at, due in zip((at for at, _ in world.delivered), dues, strict=True))
    assert dues == sorted(set(dues))
    assert {due % minute for due in dues[1:]} == {0}
    assert {"coalesce": len(dues) == 5, "fire": len(dues) == 14, "skip": len(dues) == 4}[misfire], dues
    token = world.ask(world.delivered[0][1])
    world.run_until(world.now + minute)
    assert world.answers[token] == [Settled.CANCELLED]
