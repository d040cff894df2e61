"""Ids of users' own, in a world without Kafka: of one id one schedule is pending, whatever comes and whoever dies."""

import random
from collections import Counter

import pytest

from headway.core.delay.changes import Command, IfPending, Settled
from headway.core.delay.ladder import Ladder
from headway.core.delay.recurrence import Recurrence
from headway.core.delay.schedule import Schedule, chosen_id
from tests.property.core.delay.delay_world import START, World

YEAR = 365 * 86_400_000
LADDER = Ladder.exponential()


def ask(world: World, id_: str, to: int | None = None) -> str:
    """Cancel or reschedule by one's own id."""
    token = f"{len(world.commands)}"
    world.commands.append(Command(chosen_id(id_), 0, 0, token, 0, to).encode())
    return token


def numbers(world: World) -> list[int]:
    """Which were delivered: each schedule has a number of its own."""
    return [schedule.order for _, schedule in world.delivered]


@pytest.mark.quick("0", "1", "2")
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_asked_of_ids_is_done_as_it_is_answered_and_each_is_delivered_once(seed: int) -> None:
    draw = random.Random(seed)
    world = World(Ladder.exponential(1, 3, 8), draw, room=50_000, stops=0.05 * (seed % 2))
    asked: dict[str, tuple[str, Schedule | int | None]] = {}  # by token: the id, and what was asked for
    for _ in range(400):
        id_ = f"{draw.randrange(12)}"
        delay = int(draw.expovariate(1 / 20_000)) - 200
        if draw.random() < 0.6:
            schedule, token = world.put(id_, delay, draw.choice(["replace", "keep", "refuse"]))
            asked[token] = chosen_id(id_), schedule
        else:
            to = None if draw.random() < 0.4 else world.now + delay
            asked[ask(world, id_, to)] = chosen_id(id_), to
        world.run_until(world.now + draw.randrange(1_500), crash=0.05)
    world.run_until(world.now + 10_000_000, crash=0.05)
    world.stops = 0.0
    for _ in range(5):
        world.run_until(world.now + 10)
    assert sorted(world.answers) == sorted(asked)
    assert all(len(answers) == 1 for answers in world.answers.values())
    _check(world, asked)
    assert not [key for key in world.stored if key.startswith("change:")]


def _check(world: World, asked: dict[str, tuple[str, Schedule | int | None]]) -> None:
    """Go through what happened, and through the answers in the order in which was asked, beside a naive model."""
    delivered_as = {schedule.order: (at, schedule.due) for at, schedule in world.delivered}
    times = Counter(numbers(world))
    assert set(times.values()) <= {1}
    place = {("answered", token): index for index, (kind, token) in enumerate(world.events) if kind == "answered"}
    place |= {
        ("delivered", what.order): index for index, (_, what) in enumerate(world.events) if isinstance(what, Schedule)
    }
    last: dict[str, int] = {}  # by id: the number of the schedule that was taken last
    wanted: dict[int, int | None] = {}  # by number: when it is due, None if it is not to come

    def came_before(number: int, token: str) -> bool:
        return place.get(("delivered", number), 10**9) < place["answered", token]

    for token in sorted(asked, key=int):
        (id_, what), [answer] = asked[token], world.answers[token]
        number = last.get(id_)
        is_pending = number is not None and wanted[number] is not None and not came_before(number, token)
        if isinstance(what, Schedule):
            if answer is Settled.REFUSED:
                assert is_pending
                continue
            assert answer is Settled.SCHEDULED
            if is_pending and number is not None:
                wanted[number] = None
            last[id_], wanted[what.order] = what.order, what.due
        elif is_pending and number is not None:
            # A record that is still looked for may be cancelled meanwhile.
            assert answer is Settled.CANCELLED or (answer is Settled.RESCHEDULED and what is not None)
            wanted[number] = what
        elif number is not None and wanted[number] is None:
            assert answer in (Settled.CANCELLED, Settled.UNKNOWN)
        else:
            assert answer in (Settled.DELIVERED, Settled.UNKNOWN)
    for number, due in wanted.items():
        assert times[number] == (0 if due is None else 1)
        if due is not None:
            assert delivered_as[number][1] == due <= delivered_as[number][0]


@pytest.mark.parametrize("seed", range(4))
def test_with_low_latency_an_id_is_pending_once_and_only_a_crash_repeats_anything(seed: int) -> None:
    draw = random.Random(seed)
    world = World(Ladder.exponential(1, 2, 8), draw, room=10_000_000, stops=0.05, low_latency=True)
    for _ in range(300):
        world.put(f"{draw.randrange(6)}", draw.randrange(100, 30_000))
        world.run_until(world.now + draw.randrange(2_000))
    world.run_until(world.now + 200_000)
    assert set(Counter(numbers(world)).values()) == {1}
    last = {command.schedule.id: command.schedule.order for command in world.commands if not isinstance(command, bytes)}
    assert set(last.values()) <= set(numbers(world))
    assert len(world.delivered) < 300


@pytest.mark.parametrize(
    ("if_pending", "delivered"), [("replace", ["second"]), ("keep", ["first"]), ("refuse", ["first"])]
)
@pytest.mark.parametrize("later", [50, 5_000])
def test_the_same_id_again_replaces_or_is_kept_away(if_pending: IfPending, delivered: list[str], later: int) -> None:
    world = World(LADDER, random.Random(1))
    first, _ = world.put("1", 60_000)
    world.run_until(world.now + later)
    second, token = world.put("1", 10_000, if_pending)
    world.run_until(world.now + 100_000)
    names = {first.order: "first", second.order: "second"}
    assert [names[number] for number in numbers(world)] == delivered
    assert world.answers[token] == [Settled.SCHEDULED if if_pending == "replace" else Settled.REFUSED]


def test_an_id_is_free_again_once_its_schedule_was_delivered_or_cancelled() -> None:
    world = World(LADDER, random.Random(2))
    for _ in range(3):
        _, token = world.put("1", 500, "refuse")
        world.run_until(world.now + 600)
        assert world.answers[token] == [Settled.SCHEDULED]
    assert len(world.delivered) == 3
    world.put("1", 3_600_000)
    world.run_until(world.now + 10)
    cancelled = ask(world, "1")
    _, token = world.put("1", 7_200_000, "refuse")
    world.run_until(world.now + 10_000_000)
    assert world.answers[cancelled] == [Settled.CANCELLED]
    assert world.answers[token] == [Settled.SCHEDULED]
    assert len(world.delivered) == 4


def test_what_becomes_of_an_id_is_known_for_a_minute() -> None:
    world = World(LADDER, random.Random(3))
    never = ask(world, "1")
    world.put("1", 1_000)
    world.run_until(world.now + 2_000)
    soon = ask(world, "1")
    world.run_until(world.now + 120_000)
    late = ask(world, "1", world.now + 5_000)
    world.run_until(world.now + 10_000)
    answers = {token: world.answers[token] for token in (never, soon, late)}
    assert answers == {never: [Settled.UNKNOWN], soon: [Settled.DELIVERED], late: [Settled.UNKNOWN]}
    assert len(world.delivered) == 1


def test_many_replacements_leave_one_copy_that_is_delivered_and_nothing_stored() -> None:
    world = World(LADDER, random.Random(4))
    for number in range(200):
        world.put("1", 3_600_000 - number * 10_000)
        world.run_until(world.now + 5)
    world.run_until(world.now + 2 * 3_600_000)
    assert len(world.delivered) == 1
    assert not [key for key in world.stored if key.startswith("change:")]


def test_an_id_that_recurs_is_replaced_with_all_its_times() -> None:
    world = World(LADDER, random.Random(5))
    world.put("1", 1_000, recurrence=Recurrence(interval=1_000))
    world.run_until(START + 3_500)
    assert len(world.delivered) == 3
    _, refused = world.put("1", 1_000, "refuse")
    world.run_until(START + 3_600)
    once, _ = world.put("1", 10_000)
    world.run_until(START + 60_000)
    assert world.answers[refused] == [Settled.REFUSED]
    assert numbers(world)[3:] == [once.order]


def test_an_id_is_brought_forward_from_far_away_and_replaced_while_its_record_is_looked_for() -> None:
    world = World(LADDER, random.Random(6), search_ends=0)
    first, _ = world.put("1", YEAR)
    world.run_until(world.now + 1_000)
    sooner = ask(world, "1", world.now + 5_000)
    world.step()
    second, _ = world.put("1", YEAR)
    world.step()
    again = ask(world, "1", world.now + 8_000)
    world.step()
    world.search_ends = 1.0
    world.run_until(world.now + 20_000)
    assert {token: world.answers[token] for token in (sooner, again)} == {
        sooner: [Settled.RESCHEDULED],
        again: [Settled.RESCHEDULED],
    }
    assert numbers(world) == [second.order] != [first.order]
