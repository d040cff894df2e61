"""A scheduler, its topics and a relay without Kafka and without a clock: what the simulations of delayed delivery run.

Logs are lists, a transaction is applied whole or not at all, and a crash forgets everything but what was stored. What a
transaction has written, and what lies behind it, is seen when it is committed; until then the brokers may stop for a
while.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from headway.core.delay.changes import Command, IfPending, Put, Settled, read_command
from headway.core.delay.command_ledger import PutRecord
from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.partition_relay import PartitionRelay
from headway.core.delay.relay_tick import RelayTick, Search
from headway.core.delay.schedule import Schedule, chosen_id, read_schedule
from headway.errors import ScheduleError

START = 1_760_000_000_000
FETCH = 20
LONGEST_STOP = 3_000
LATE = 0.3  # the chance that what is there comes with a later turn only, where brokers stop now and then


@dataclass
class Record:
    """A record in a delay topic's log."""

    appended: int
    header: bytes | None
    value: object = None
    aborted: bool = False


@dataclass
class Transaction:
    """What was written, and is seen from a time on."""

    ends: int
    tick: RelayTick
    written: list[tuple[int, int]]  # delay topics and offsets

    def first(self, delay_topic: int) -> int | None:
        """Its first record's offset in a line."""
        return min((offset for other, offset in self.written if other == delay_topic), default=None)


@dataclass
class World:
    """Everything, with one relay."""

    ladder: Ladder
    draw: random.Random
    now: int = START
    room: int = 400_000
    at_once: int = FETCH
    low_latency: bool = False  # records are there before what was done is stored
    topics: dict[str, str] = field(default_factory=dict)
    stops: float = 0.0  # the chance that the brokers stop before they take, or commit, what a turn has written
    logs: dict[int, list[Record]] = field(default_factory=dict)
    commands: list[bytes | PutRecord] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    delivered: list[tuple[int, Schedule]] = field(default_factory=list)
    answers: dict[str, list[Settled]] = field(default_factory=dict)
    events: list[tuple[str, object]] = field(default_factory=list)  # tokens that are answered, and what is delivered
    refused: list[object] = field(default_factory=list)
    writes: Counter[str] = field(default_factory=Counter)
    delay_topics: tuple[int, ...] = ()
    searching: list[Search] = field(default_factory=list)
    search_ends: float = 0.5  # the chance that one does within a turn
    sending: deque[tuple[int, RelayTick]] = field(default_factory=deque)  # with low latency: when it is there
    uncommitted: deque[Transaction] = field(default_factory=deque)

    def __post_init__(self) -> None:
        for delay_topic in (MEMORY, *self.ladder.delays, *self.delay_topics):
            self.logs[delay_topic] = []
        self.crash()

    def crash(self) -> None:
        """The relay is gone, and another one begins; it ends what the first has left open."""
        for _, tick in self.sending:
            if self.draw.random() < 0.5:
                tick.state.clear()
                self._append(tick)
                self._apply(tick)
        for delay_topic, offset in (place for each in self.uncommitted for place in each.written):
            self.logs[delay_topic][offset].aborted = True
        self.sending.clear()
        self.uncommitted.clear()
        self.relay = PartitionRelay(self.ladder, list(self.logs), self.stored, self.room, self.topics)
        self.positions = {delay_topic: self.relay.start(delay_topic) for delay_topic in self.logs}
        self.commands_position = self.relay.commands_start
        self.searching.clear()

    def schedule(self, id_: str, delay: int, ago: int = 0, **more: object) -> Schedule:
        """Schedule a record; or store only now what was scheduled so many milliseconds ago."""
        at = self.now - ago
        schedule = Schedule(id_, at + delay, at, len(self.writes), "target", **more)  # type: ignore[arg-type]
        self.write(self.ladder.delay_for(delay), schedule)
        return schedule

    def write(self, delay_topic: int, schedule: Schedule) -> None:
        """Append to a delay topic's log."""
        self.writes[schedule.id] += 1
        self.logs[delay_topic].append(Record(self.now, schedule.header()[1]))  # type: ignore[arg-type]

    def ask(self, schedule: Schedule, to: int | None = None) -> str:
        """Cancel or reschedule; returns the command's token."""
        token = f"{len(self.commands)}"
        self.commands.append(Command(schedule.id, schedule.due, schedule.at, token, 0, to).encode())
        return token

    def put(self, id_: str, delay: int, if_pending: IfPending = "replace", **more: object) -> tuple[Schedule, str]:
        """Schedule under an id of one's own; returns the command's token, too."""
        token = f"{len(self.commands)}"
        schedule = Schedule(chosen_id(id_), max(0, self.now + delay), self.now, len(self.commands), "target", **more)  # type: ignore[arg-type]
        fetched = fetched_as(len(self.commands), Record(self.now, schedule.header()[1]))  # type: ignore[arg-type]
        self.commands.append(PutRecord(Put(if_pending, token), fetched, schedule))
        return schedule, token

    def fetch(self, delay_topic: int) -> None:
        """Let some of a delay topic come in."""
        log, position, end = self.logs[delay_topic], self.positions[delay_topic], self.end_of(delay_topic)
        records = log[position : min(end, position + self.at_once)]
        fetched = [fetched_as(position + i, each) for i, each in enumerate(records) if not each.aborted]
        if fetched:
            self.relay.receive(delay_topic, fetched)
        self.positions[delay_topic] += len(records)
        if self.positions[delay_topic] == end:
            self.relay.reached_end(delay_topic, end)

    def end_of(self, delay_topic: int) -> int:
        """Where the log ends for who reads what is committed."""
        firsts = (each.first(delay_topic) for each in self.uncommitted)
        return min([first for first in firsts if first is not None], default=len(self.logs[delay_topic]))

    def step(self, crash: float = 0.0) -> RelayTick:
        """One turn of the relay; with some chance it dies before, or right after, its transaction."""
        self._go_on()
        delay_topics = list(self.logs)
        self.draw.shuffle(delay_topics)
        if self.stops and self.draw.random() < LATE:
            delay_topics.clear()
        for delay_topic in delay_topics:
            if delay_topic not in self.relay.full():
                self.fetch(delay_topic)
        for value in self.commands[self.commands_position :]:
            command = value if isinstance(value, PutRecord) else read_command(value)
            self.relay.command(self.commands_position, command, self.now)
            self.commands_position += 1
        self.searching += self.relay.searches
        self.relay.searches.clear()
        while self.searching and self.draw.random() < self.search_ends:
            self.relay.found(search := self.searching.pop(0), self._search(search), self.now)
        tick = self.relay.take(self.now, 50, 1_000_000)
        if self.draw.random() < crash:
            if self.low_latency:
                tick.state.clear()
                self._append(tick)
                self._apply(tick)
            self.crash()
            return RelayTick()
        self._carry_out(tick)
        if self.draw.random() < crash:
            self.crash()
        return tick

    def _search(self, search: Search) -> Fetched | None:
        for delay_topic, log in self.logs.items():
            for offset, record in enumerate(log[: self.end_of(delay_topic)]):
                if record.aborted:
                    continue
                schedule = read_schedule(record.header)
                if search.is_for(schedule):
                    return fetched_as(offset, record)
        return None

    def _stop(self) -> int:
        """How many milliseconds the brokers stop for."""
        return self.draw.randrange(LONGEST_STOP) if self.stops and self.draw.random() < self.stops else 0

    def _carry_out(self, tick: RelayTick) -> None:
        """As the drivers do: with low latency one turn goes on before the last one's records are there.

        In transactions a turn waits until its records are written and the transaction before is committed.
        """
        if not tick:
            return
        if self.low_latency:
            at = max([self.now + self._stop(), *(at for at, _ in self.sending)])
            self.sending.append((at, tick))
        else:
            self.now += self._stop()
            written = self._append(tick)
            self.now = max([self.now, *(each.ends for each in self.uncommitted)])
            self._go_on()
            self.uncommitted.append(Transaction(self.now + self._stop(), tick, written))
        self._go_on()

    def _go_on(self) -> None:
        """Let happen what was to happen by now."""
        while self.sending and self.sending[0][0] <= self.now:
            _, tick = self.sending.popleft()
            self._append(tick)
            self._apply(tick)
        while self.uncommitted and self.uncommitted[0].ends <= self.now:
            self._apply(self.uncommitted.popleft().tick)

    def _append(self, tick: RelayTick) -> list[tuple[int, int]]:
        """Write what moves; at which delay topics and offsets."""
        written = []
        for write in tick.writes:
            assert isinstance(write.record, Record)
            if write.delay_topic is not None:
                self.write(write.delay_topic, write.schedule)
                written.append((write.delay_topic, len(self.logs[write.delay_topic]) - 1))
        if tick.moved:
            self.relay.written({delay_topic: offset + 1 for delay_topic, offset in written}, self.now)
        return written

    def _apply(self, tick: RelayTick) -> None:
        self.events += [("answered", command.token) for command, _ in tick.answers]
        for write in tick.writes:
            if write.delay_topic is None:
                self.writes[write.schedule.id] += 1
                self.delivered.append((self.now, write.schedule))
                self.events.append(("delivered", write.schedule))
        for command, settled in tick.answers:
            self.answers.setdefault(command.token, []).append(settled)
        self.refused += [refusal.record for refusal in tick.refusals]
        for key, value in tick.state.items():
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value

    def run_until(self, time: int, crash: float = 0.0) -> None:
        """Jump from one wake-up to the next."""
        while True:
            if not self.step(crash):
                wake = self.relay.next_wake(self.now)
                behind = any(
                    self.positions[delay_topic] < self.end_of(delay_topic) and delay_topic not in self.relay.full()
                    for delay_topic in self.logs
                )
                is_idle = not behind and not self.sending and not self.uncommitted
                assert not is_idle or wake > self.now, "the relay would neither wait nor do anything"
                wake = min([wake, *(at for at, _ in self.sending), *(each.ends for each in self.uncommitted)])
                self.now = max(self.now + 1, min(time, int(min(wake, time)))) if not behind else self.now + 1
            if self.now >= time:
                return


def fetched_as(offset: int, record: Record) -> Fetched:
    """A record as a relay's driver gives it to the core."""
    try:
        schedule: Schedule | ScheduleError = read_schedule(record.header)
    except ScheduleError as error:
        schedule = error
    return Fetched(offset, record.appended, 100, record, schedule)
