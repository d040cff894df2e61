"""What tenants get of a level's slots, in a simulation whose handlers take known times."""

import heapq
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest

from headway.core.engine.attempt import Attempt
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.slot_policies import StrictSlots
from headway.core.engine.tenants import Tenants, Usage
from headway.core.offsets.offset_map import OffsetMap
from headway.records.record_types import TopicPartition

PARTITION = TopicPartition("orders", partition=0)


@dataclass
class Record:
    """What the engine asks of a record."""

    offset: int
    raw_key: bytes | None
    tenant: str


class Simulation:
    """Slots that run works for the seconds that `takes` says, and what each tenant got of them."""

    def __init__(
        self,
        slots: int,
        takes: Callable[[Record], float],
        weights: dict[str, float] | None = None,
        fails: Callable[[Record], bool] = lambda record: False,
        ordering: Ordering = Ordering.UNORDERED,
        batch: int | None = None,
    ) -> None:
        self.engine: Engine[Record] = Engine(ordering, tenants=weights or {})
        self.engine.count_slots(self)
        self.engine.assign(PARTITION, OffsetMap(0))
        self.slots, self.takes, self.fails, self.batch = slots, takes, fails, batch
        self.now = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.waited: dict[int, float] = {}
        self.arrived: dict[int, float] = {}
        self.done: Counter[str] = Counter()
        self._offsets = count()
        self._running: list[tuple[float, int, list[Attempt[Record]]]] = []

    def usable_slots(self) -> int:
        return self.slots

    def send(self, tenant: str, number: int = 1, key: bytes | None = None) -> list[int]:
        records = [Record(next(self._offsets), key, tenant) for _ in range(number)]
        self.arrived |= {record.offset: self.now for record in records}
        self.engine.receive(PARTITION, records, self.now, tenants=[tenant] * number)
        self._fill()
        return [record.offset for record in records]

    def run(self, until: float) -> None:
        while self._running and self._running[0][0] <= until:
            self.now, _, attempts = heapq.heappop(self._running)
            for attempt in attempts:
                self.seconds[attempt.record.tenant] += (self.now - attempt.started) / len(attempts)
                if self.fails(attempt.record):
                    self.engine.retry(attempt, self.now, ValueError(), self.now)
                else:
                    self.done[attempt.record.tenant] += 1
                    self.engine.finish(attempt, self.now)
            self._fill()
        self.now = until

    def _fill(self) -> None:
        while len(self._running) < self.slots:
            attempts = self.engine.take_batch(self.batch, self.now) if self.batch else self.engine.take(1, self.now)
            if not attempts:
                return
            for attempt in attempts:
                self.waited.setdefault(attempt.offset, self.now - self.arrived[attempt.offset])
            takes = sum(self.takes(attempt.record) for attempt in attempts)
            heapq.heappush(self._running, (self.now + takes, attempts[0].order * 1000 + attempts[0].number, attempts))


def varied() -> Callable[[Record], float]:
    return lambda record: 0.005 + 0.01 * (hash((record.offset, 7)) % 1000 / 1000)


@pytest.mark.quick("3")
@pytest.mark.parametrize("seconds", [3, 10])
def test_a_quiet_tenants_record_starts_with_the_next_free_slot_behind_a_flood(seconds: int) -> None:
    simulation = Simulation(50, varied())
    simulation.send("flood", 10_000 * seconds)
    quiet: list[int] = []
    for second in range(1, seconds + 1):
        for number in range(99):
            simulation.run(second + number / 99)
            quiet += simulation.send(f"tenant {number}")
    simulation.run(seconds + 2)
    waits = sorted(simulation.waited[offset] for offset in quiet)
    assert waits[len(waits) * 99 // 100] < 0.002  # 50 slots of 10 ms: one is free each 0.2 ms
    assert waits[-1] < 0.01


@pytest.mark.parametrize("ordering", [Ordering.UNORDERED, Ordering.KEY])
def test_a_tenant_pays_for_slow_handlers_and_not_for_their_number(ordering: Ordering) -> None:
    simulation = Simulation(8, lambda record: 0.1 if record.tenant == "slow" else 0.01, ordering=ordering)
    for key in range(200):
        simulation.send("slow", 5, b"slow %d" % key)
        simulation.send("quick", 50, b"quick %d" % key)
    simulation.run(10)
    assert simulation.seconds["slow"] == pytest.approx(simulation.seconds["quick"], rel=0.05)
    assert simulation.done["quick"] == pytest.approx(10 * simulation.done["slow"], rel=0.05)


def test_a_tenants_share_is_by_its_weight() -> None:
    simulation = Simulation(8, varied(), {"big": 2.0, "small": 0.5})
    for name in ("big", "small", "other"):
        simulation.send(name, 5_000)
    simulation.run(5)
    assert simulation.seconds["big"] == pytest.approx(2 * simulation.seconds["other"], rel=0.05)
    assert simulation.seconds["other"] == pytest.approx(2 * simulation.seconds["small"], rel=0.05)


def test_a_tenant_alone_has_all_slots_and_owes_nothing_for_it() -> None:
    simulation = Simulation(8, lambda record: 0.1)
    simulation.send("early", 2_000)
    simulation.run(10)
    simulation.send("late", 2_000)
    before = simulation.seconds.copy()
    assert before["early"] == pytest.approx(80, rel=0.02)
    simulation.run(20)
    assert simulation.seconds["early"] - before["early"] == pytest.approx(simulation.seconds["late"], rel=0.05)


def test_a_flood_is_not_starved_by_a_stream_of_new_tenants() -> None:
    simulation = Simulation(4, lambda record: 0.01)
    simulation.send("flood", 10_000)
    numbers = count()
    for tick in range(1_000):  # twice what the slots can do, each record of another tenant
        simulation.run(tick * 0.01)
        for _ in range(8):
            simulation.send(f"new {next(numbers)}")
    assert simulation.done["flood"] > 0
    waiting = simulation.engine.ready[0]
    share = simulation.done["flood"] / 4_000
    assert share >= 0.5 / waiting  # of which each would have had an equal part at the end


def test_a_batch_divides_its_time_among_its_tenants() -> None:
    simulation = Simulation(2, lambda record: 0.01, batch=10)
    simulation.send("flood", 10_000)
    simulation.send("other", 10_000)
    simulation.run(20)
    assert simulation.seconds["flood"] == pytest.approx(simulation.seconds["other"], rel=0.05)
    assert sum(simulation.engine.busiest_tenants(5).values()) == pytest.approx(40, rel=0.02)


@pytest.mark.parametrize("batch", [None, 5])
def test_failing_records_of_one_tenant_leave_the_others_their_slots(batch: int | None) -> None:
    simulation = Simulation(8, lambda record: 0.01, fails=lambda record: record.tenant == "bad", batch=batch)
    simulation.send("bad", 200)
    simulation.run(1)
    simulation.send("good", 2_000)
    before = simulation.seconds["bad"]
    simulation.run(3)
    assert simulation.seconds["bad"] - before <= 0.3 * 16  # a quarter of 8 slots for 2 s
    assert simulation.done["good"] >= 1_100


def test_a_healthy_retry_does_not_wait_behind_those_of_another_tenant() -> None:
    failed: set[int] = set()

    def fails(record: Record) -> bool:
        if record.tenant == "bad":
            return True
        is_first = record.offset not in failed
        failed.add(record.offset)
        return is_first

    simulation = Simulation(8, lambda record: 0.01, fails=fails)
    simulation.send("bad", 5_000)
    simulation.run(10)
    simulation.send("good", 1)
    simulation.run(10.05)
    assert simulation.done["good"] == 1


def test_tenants_without_works_and_debt_are_forgotten() -> None:
    tenants = Tenants({}, Usage())
    flood = tenants.join("flood", 100_000)
    for number in range(5_000):
        charged = tenants.start(tenants.join(f"once {number}", 1), in_turn=True)
        tenants.end(f"once {number}", 0.01, charged)
        for _ in range(2):
            tenants.end("flood", 0.01, tenants.start(flood, in_turn=True))
        assert len(tenants.remembered) < 10


def test_a_slow_handlers_time_counts_when_it_ends() -> None:
    tenants = Tenants({}, Usage())
    account = tenants.join("a", 2)
    charged = tenants.start(account, in_turn=True)
    tenants.end("a", 60.0, charged)
    assert account.time == pytest.approx(60, rel=0.01)
    charged = tenants.start(account, in_turn=True)  # which is charged for as much as the last took
    assert account.time == pytest.approx(120, rel=0.01)
    other = tenants.join("b", 1)
    tenants.end("a", 1.0, charged)
    assert other.ready == 1
    again = tenants.join("a", 1)
    assert again.time == pytest.approx(120, rel=0.01)  # it never goes back
    tenants.start(again, in_turn=True)
    assert again.time < 125  # but what was too much is taken off the next charge


def test_strict_sees_the_oldest_record_of_all_tenants() -> None:
    engine: Engine[Record] = Engine(Ordering.UNORDERED, levels=2, slots=StrictSlots(1.0), tenants={})
    low, high = (TopicPartition("orders", partition=0, level=level) for level in range(2))
    for partition in (low, high):
        engine.assign(partition, OffsetMap(0))
    engine.receive(low, [Record(0, None, "a")], 0.0, tenants=["a"])
    engine.receive(low, [Record(1, None, "b")], 5.0, tenants=["b"])
    engine.receive(high, [Record(index, None, "c") for index in range(20)], 5.0, tenants=["c"] * 20)
    levels = [attempt.level for attempt in engine.take(8, 5.0)]
    assert levels.count(0) == 1  # b's record has not waited for too long
    assert levels[0] == 0


def test_busy_tenants_are_named_and_the_others_forgotten() -> None:
    usage = Usage(100)
    for number in range(10_000):
        usage.add("busy", 1.0)
        usage.add("busier", 2.0)
        usage.add(f"once {number}", 1.0)
    assert usage.busiest(2) == {"busier": 20_000.0, "busy": 10_000.0}
    assert len(usage.busiest(1_000)) <= 100


def test_records_that_are_left_out_or_come_again_leave_the_others_their_tenants() -> None:
    engine: Engine[Record] = Engine(Ordering.UNORDERED, tenants={})
    engine.assign(PARTITION, OffsetMap(0, (1, 2)))  # 1 and 2 are done
    records = [Record(offset, None, f"tenant {offset}") for offset in (0, 1, 2, 3, 2, 4)]
    engine.receive(PARTITION, records, 0.0, tenants=[record.tenant for record in records])
    attempts = engine.take(10, 0.0)
    assert [(attempt.offset, attempt.tenant) for attempt in attempts] == [(2, "tenant 2"), (4, "tenant 4")]


def test_a_tenant_with_a_single_waiting_record_takes_little_memory() -> None:
    def bytes_per_record(tenants: list[str]) -> float:
        engine: Engine[Record] = Engine(Ordering.UNORDERED, tenants={})
        engine.assign(PARTITION, OffsetMap(0))
        records = [Record(offset, None, tenant) for offset, tenant in enumerate(tenants)]
        tracemalloc.start()
        engine.receive(PARTITION, records, 0.0, tenants=tenants)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return taken / len(tenants)

    names = [f"tenant {number}" for number in range(1000)]
    assert bytes_per_record(names) < bytes_per_record(["tenant"] * 1000) + 2500  # 4,900 with deques for each rotation
