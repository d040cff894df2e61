"""The life of a schedule at its relay: each state meets each event by public calls of the relay."""

from itertools import product

import pytest

from headway.core.delay.changes import Command, Settled
from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.partition_relay import PartitionRelay
from headway.core.delay.recurrence import Recurrence
from headway.core.delay.relay_tick import RelayTick, Search
from headway.core.delay.schedule import EmptyRecordError, Schedule
from tests.models.schedule_life import SCHEDULE_TRANSITIONS, ScheduleEvent, ScheduleState, state_of

START = 1_760_000_000_000
SECOND = 1000
LADDER = Ladder((10 * SECOND, 100 * SECOND))
NEVER = 3600 * SECOND


COMING_BY = {
    ScheduleEvent.COMES_BY,
    ScheduleEvent.COMES_BY_SOON,
    ScheduleEvent.COMES_BY_CANCELLED,
    ScheduleEvent.COMES_BY_MOVED,
}


class World:
    """A relay, whose delay topics and driver a test plays."""

    def __init__(self, due_in: int, recurrence: Recurrence | None) -> None:
        self.now = START
        self.relay = PartitionRelay(LADDER, [MEMORY, *LADDER.delays], {}, 10**6, {})
        self.logs: dict[int, list[Schedule]] = {delay_topic: [] for delay_topic in (MEMORY, *LADDER.delays)}
        self.commands = 0
        self.answers: list[Settled] = []
        self.delivered = 0
        self.schedule = Schedule("order-17", START + due_in, START, 0, "orders", recurrence=recurrence)
        self.delay_topic = LADDER.delay_for(due_in)

    @property
    def state(self) -> ScheduleState:
        return state_of(self.relay, self.schedule.id, self.schedule.due, self.now)

    def fetched(self) -> Fetched:
        return Fetched(0, START, 100, object(), self.schedule)

    def comes(self) -> None:
        """The record is fetched of its line."""
        self.relay.receive(self.delay_topic, [self.fetched()])
        self.logs[self.delay_topic].append(self.schedule)

    def turn(self) -> RelayTick:
        for delay_topic, log in self.logs.items():
            self.relay.reached_end(delay_topic, len(log))
        tick = self.relay.take(self.now, 50, 10**6)
        self.delivered += sum(write.delay_topic is None for write in tick.writes)
        self.answers += [settled for _, settled in tick.answers]
        return tick

    def command(self, to: int | None) -> None:
        command = Command(self.schedule.id, self.schedule.due, self.schedule.at, f"{self.commands}", 0, to)
        self.relay.command(self.commands, command, self.now)
        self.commands += 1

    def search(self) -> Search:
        [search] = self.relay.searches
        self.relay.searches.clear()
        return search

    def not_found(self) -> None:
        """One search finds nothing; a second later the relay has its next turn."""
        self.relay.found(self.search(), None, self.now)
        self.now += SECOND
        self.turn()

    # A schedule in each state

    def in_delay_topic(self) -> None:
        pass

    def in_memory(self) -> None:
        self.comes()
        self.turn()

    def changed(self) -> None:
        self.command(self.schedule.due + 200 * SECOND)

    def sought(self) -> None:
        self.command(self.schedule.due - SECOND)

    def late(self, to: int | None = None) -> None:
        self.now = self.schedule.due + 1
        self.command(to)

    def cancelled(self) -> None:
        self.command(None)

    def delivered_(self) -> None:
        self.in_memory()
        self.now = self.schedule.due
        self.turn()

    # What happens

    def happens(self, event: ScheduleEvent) -> None:
        due = self.schedule.due
        if event in COMING_BY:
            self.comes()
            self.now = max(self.now, START + LADDER.delays[-1])
            self.turn()
        elif event in (ScheduleEvent.DUE, ScheduleEvent.FIRES):
            self.now = due
            self.turn()
        elif event is ScheduleEvent.NEVER_CAME:
            self.now += NEVER
            self.turn()
        elif event is ScheduleEvent.FOUND:
            self.relay.found(self.search(), self.fetched(), self.now)
        elif event is ScheduleEvent.NOT_FOUND:
            while self.state is ScheduleState.SOUGHT:
                self.not_found()
        else:
            times = {ScheduleEvent.DEFER: due + 300 * SECOND, ScheduleEvent.ADVANCE: due - 2 * SECOND}
            self.command(times.get(event))


def world_in(state: ScheduleState, event: ScheduleEvent) -> World:
    in_memory = state in (ScheduleState.IN_MEMORY, ScheduleState.DELIVERED)
    due_in = 5 * SECOND if in_memory else 104 * SECOND if event is ScheduleEvent.COMES_BY_SOON else 150 * SECOND
    world = World(due_in, Recurrence(interval=60 * SECOND) if event is ScheduleEvent.FIRES else None)
    if event is ScheduleEvent.COMES_BY_MOVED:
        world.late(to=world.schedule.due + 50 * SECOND)
    else:
        getattr(world, "delivered_" if state is ScheduleState.DELIVERED else state.value)()
    assert world.state is state
    return world


@pytest.mark.parametrize(("state", "event"), list(SCHEDULE_TRANSITIONS), ids=lambda each: each.name)
def test_each_event_leads_where_the_table_says(state: ScheduleState, event: ScheduleEvent) -> None:
    world = world_in(state, event)
    world.happens(event)
    assert world.state is SCHEDULE_TRANSITIONS[state, event]
    assert world.delivered == (event in (ScheduleEvent.DUE, ScheduleEvent.FIRES))


COMMANDS = [ScheduleEvent.CANCEL, ScheduleEvent.DEFER, ScheduleEvent.ADVANCE]
REFUSED = [pair for pair in product(ScheduleState, COMMANDS) if pair not in SCHEDULE_TRANSITIONS]


@pytest.mark.parametrize(("state", "event"), REFUSED, ids=lambda each: each.name)
def test_any_other_command_changes_nothing(state: ScheduleState, event: ScheduleEvent) -> None:
    world = world_in(state, event)
    world.happens(event)
    assert world.state is state


def test_the_end_of_a_schedule_is_the_answer_to_what_comes_later() -> None:
    answers = {ScheduleState.CANCELLED: Settled.CANCELLED, ScheduleState.DELIVERED: Settled.DELIVERED}
    assert {state for state, _ in REFUSED} == {*answers, ScheduleState.LATE}
    for state, answer in answers.items():
        for event in COMMANDS:
            world = world_in(state, event)
            world.happens(event)
            world.turn()
            assert world.answers[-1] is answer


def test_a_cancelled_schedule_is_dropped_when_it_comes_by() -> None:
    world = world_in(ScheduleState.CANCELLED, ScheduleEvent.COMES_BY)
    world.happens(ScheduleEvent.COMES_BY)
    world.now += NEVER
    world.turn()
    assert world.delivered == 0


def test_a_record_that_is_on_its_way_when_it_is_looked_for_is_found_by_a_later_search() -> None:
    world = world_in(ScheduleState.SOUGHT, ScheduleEvent.FOUND)
    for _ in range(3):
        world.not_found()
    assert world.answers == []
    world.happens(ScheduleEvent.FOUND)
    world.turn()
    assert world.answers == [Settled.RESCHEDULED]


def test_what_no_search_finds_is_answered_as_unknown() -> None:
    world = world_in(ScheduleState.SOUGHT, ScheduleEvent.NOT_FOUND)
    world.happens(ScheduleEvent.NOT_FOUND)
    world.turn()
    assert world.answers == [Settled.UNKNOWN]


@pytest.mark.parametrize("delay_topic", [MEMORY, *LADDER.delays])
def test_an_empty_record_by_which_a_scheduler_learns_the_time_is_passed_over(delay_topic: int) -> None:
    relay = PartitionRelay(LADDER, [MEMORY, *LADDER.delays], {}, 10**6, {})
    relay.receive(delay_topic, [Fetched(0, START, 100, object(), EmptyRecordError("empty"))])
    tick = relay.take(START + NEVER, 50, 10**6)
    assert (tick.writes, tick.refusals) == ([], [])
    assert relay.start(delay_topic) == 1


def test_a_schedule_is_in_no_state_that_the_table_has_not() -> None:
    reached = {state for state, _ in SCHEDULE_TRANSITIONS} | set(SCHEDULE_TRANSITIONS.values())
    assert reached == set(ScheduleState)
    assert {event for _, event in SCHEDULE_TRANSITIONS} == set(ScheduleEvent)
