"""What a relay holds, and which of it is due next, as its metrics tell it."""

from headway.core.delay.changes import Command
from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.partition_relay import PartitionRelay
from headway.core.delay.schedule import EmptyRecordError, Schedule

START = 1_700_000_000_000
LINE = 1000
LADDER = Ladder((LINE,))


def relay_of() -> PartitionRelay:
    return PartitionRelay(LADDER, [MEMORY, LINE], {}, 10**6, {})


def fetched(offset: int, due_in: int) -> Fetched:
    return Fetched(offset, START, 100, object(), Schedule(f"order-{offset}", START + due_in, START, 0, "orders"))


def test_what_was_fetched_is_held_until_it_is_delivered_or_moved() -> None:
    relay = relay_of()
    assert relay.earliest_due() is None
    relay.receive(MEMORY, [fetched(0, 500), fetched(3, 200)])
    relay.receive(LINE, [fetched(7, 5000)])
    assert {place: tuple(held) for place, held in relay.held_records().items()} == {MEMORY: (2, 4), LINE: (1, 8)}
    assert relay.held_bytes == 300
    relay.reached_end(MEMORY, 4)
    relay.reached_end(LINE, 8)
    relay.take(START + 1, 50, 10**6)  # those of the memory topic leave their window, and wait in memory
    assert relay.earliest_due() == START + 200
    assert relay.held_records()[MEMORY].records == 2
    tick = relay.take(START + 2000, 50, 10**6)
    assert len(tick.writes) == 3
    assert all(held.records == 0 for held in relay.held_records().values())
    assert relay.held_bytes == 0
    assert relay.earliest_due() is None


def test_a_record_that_cannot_be_read_has_no_due_time() -> None:
    relay = relay_of()
    relay.receive(LINE, [Fetched(0, START, 100, object(), EmptyRecordError("empty"))])
    assert relay.earliest_due() is None


def test_what_is_cancelled_is_counted_once_in_a_tick() -> None:
    relay = relay_of()
    for offset in range(2):
        relay.command(offset, Command("order-7", START + 5000, START, f"token-{offset}", 0), START)
    assert relay.take(START, 50, 10**6).ended_early == 1
    assert relay.take(START, 50, 10**6).ended_early == 0
