"""The fetch buffer beside lists: order within a partition, turns, who is held, and what is set aside."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.levels.fetch_buffer import FetchBuffer

Name = tuple[str, int]
Record = tuple[Name, int]

NAMES: list[Name] = [(topic, number) for topic, count in (("mail", 4), ("sms", 1)) for number in range(count)]
names = st.sampled_from(NAMES)
LEAST, MOST = 1000, 8000
TURN = 16  # records of one partition, if few are asked for


class BufferOfLists(RuleBasedStateMachine):
    """Partitions of two topics, and records that come, leave, are set aside and forgotten."""

    @initialize()
    def begin(self) -> None:
        self.buffer: FetchBuffer[Name, Record] = FetchBuffer(LEAST, MOST, 0.2)
        self.numbers = Counter[Name]()
        self.waiting: dict[Name, list[Record]] = {name: [] for name in NAMES}
        self.aside: set[Name] = set()
        self.held: set[Name] = set()

    @rule(name=names, count=st.integers(0, 60), size=st.sampled_from([1, 10, 100]))
    def put(self, name: Name, count: int, size: int) -> None:
        first = self.numbers[name]
        records = [(name, number) for number in range(first, first + count)]
        self.numbers[name] += count
        self.buffer.put(name[0], name, list(records), size * count)
        self.waiting[name] += records

    def given_out(self, records: list[Record]) -> None:
        for name, number in records:
            assert name not in self.aside
            assert self.waiting[name].pop(0) == (name, number)

    @rule(limit=st.integers(0, 100))
    def take(self, limit: int) -> None:
        expected = min(limit, len(self.buffer))
        records = self.buffer.take(limit)
        assert len(records) == expected
        self.given_out(records)

    @rule(limit=st.integers(0, 100))
    def take_quiet(self, limit: int) -> None:
        records = self.buffer.take_quiet(limit)
        assert len(records) <= limit
        assert all(count <= TURN for count in Counter(name for name, _ in records).values())
        self.given_out(records)

    @rule(name=names)
    def set_aside(self, name: Name) -> None:
        self.buffer.set_aside(name)
        self.aside.add(name)

    @rule(name=names)
    def restore(self, name: Name) -> None:
        self.buffer.restore(name)
        self.aside.discard(name)

    @rule(name=names)
    def drop(self, name: Name) -> None:
        self.buffer.drop(name)
        self.waiting[name].clear()
        self.held.discard(name)

    @rule(name=names)
    def forget(self, name: Name) -> None:
        self.buffer.forget(name)
        self.waiting[name].clear()
        self.aside.discard(name)
        self.held.discard(name)

    @rule(name=names)
    def hold_one(self, name: Name) -> None:
        assert self.buffer.hold_one(name) == (name not in self.held)
        self.held.add(name)

    @rule(pace=st.sampled_from([0.0, 10.0, 1000.0, 1e6]))
    def keep_pace(self, pace: float) -> None:
        self.buffer.keep_pace(pace)

    @rule()
    def balance(self) -> None:
        released = self.buffer.release()
        assert self.held.issuperset(released)
        assert not any(self.waiting[name] for name in released)
        self.held.difference_update(released)
        was_full = self.buffer.is_full
        held = self.buffer.hold()
        assert self.held.isdisjoint(held)
        assert was_full or not held
        self.held.update(held)
        alone = [name for name, records in self.waiting.items() if records and name not in self.aside]
        assert not (was_full and len(alone) == 1) or alone[0] in self.held

    @rule()
    def whoever_is_held_comes_back_when_all_is_taken(self) -> None:
        for name in list(self.aside):
            self.restore(name)
        self.take(len(self.buffer))
        assert self.buffer.wants_more == bool(self.held)
        self.balance()
        self.balance()  # since the first one nothing has come
        assert not self.held

    @invariant()
    def it_knows_what_waits(self) -> None:
        if not hasattr(self, "buffer"):
            return
        assert len(self.buffer) == sum(len(of) for name, of in self.waiting.items() if name not in self.aside)
        assert set(self.buffer.held) == self.held
        for name, records in self.waiting.items():
            assert self.buffer.first(name) == (records[0] if records else None)


TestBufferOfLists = BufferOfLists.TestCase


def filled(counts: dict[Name, int], size: int = 1) -> FetchBuffer[Name, Record]:
    buffer: FetchBuffer[Name, Record] = FetchBuffer(LEAST, MOST, 0.2)
    for name, count in counts.items():
        buffer.put(name[0], name, [(name, number) for number in range(count)], size * count)
    return buffer


@given(floods=st.integers(1, 300), limit=st.integers(1, 500), quiet=st.integers(1, TURN))
def test_a_quiet_partition_is_in_what_is_taken_next_but_one_however_many_are_flooded(
    floods: int, limit: int, quiet: int
) -> None:
    buffer = filled({("flood", number): 1000 for number in range(floods)})
    buffer.take(limit)
    buffer.put("quiet", ("quiet", 0), [(("quiet", 0), number) for number in range(quiet)], quiet)
    records: list[Record] = []
    for _ in range(2 * -(-quiet // limit) + 1):
        records += buffer.take(limit)
    assert [number for (topic, _), number in records if topic == "quiet"] == list(range(quiet))


@given(quiet=st.integers(1, 200), limit=st.integers(2, 100))
def test_many_quiet_partitions_leave_a_flood_about_half(quiet: int, limit: int) -> None:
    buffer = filled({("flood", 0): 10_000})
    of_flood = 0
    for turn in range(10):
        for number in range(quiet):
            buffer.put("quiet", ("quiet", number), [(("quiet", number), turn)], 1)
        of_flood += sum(topic == "flood" for (topic, _), _ in buffer.take(limit))
    assert of_flood >= 10 * (limit // 2)


@given(many=st.integers(1, 30))
def test_a_topic_of_many_flooded_partitions_gets_as_much_as_one_of_one(many: int) -> None:
    buffer = filled({("many", number): 1000 for number in range(many)} | {("one", 0): 1000})
    taken = Counter(topic for (topic, _), _ in (record for _ in range(5) for record in buffer.take(100)))
    assert abs(taken["many"] - taken["one"]) <= 5 * max(TURN, 100 // (many + 1))


def test_a_partition_is_held_from_when_it_has_more_than_its_share_until_nothing_of_it_comes() -> None:
    flood, other = ("mail", 0), ("mail", 1)
    buffer = filled({flood: 800, other: 1}, size=10)
    assert buffer.hold() == []  # it is just full
    buffer.put("mail", flood, [(flood, 800)], 10)
    assert buffer.hold() == [flood]
    assert buffer.release() == []
    wanted = []
    for count in (300, 500):
        buffer.take(count)
        wanted.append(buffer.wants_more)
    assert wanted == [False, True]
    assert buffer.release() == []
    buffer.put("mail", flood, [(flood, 801)], 10)
    buffer.take(3)
    assert buffer.release() == []  # something has come since then
    assert buffer.release() == [flood]


def test_a_caller_that_takes_little_has_little_waiting() -> None:
    flood = ("mail", 0)
    buffer = filled({flood: 500}, size=10)
    assert buffer.hold() == []
    buffer.keep_pace(100)  # of 10 bytes each: 200 bytes in a fifth of a second, which is less than the least
    assert buffer.hold() == [flood]
    buffer.take(450)
    assert buffer.wants_more
