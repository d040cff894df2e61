"""How long a dispatch lets its thread wait: whatever the options, it neither spins nor sleeps through a start."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.engine.slot_policies import BurstSlots, FairSlots, SlotPolicy, StrictSlots
from headway.core.engine.suspects import RecordId, Suspect
from headway.core.offsets.offset_map import OffsetMap
from headway.core.retry import Retries, fixed_backoff
from headway.errors import RetriableError
from headway.execution.dispatch import Dispatch
from headway.execution.gate import Gate
from headway.execution.gates.adaptive_limit import AdaptiveLimit
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.named_rates import NamedRates
from headway.execution.gates.start_rate import StartRate
from headway.execution.gates.supervision import Supervision
from headway.execution.running_table import RunningTable, make_table_file
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup
from tests.executor_stub import ExecutorStub

LEVELS = 2
ROOM = 6  # outputs that fill a level
POLICIES: dict[str, Callable[[], SlotPolicy]] = {
    "fair": lambda: FairSlots([1, 2]),
    "strict": lambda: StrictSlots(1.0),
    "burst": lambda: BurstSlots([1, 2], window_size=2, threshold=1),
}


class Record:
    """A record that has what the dispatch and its gates look at."""

    timestamp = 7
    topic = kafka_topic = "orders"

    def __init__(self, offset: int, partition: int, key: int | None) -> None:
        self.offset, self.partition, self.raw_key = offset, partition, None if key is None else b"%d" % key


class Options:
    """What a consumer could have been given, drawn at random."""

    def __init__(self, draw: st.DrawFn) -> None:

        def sometimes(value: st.SearchStrategy[Any]) -> Any:
            return draw(st.one_of(st.none(), value))

        self.slots = draw(st.integers(1, 4))
        self.adaptive = draw(st.booleans())
        self.rate = sometimes(st.sampled_from([0.5, 3.0, 200.0]))
        self.key_rate = sometimes(st.sampled_from([0.5, 20.0]))
        self.tenant_rate = sometimes(st.sampled_from([0.5, 20.0]))
        self.circuit = draw(st.booleans())
        self.batch = sometimes(st.integers(2, 3))
        self.linger = draw(st.sampled_from([0.0, 2.0]))
        self.ordering = draw(st.sampled_from(Ordering))
        self.policy = draw(st.sampled_from(sorted(POLICIES)))
        self.supervised = draw(st.booleans())
        self.backoff = draw(st.sampled_from([0.0, 0.3, 20.0]))

    def __repr__(self) -> str:
        return repr(vars(self))


class Run:
    """A dispatch with these options, whose thread waits for as long as it is told to; time passes only there."""

    def __init__(self, options: Options, wake: Wakeup, table: int) -> None:
        self.now, self.options = 100.0, options
        self.running: list[Any] = []
        self.engine = Engine[Any](
            options.ordering,
            levels=LEVELS,
            slots=POLICIES[options.policy](),
            size_of_output=lambda _: 1,
            most_bytes=ROOM * 1000,
            size_of=lambda _: 1,
            tenants={} if options.tenant_rate else None,
            tenant_rate=options.tenant_rate,
            key_rate=options.key_rate,
        )
        self.supervision = Supervision(RunningTable(table, 64), (), lambda: None) if options.supervised else None
        gates: list[Gate | None] = [
            CircuitGate(CircuitBreaker(least=2, failing=0.3, longest=4.0)) if options.circuit else None,
            AdaptiveLimit(options.slots) if options.adaptive else None,
            StartRate(options.rate) if options.rate else None,
            NamedRates(self.engine.limits) if self.engine.limits else None,
            self.supervision,
        ]
        in_use = [gate for gate in gates if gate]
        self.dispatch = Dispatch(self.engine, Retries(fixed_backoff(options.backoff)), options.slots, wake, in_use)
        if options.batch:
            self.engine.let_batches_fill(options.batch, options.linger)
        self.dispatch.begin(
            ExecutorStub(self.running.extend), batch_size=options.batch, is_supervised=options.supervised
        )
        for level in range(LEVELS):
            self.engine.assign(TopicPartition("orders", level=level, partition=level), OffsetMap(0))
        self._offsets = [0] * LEVELS

    def come(self, level: int, keys: Sequence[int | None]) -> None:
        first = self._offsets[level]
        self._offsets[level] += len(keys)
        records = [Record(first + index, level, key) for index, key in enumerate(keys)]
        tenants = [str(record.offset % 2) for record in records] if self.options.tenant_rate else ()
        self.engine.receive(TopicPartition("orders", level=level, partition=level), records, self.now, tenants=tenants)

    def end(self, index: int, error: BaseException | None) -> None:
        job = self.running.pop(index)
        if following := self.dispatch.complete(job, error):
            self.running.append(following)

    def suspect(self, level: int, offset: int, *, alone: bool) -> None:
        if self.supervision:
            record = RecordId("orders", level, offset, 7)
            with self.dispatch.lock:
                self.supervision.suspect([Suspect(record, 0, 0, 1, alone, "ended", 0.0, 0.0)])

    def turn(self) -> int:
        """One turn of the thread; return how many jobs it has started."""
        before = len(self.running)
        self.dispatch.feed()
        return len(self.running) - before


def _check_wait(run: Run, data: st.DataObject) -> None:
    run.turn()
    change = run.dispatch.next_change(run.now)
    assert change is None or change > run.now, "the thread would not wait, and start nothing"
    # Nothing else happens until then, so nothing may have been able to start before.
    until = run.now + 100.0 if change is None else change
    run.now += data.draw(st.sampled_from([0.25, 0.5, 0.9]), label="part of the wait") * (until - run.now)
    if run.supervision is None or run.supervision.alone is None:
        assert run.turn() == 0, f"a job could start before {change}"
    run.now = max(run.now, until)


@st.composite
def options(draw: st.DrawFn) -> Options:
    return Options(draw)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(options(), st.data())
def test_a_wait_is_never_over_at_its_beginning_and_never_longer_than_the_next_start(
    options: Options, data: st.DataObject
) -> None:
    wake, table = Wakeup(), make_table_file()
    run = Run(options, wake, table)
    with patch("time.monotonic", lambda: run.now):
        for _ in range(data.draw(st.integers(5, 30), label="steps")):
            step = data.draw(st.sampled_from(["come", "end", "end", "end", "suspect", "wait"]), label="step")
            if step == "come":
                keys = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=6)
                run.come(data.draw(st.integers(0, LEVELS - 1)), data.draw(keys))
            elif step == "suspect":
                run.suspect(data.draw(st.integers(0, LEVELS - 1)), data.draw(st.integers(0, 5)), alone=False)
            elif step == "end" and run.running:
                error = data.draw(st.sampled_from([None, OSError(), RetriableError(untried=True)]))
                run.end(data.draw(st.integers(0, len(run.running) - 1)), error)
                run.now += data.draw(st.sampled_from([0.0, 0.01, 1.0]))
            _check_wait(run, data)
    wake.close()
