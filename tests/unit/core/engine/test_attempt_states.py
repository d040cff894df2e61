"""The life of an attempt: each state meets each event by a public call of the engine."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from headway.core.engine import engine as module
from headway.core.engine.attempt import Attempt
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition
from tests.models.attempt_life import ATTEMPT_TRANSITIONS, AttemptEvent, state_of
from tests.plain_python import plain_python

pytestmark = plain_python  # an engine makes its attempts by itself, so this class of theirs is replaced

ORDERS = TopicPartition("orders", partition=0)
_RUNNING = AttemptState.RUNNING
NOW = 100.0
SOON = NOW + 5


@dataclass
class Record:
    offset: int
    raw_key: bytes = b"k"


class World:
    """An engine with one lane, and the attempts that it makes of records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts = attempts = list[Attempt[Any]]()

        class Noted(Attempt[Any]):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                attempts.append(self)

        monkeypatch.setattr(module, "Attempt", Noted)
        self.engine = Engine[Record](Ordering.KEY)
        self.engine.assign(ORDERS, OffsetMap(0))

    def receive(self, records: int = 1, *, early: bool = False) -> Attempt[Any]:
        """Receive records, and return the attempt at the last; `early` ones wait until SOON for a batch to fill."""
        if early:
            self.engine.let_batches_fill(9, linger=SOON - NOW)
        first = len(self.attempts)
        self.engine.receive(ORDERS, [Record(first + index) for index in range(records)], NOW)
        return self.attempts[-1]

    def run(self) -> Attempt[Any]:
        attempt = self.receive()
        assert self.engine.take(1, NOW) == [attempt]
        return attempt

    def lose(self) -> None:
        self.engine.revoke([ORDERS])

    def take_out(self, offset: int) -> None:
        lanes = self.engine.open_lanes(ORDERS, [each for each in self.attempts if state_of(each) is _RUNNING])
        if lanes is not None:
            found = lanes.find(offset)
            if found is not None and not lanes.has_started(found):
                self.engine.end_waiting(lanes, found, ())
            self.engine.close_lanes(lanes, NOW)

    # An attempt in each state

    def behind(self) -> Attempt[Any]:
        return self.receive(2)

    def waiting(self) -> Attempt[Any]:
        return self.receive(early=True)

    def ready(self) -> Attempt[Any]:
        return self.receive()

    def running(self) -> Attempt[Any]:
        return self.run()

    def done(self) -> Attempt[Any]:
        attempt = self.run()
        assert self.engine.finish(attempt, NOW)
        return attempt

    def replaced(self) -> Attempt[Any]:
        attempt = self.run()
        assert self.engine.retry(attempt, SOON, OSError(), NOW)
        return attempt

    def stale(self) -> Attempt[Any]:
        attempt = self.run()
        self.lose()
        return attempt

    def dropped(self) -> Attempt[Any]:
        attempt = self.ready()
        self.lose()
        return attempt


Act = Callable[[World, Attempt[Any]], Any]

ACTS: dict[AttemptEvent, Act] = {
    AttemptEvent.TIME: lambda world, attempt: world.engine.take(0, SOON),
    AttemptEvent.TAKEN: lambda world, attempt: world.engine.take(9, NOW),
    AttemptEvent.TAKEN_ALONG: lambda world, attempt: world.engine.take_batch(9, NOW),
    AttemptEvent.FINISHED: lambda world, attempt: world.engine.finish(attempt, NOW),
    AttemptEvent.RETRIED: lambda world, attempt: world.engine.retry(attempt, NOW, OSError(), NOW),
    AttemptEvent.TAKEN_OUT: lambda world, attempt: world.take_out(attempt.offset),
    AttemptEvent.LEAVES: lambda world, attempt: world.engine.retire([ORDERS]),
    AttemptEvent.GIVEN_UP: lambda world, attempt: world.engine.give_up([attempt]),
    AttemptEvent.LOST: lambda world, attempt: world.lose(),
}
# What only works in one state can meet, since it is about the record's arrival or the work ahead of it.
ARRIVALS = {AttemptEvent.RECEIVED_FIRST, AttemptEvent.RECEIVED_BEHIND, AttemptEvent.RECEIVED_EARLY}
TURNS = {AttemptEvent.TURN, AttemptEvent.TURN_EARLY}
BORN = [state for state in AttemptState if state is not AttemptState.NEW]


@pytest.mark.parametrize(("state", "event"), list(product(BORN, ACTS)))
def test_each_event_leads_where_the_table_says_and_any_other_changes_nothing(
    state: AttemptState, event: AttemptEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    attempt: Attempt[Any] = getattr(world, state.value)()
    assert state_of(attempt) is state
    said = ACTS[event](world, attempt)
    assert state_of(attempt) is ATTEMPT_TRANSITIONS.get((state, event), state)
    if event in (AttemptEvent.FINISHED, AttemptEvent.RETRIED):
        assert said is (state is AttemptState.RUNNING)


@pytest.mark.parametrize(
    ("event", "records", "early"),
    [
        (AttemptEvent.RECEIVED_FIRST, 1, False),
        (AttemptEvent.RECEIVED_BEHIND, 2, False),
        (AttemptEvent.RECEIVED_EARLY, 1, True),
    ],
)
def test_a_record_that_arrives_is_a_work_in_the_state_of_the_table(
    event: AttemptEvent, records: int, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert state_of(World(monkeypatch).receive(records, early=early)) is ATTEMPT_TRANSITIONS[AttemptState.NEW, event]


@pytest.mark.parametrize(("event", "early"), [(AttemptEvent.TURN, False), (AttemptEvent.TURN_EARLY, True)])
def test_the_end_of_the_work_ahead_is_the_next_ones_turn(
    event: AttemptEvent, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    ahead = world.run()
    attempt = world.receive(early=early)
    assert state_of(attempt) is AttemptState.BEHIND
    world.engine.finish(ahead, NOW)
    assert state_of(attempt) is ATTEMPT_TRANSITIONS[AttemptState.BEHIND, event]


def test_the_tests_above_go_through_the_whole_table() -> None:
    met = {*product(BORN, ACTS), *product([AttemptState.NEW], ARRIVALS), *product([AttemptState.BEHIND], TURNS)}
    assert met >= ATTEMPT_TRANSITIONS.keys()
    assert {*ACTS, *ARRIVALS, *TURNS} == set(AttemptEvent)


def test_the_next_attempt_of_a_work_waits_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.replaced()
    [again] = world.engine.take(1, SOON)
    assert (again.number, state_of(again)) == (2, AttemptState.RUNNING)


def test_a_work_that_waits_for_its_batch_is_ready_as_soon_as_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.engine.let_batches_fill(2, linger=1.0)
    first = world.receive()
    assert state_of(first) is AttemptState.WAITING
    second = world.receive()
    assert (state_of(first), state_of(second)) == (AttemptState.READY, AttemptState.BEHIND)
