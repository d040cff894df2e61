"""Progress against sets: whatever is received and completed, in whatever order, through restarts."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.offsets.offset_map import OffsetMap, commit_of, decode_map
from headway.core.offsets.progress import Progress

LOG = 400


class ProgressOfALog(RuleBasedStateMachine):
    """A log with holes, read in order by one incarnation after the other; what is done is done for good."""

    @initialize(holes=st.sets(st.integers(0, LOG - 1)), start=st.integers(0, 50))
    def begin(self, holes: set[int], start: int) -> None:
        self.log = [offset for offset in range(start, LOG) if offset not in holes]
        self.done: set[int] = set()
        self.restart_from(OffsetMap(start))

    def restart_from(self, start: OffsetMap) -> None:
        self.progress = Progress(start)
        self.unread = [offset for offset in self.log if offset >= start.offset]
        self.running: list[int] = []
        self.lowest_allowed = start.offset

    @rule(count=st.integers(0, 60))
    def receive(self, count: int) -> None:
        batch, self.unread = self.unread[:count], self.unread[count:]
        fresh = self.progress.receive(batch)
        assert list(fresh) == [offset for offset in batch if offset not in self.done]
        self.running += fresh

    @rule(data=st.data(), count=st.integers(1, 20))
    def complete(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.running))):
            offset = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            self.progress.complete(offset)
            self.done.add(offset)

    @rule()
    def poll_up_to_the_next_record(self) -> None:
        self.progress.advance(self.unread[0] if self.unread else LOG)

    @rule(offset=st.integers(0, LOG))
    def complete_something_else(self, offset: int) -> None:
        if offset not in self.running:
            self.progress.complete(offset)

    @rule()
    def crash_after_a_commit(self) -> None:
        commit = commit_of(self.progress.snapshot())
        self.restart_from(decode_map(commit.metadata, commit.offset, LOG))

    @invariant()
    def nothing_incomplete_is_passed(self) -> None:
        committable = self.progress.committable
        assert all(offset in self.done for offset in self.log if offset < committable)
        assert committable >= self.lowest_allowed
        self.lowest_allowed = committable
        if self.running:
            assert committable == min(self.running)

    @invariant()
    def the_snapshot_is_exactly_what_is_done(self) -> None:
        snapshot = self.progress.snapshot()
        assert snapshot.offset == self.progress.committable
        complete = {offset for run in snapshot.complete for offset in run}
        for offset in self.log:
            if offset >= snapshot.offset:
                assert (offset in complete) == (offset in self.done)
        assert snapshot.end == max([snapshot.offset, *(offset + 1 for offset in self.done)])

    @invariant()
    def the_counts_agree(self) -> None:
        assert self.progress.incomplete_count == len(self.running)
        assert all(self.progress.is_done(offset) == (offset in self.done) for offset in self.log)


ProgressOfALog.TestCase.settings = settings(max_examples=settings().max_examples, stateful_step_count=30)
test_progress_agrees_with_a_model_of_sets = ProgressOfALog.TestCase
