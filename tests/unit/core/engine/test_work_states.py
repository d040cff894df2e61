"""The life of a work: each state meets each event by a public call of the engine."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from headway.core.engine import engine as module
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.work import Work
from headway.core.engine.work_states import WorkState
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition
from tests.models.work_life import WORK_TRANSITIONS, WorkEvent, state_of

ORDERS = TopicPartition("orders", partition=0)
NOW = 100.0
SOON = NOW + 5


@dataclass
class Record:
    offset: int
    raw_key: bytes = b"k"


class World:
    """An engine with one lane, and the works that it makes of records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works = works = list[Work[Any]]()

        class Noted(Work[Any]):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                works.append(self)

        monkeypatch.setattr(module, "Work", Noted)
        self.engine = Engine[Record](Ordering.KEY)
        self.engine.assign(ORDERS, OffsetMap(0))

    def receive(self, records: int = 1, *, early: bool = False) -> Work[Any]:
        """Receive records, and return the work of the last; `early` ones wait until SOON for a batch to fill."""
        if early:
            self.engine.let_batches_fill(9, linger=SOON - NOW)
        first = len(self.works)
        self.engine.receive(ORDERS, [Record(first + index) for index in range(records)], NOW)
        return self.works[-1]

    def run(self) -> Work[Any]:
        work = self.receive()
        assert self.engine.take(1, NOW) == [work]
        return work

    def lose(self) -> None:
        self.engine.revoke([ORDERS])

    # A work in each state

    def behind(self) -> Work[Any]:
        return self.receive(2)

    def waiting(self) -> Work[Any]:
        return self.receive(early=True)

    def ready(self) -> Work[Any]:
        return self.receive()

    def running(self) -> Work[Any]:
        return self.run()

    def done(self) -> Work[Any]:
        work = self.run()
        assert self.engine.finish(work, NOW)
        return work

    def replaced(self) -> Work[Any]:
        work = self.run()
        assert self.engine.retry(work, SOON, OSError(), NOW)
        return work

    def stale(self) -> Work[Any]:
        work = self.run()
        self.lose()
        return work

    def dropped(self) -> Work[Any]:
        work = self.ready()
        self.lose()
        return work


Act = Callable[[World, Work[Any]], Any]

ACTS: dict[WorkEvent, Act] = {
    WorkEvent.TIME: lambda world, work: world.engine.take(0, SOON),
    WorkEvent.TAKEN: lambda world, work: world.engine.take(9, NOW),
    WorkEvent.TAKEN_ALONG: lambda world, work: world.engine.take_batch(9, NOW),
    WorkEvent.FINISHED: lambda world, work: world.engine.finish(work, NOW),
    WorkEvent.RETRIED: lambda world, work: world.engine.retry(work, NOW, OSError(), NOW),
    WorkEvent.LEAVES: lambda world, work: world.engine.retire([ORDERS]),
    WorkEvent.GIVEN_UP: lambda world, work: world.engine.give_up([work]),
    WorkEvent.LOST: lambda world, work: world.lose(),
}
# What only works in one state can meet, since it is about the record's arrival or the work ahead of it.
ARRIVALS = {WorkEvent.RECEIVED_FIRST, WorkEvent.RECEIVED_BEHIND, WorkEvent.RECEIVED_EARLY}
TURNS = {WorkEvent.TURN, WorkEvent.TURN_EARLY}
BORN = [state for state in WorkState if state is not WorkState.NEW]


@pytest.mark.parametrize(("state", "event"), list(product(BORN, ACTS)))
def test_each_event_leads_where_the_table_says_and_any_other_changes_nothing(
    state: WorkState, event: WorkEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    work: Work[Any] = getattr(world, state.value)()
    assert state_of(work) is state
    said = ACTS[event](world, work)
    assert state_of(work) is WORK_TRANSITIONS.get((state, event), state)
    if event in (WorkEvent.FINISHED, WorkEvent.RETRIED):
        assert said is (state is WorkState.RUNNING)


@pytest.mark.parametrize(
    ("event", "records", "early"),
    [
        (WorkEvent.RECEIVED_FIRST, 1, False),
        (WorkEvent.RECEIVED_BEHIND, 2, False),
        (WorkEvent.RECEIVED_EARLY, 1, True),
    ],
)
def test_a_record_that_arrives_is_a_work_in_the_state_of_the_table(
    event: WorkEvent, records: int, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert state_of(World(monkeypatch).receive(records, early=early)) is WORK_TRANSITIONS[WorkState.NEW, event]


@pytest.mark.parametrize(("event", "early"), [(WorkEvent.TURN, False), (WorkEvent.TURN_EARLY, True)])
def test_the_end_of_the_work_ahead_is_the_next_ones_turn(
    event: WorkEvent, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    ahead = world.run()
    work = world.receive(early=early)
    assert state_of(work) is WorkState.BEHIND
    world.engine.finish(ahead, NOW)
    assert state_of(work) is WORK_TRANSITIONS[WorkState.BEHIND, event]


def test_the_tests_above_go_through_the_whole_table() -> None:
    met = {*product(BORN, ACTS), *product([WorkState.NEW], ARRIVALS), *product([WorkState.BEHIND], TURNS)}
    assert met >= WORK_TRANSITIONS.keys()
    assert {*ACTS, *ARRIVALS, *TURNS} == set(WorkEvent)


def test_the_next_attempt_of_a_work_waits_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.replaced()
    [again] = world.engine.take(1, SOON)
    assert (again.attempt, state_of(again)) == (2, WorkState.RUNNING)


def test_a_work_that_waits_for_its_batch_is_ready_as_soon_as_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.engine.let_batches_fill(2, linger=1.0)
    first = world.receive()
    assert state_of(first) is WorkState.WAITING
    second = world.receive()
    assert (state_of(first), state_of(second)) == (WorkState.READY, WorkState.BEHIND)
