"""Edits of records that wait, against the fate of each record: handled, moved or dropped, once, whatever happens."""

from collections import Counter
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.engine.attempt import Attempt, FinalOutcome
from headway.core.engine.engine import Engine
from headway.core.engine.lanes import Ordering
from headway.core.offsets.offset_map import OffsetMap, decode_map
from headway.core.retry import GiveUp, KeepInPlace, Move
from headway.core.waiting.decisions import decide_edits
from headway.core.waiting.requests import Edit, EditRequest, Fate
from headway.records.record_types import TopicPartition

ORDERS = TopicPartition("orders", partition=0)
NOW = 100.0
KEYS = [b"a", b"a", b"b", None]


class Record(NamedTuple):
    offset: int
    raw_key: bytes | None


class Ended(NamedTuple):
    """An output: what became of a record."""

    offset: int
    fate: str


class EveryRecordEndsOnce(RuleBasedStateMachine):
    """A log, a group's commit, and what is stored with it; the engine is the member that owns the partition."""

    @initialize(ordering=st.sampled_from([Ordering.KEY, Ordering.KEY, Ordering.KEY_IF_ANY, Ordering.UNORDERED]))
    def begin(self, ordering: Ordering) -> None:
        self.log: list[Record] = []
        self.committed = OffsetMap(0)
        self.stored: list[Ended] = []
        self.ordering = ordering
        self.own()
        self.write([b"a", b"a", b"b", b"a", None, b"b", b"a"])
        self.fetch(5)

    def own(self) -> None:
        self.engine: Engine[Record] = Engine(self.ordering, size_of=lambda record: 1, size_of_output=lambda each: 1)
        self.engine.assign(ORDERS, self.committed)
        self.position = self.committed.offset
        self.running: list[Attempt[Record]] = []

    @rule(number=st.integers(0, 3))
    def lose_and_get(self, number: int) -> None:
        """The owner dies, or loses the partition: what is not committed has not happened."""
        if number == 0:
            self.own()
            self.fetch(5)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def write(self, keys: list[bytes | None]) -> None:
        self.log += [Record(offset, key) for offset, key in enumerate(keys, len(self.log))]

    @rule(count=st.integers(1, 6))
    def fetch(self, count: int) -> None:
        fetched = self.log[self.position : self.position + count]
        self.position += len(fetched)
        self.engine.receive(ORDERS, fetched, NOW)

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        for attempt in self.engine.take(count, NOW):
            if attempt.outcome is not None:  # it was to be moved when its turn comes
                assert self.engine.finish(attempt, NOW, [Ended(attempt.offset, "moved")])
                continue
            self.running.append(attempt)

    @rule(count=st.integers(1, 4))
    def take_a_batch(self, count: int) -> None:
        for attempt in self.engine.take_batch(count, NOW):
            if attempt.outcome is not None:
                assert self.engine.finish(attempt, NOW, [Ended(attempt.offset, "moved")])
                continue
            self.running.append(attempt)

    @rule(data=st.data(), end=st.sampled_from(["handled", "handled", "retried", "parked", "kept"]))
    def end_one(self, data: st.DataObject, end: str) -> None:
        if self.running:
            attempt = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            if end == "handled":
                assert self.engine.finish(attempt, NOW, [Ended(attempt.offset, "handled")])
            elif end == "kept":
                self.engine.fail(attempt, OSError(), KeepInPlace(GiveUp("it failed for good")), NOW)
            elif end == "retried":
                assert self.engine.retry(attempt, NOW, OSError(), NOW)
            else:
                self.engine.park(attempt, NOW, NOW + 1)

    @rule(holds=st.booleans())
    def hold_or_release(self, holds: bool) -> None:
        self.engine.hold([ORDERS]) if holds else self.engine.release([ORDERS], NOW)

    @rule(data=st.data(), edit=st.sampled_from([*Edit, Edit.MOVE]), break_order=st.booleans())
    def edit(self, data: st.DataObject, edit: Edit, break_order: bool) -> None:
        first = max(0, min(len(self.log) - 8, self.committed.offset))
        offsets = data.draw(st.sets(st.integers(first, len(self.log) - 1), min_size=1, max_size=5))
        request = EditRequest(data.draw(st.sampled_from(["r1", "r2"])), "billing", edit, (), 0, break_order=break_order)
        lanes = self.engine.open_lanes(ORDERS, self.running)
        assert lanes is not None
        unread = {each: self._lane_of(each) for each in self.engine.unread(ORDERS, offsets)}
        decided = decide_edits(request, offsets, lanes, unread, self._earlier(offsets))
        assert decided.keys() == offsets
        for offset, decision in decided.items():
            assert decision.fate is not Fate.DONE or edit is not Edit.LOOK
            if edit is Edit.NEXT:
                if decision.attempt is not None:
                    self.engine.put_first(lanes, decision.attempt)
            elif decision.fate is Fate.DONE:
                if edit is Edit.MOVE and not break_order:
                    assert not [each for each in lanes.in_lane(self._lane_of(offset)) if each.offset < offset]
                ended = [Ended(offset, edit)]
                if decision.attempt is None:
                    self.engine.end_ahead(lanes, offset, ended)
                else:
                    self.engine.end_waiting(lanes, decision.attempt, ended)
            elif decision.fate is Fate.TURN:
                assert decision.attempt is not None
                decision.attempt.not_before = 0.0
                decision.attempt.outcome = FinalOutcome(OSError(), Move("other", "moved", request.id))
        self.engine.close_lanes(lanes, NOW)

    def _earlier(self, offsets: set[int]) -> dict[int, int]:
        """What the asker knows: the first other record of the same key that the group has not committed."""
        found: dict[int, int] = {}
        for offset in offsets:
            key = self.log[offset].raw_key
            others = [each.offset for each in self.log[:offset] if each.raw_key == key and each.offset not in offsets]
            if first := [each for each in others if each >= self.committed.offset]:
                found[offset] = min(first)
        return found

    def _lane_of(self, offset: int) -> Any:
        return self.engine.lane_of(self.log[offset])

    @rule(arrives=st.booleans())
    def commit(self, arrives: bool) -> None:
        tick = self.engine.tick()
        if not arrives or not tick.commits:
            return
        [commit] = tick.commits.values()
        self.committed = decode_map(commit.metadata, commit.offset)
        self.stored += tick.outputs
        self.engine.committed(tick)

    @invariant()
    def no_record_ends_twice(self) -> None:
        if not hasattr(self, "stored"):
            return
        assert len({each.offset for each in self.stored}) == len(self.stored)

    @invariant()
    def what_is_done_is_what_is_stored(self) -> None:
        if not hasattr(self, "stored"):
            return
        ahead = {offset for done in self.committed.complete for offset in done}
        assert {each.offset for each in self.stored} == {*range(self.committed.offset), *ahead}

    def teardown(self) -> None:
        if not hasattr(self, "stored"):
            return
        self.engine.release([ORDERS], NOW)
        while len(self.stored) < len(self.log):
            before = len(self.stored), self.engine.work_remaining, self.position
            self.fetch(100)
            released = self.engine.release_kept(self.engine.kept(), NOW)  # one can be behind another record
            for attempt in [*self.running, *self.engine.take(100, NOW + 2)]:
                fate = "handled" if attempt.outcome is None else "moved"
                self.engine.finish(attempt, NOW + 2, [Ended(attempt.offset, fate)])
            self.running = []
            self.commit(True)
            assert released or before != (len(self.stored), self.engine.work_remaining, self.position), "nothing moves"
        assert Counter(each.offset for each in self.stored) == Counter(range(len(self.log)))
        assert sum(self.engine.bytes_held) == 0


TestEveryRecordEndsOnce: Any = EveryRecordEndsOnce.TestCase
TestEveryRecordEndsOnce.settings = settings(stateful_step_count=60)
