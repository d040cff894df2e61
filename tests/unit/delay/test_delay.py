"""Delay topics, due times, schedules, recurrence and the brokers' clock, on their own."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.delay.broker_clock import BrokerClock
from headway.core.delay.changes import Changes, Settled, read_command
from headway.core.delay.ladder import MEMORY, Ladder, fit, time_in
from headway.core.delay.recurrence import Recurrence
from headway.core.delay.relay_tick import Search
from headway.core.delay.schedule import HandleParts, Schedule, read_schedule
from headway.delay.commands import Commands
from headway.delay.due_time import due_at
from headway.delay.records import RelayRecord, Writing
from headway.delay.relay.refusals import is_refused_too
from headway.delay.relay.search import Searcher, search_ranges
from headway.delay.scheduler import Scheduler
from headway.delay.topic_names import TopicNames
from headway.errors import ConfigError, DeliveryError, KafkaError, ScheduleError
from headway.runtime.wakeup import Wakeup
from headway.spark.sink.scheduled_rows import find_delay_topics


@given(st.integers(0, 10**11))
def test_a_record_never_waits_in_lines_longer_than_its_delay(delay: int) -> None:
    waited = sum(time_in(delay_topic) for _, delay_topic in Ladder.exponential().path(delay))
    assert waited <= delay
    assert delay - waited < 2000


@pytest.mark.parametrize(
    ("delay_topics", "sentence"),
    [
        ((), "1 to 64 delays"),
        ((2000, 1000), "longer than the one before"),
        ((100,), "shortest delay of the ladder is 0.1 s"),
    ],
)
def test_a_ladder_that_is_none_is_refused(delay_topics: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Ladder(delay_topics)


def test_the_longest_line_is_open() -> None:
    ladder = Ladder((1000, 4000))
    assert [delay_topic for _, delay_topic in ladder.path(13_000)] == [4000, 4000, 4000, 1000]
    assert ladder.delay_for(10**12) == 4000
    assert ladder.delay_for(900) == MEMORY


@pytest.mark.parametrize("seed", range(20))
def test_fitting_finds_the_best_of_all_nested_ladders(seed: int) -> None:
    draw = random.Random(seed)
    delays = {draw.randrange(1, 40) * 1000: draw.randrange(1, 10) for _ in range(5)}
    count = draw.randrange(1, 5)

    def moves(delay_topics: tuple[int, ...]) -> float:
        total = 0
        for delay, weight in delays.items():
            left = delay
            for delay_topic in reversed(delay_topics):
                total += weight * (left // delay_topic)
                left %= delay_topic
        return total

    found = fit(delays, count).delays
    smooth = [n for n in range(2, 40) if not _without(n, (2, 3, 5)) > 1 or n * 1000 in delays]
    nested = (
        (1000, *(n * 1000 for n in rest))
        for size in range(count)
        for rest in combinations(smooth, size)
        if all(b % a == 0 for a, b in zip((1, *rest), rest, strict=False))
    )
    assert moves(found) == min(map(moves, nested))


def _without(number: int, primes: tuple[int, ...]) -> int:
    for prime in primes:
        while number % prime == 0:
            number //= prime
    return number


def test_due_times_are_rounded_up_and_need_a_zone() -> None:
    assert due_at(0.0001, 5.0) == 5001
    assert due_at(timedelta(days=1), 0.0) == 86_400_000
    assert due_at(datetime(2030, 1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), 0.0) == due_at(
        datetime(2030, 1, 1, tzinfo=UTC), 0.0
    )
    with pytest.raises(ConfigError, match="has no time zone"):
        due_at(datetime(2030, 1, 1), 0.0)
    with pytest.raises(ConfigError, match="beyond the year 9999"):
        due_at(float("inf"), 0.0)
    with pytest.raises(ConfigError, match="is not a valid time"):
        due_at("tomorrow", 0.0)  # type: ignore[arg-type]


@given(st.binary(max_size=200))
def test_whatever_a_header_holds_only_a_schedule_error_is_raised(value: bytes) -> None:
    with pytest.raises(ScheduleError):
        read_schedule(value)


@pytest.mark.parametrize(
    "change", [{"due": -1}, {"due": 10**15}, {"topic": "no/topic"}, {"partition": -1}, {"generation": -1},
               {"recurrence": Recurrence(interval=1)}, {"recurrence": Recurrence(cron="1 2")},
               {"recurrence": Recurrence(cron="0 17 * * *", zone="Europe")},
               {"recurrence": Recurrence(cron="0 17 * * *", zone="x" * 300)}]
)  # fmt: skip
def test_a_schedule_that_could_not_be_delivered_is_not_read(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"id": "1", "due": 5, "at": 4, "order": 0, "topic": "t"}
    name, value = Schedule(**{**fields, **change}).header()  # type: ignore[arg-type]
    assert name == "headway.delay"
    with pytest.raises(ScheduleError):
        read_schedule(value)


@given(st.integers(0, 9999), st.integers(0, 10**14), st.integers(0, 10**14), st.text(min_size=1))
def test_a_handle_is_text_and_back(partition: int, due: int, at: int, id_: str) -> None:
    parts = HandleParts(partition, due, at, id_)
    assert HandleParts.read(str(parts)) == parts


def test_cron_follows_daylight_saving_time() -> None:
    five = Recurrence(cron="0 17 * * *", zone="Europe/Berlin")
    before = round(datetime(2026, 3, 28, 20, tzinfo=UTC).timestamp() * 1000)
    following = five.following(before, before)
    assert following is not None
    assert datetime.fromtimestamp(following / 1000, UTC) == datetime(2026, 3, 29, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    "wrong", [Recurrence(), Recurrence(cron="x"), Recurrence(cron="0 0 * * *", zone="Mars/Base"),
              Recurrence(cron="0 0 * * *", zone="Europe"), Recurrence(cron="0 0 * * *", zone="x" * 300),
              Recurrence(interval=5), Recurrence(interval=1000, older_than=-1),
              Recurrence(interval=1000, expires_after=-1),
              Recurrence(interval=1000, misfire="x")]  # type: ignore[arg-type]
)  # fmt: skip
def test_a_recurrence_that_is_none_is_refused(wrong: Recurrence) -> None:
    with pytest.raises(ConfigError):
        wrong.check()


def test_on_a_machine_without_time_zones_utc_is_known_and_of_others_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(key: str) -> None:
        raise ZoneInfoNotFoundError(key)

    monkeypatch.setattr("headway.core.delay.recurrence.ZoneInfo", unknown)
    daily = Recurrence(cron="0 17 * * *")
    daily.check()
    assert daily.following(0, 0) == 17 * 3_600_000
    with pytest.raises(ConfigError, match=r"the time zone 'Europe/Berlin'.* pip install --upgrade tzdata"):
        Recurrence(cron="0 17 * * *", zone="Europe/Berlin").check()


@given(st.lists(st.tuples(st.floats(0.001, 3), st.floats(0, 0.02), st.floats(0, 0.02)), min_size=1, max_size=50))
def test_the_clock_is_never_ahead_of_the_brokers(samples: list[tuple[float, float, float]]) -> None:
    offset, monotonic, clock = 1_700_000_000_123.7, 100.0, BrokerClock()
    for pause, there, back in samples:
        sent = monotonic + pause
        stamped = int(offset + (sent + there) * 1000)
        monotonic = sent + there + back
        clock.observe(stamped, sent, monotonic)
        assert clock.now(monotonic) <= offset + monotonic * 1000
        assert clock.now(monotonic) >= offset + monotonic * 1000 - back * 1000 - 2


@pytest.mark.parametrize("step", [-3_600_000, 3_600_000])
def test_the_clock_follows_a_step_with_the_next_observation(step: int) -> None:
    clock = BrokerClock()
    clock.observe(1_000_000_000, 10.0, 10.002)
    clock.observe(1_000_001_000 + step, 11.0, 11.002)
    assert abs(clock.now(11.002) - (1_000_001_000 + step)) <= 1


def test_an_answer_that_nobody_waits_for_any_more_ends_neither_those_that_do_nor_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Answers:
        """In place of their reader: what the test says comes."""

        def __init__(
            self, config: object, topic: str, partition: int, answered: Callable[[str, bytes], None], refused: object
        ) -> None:
            self.comes = answered
            readers.append(self)

        def close(self) -> None:
            pass

    monkeypatch.setattr("headway.delay.commands.TailReader", Answers)
    readers: list[Answers] = []
    tokens: list[str] = []

    def send(topic: str, value: bytes, key: str, partition: int) -> "Future[None]":
        tokens.append(read_command(value).token)
        stored: Future[None] = Future()
        stored.set_result(None)
        return stored

    async def give_up(answer: "Future[Settled]") -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(answer), 0)

    asking, parts = Commands({}, TopicNames("delay"), 1, send), HandleParts(0, 5, 4, "1")
    late, never, good, left = (asking.ask(parts, None, answered=True)[1] for _ in range(4))
    assert late
    assert never
    assert good
    assert left
    asyncio.run(give_up(late))
    asyncio.run(give_up(never))
    [reader] = readers
    reader.comes(tokens[0], b"cancelled")
    reader.comes(tokens[2], b"cancelled")
    assert good.result(0) is Settled.CANCELLED
    asking.close()
    assert isinstance(left.exception(0), DeliveryError)


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [("message.max.bytes", 2_031_617, "must be at most 2031616"), ("message.max.bytes", "2m", "must be a whole number"),
     ("message.timeout.ms", 60_001, "must be from 1 to 60000"), ("delivery.timeout.ms", "abc", "whole number"),
     ("message.timeout.ms", 0, "from 1 to 60000")]
)  # fmt: skip
def test_settings_with_which_a_relay_would_miss_a_record_or_could_not_move_it_are_refused(
    setting: str, value: object, sentence: str
) -> None:
    config = {"bootstrap.servers": "localhost:1", setting: value}
    with pytest.raises(ConfigError, match=f"{setting} is .*{sentence}"):
        Scheduler(config)
    with pytest.raises(ConfigError, match=sentence):
        find_delay_topics(config, "delay")


@pytest.mark.parametrize("field", ["topic", "other", "misfire"])
def test_what_a_dead_letter_says_of_a_forged_header_is_short_however_large_that_is(field: str) -> None:
    recurrence = {"interval": 1000, "misfire": "x" * 1_000_000}
    fields = {"id": "1", "due": 5, "at": 4, "order": 0, "topic": "t"} | {
        field: recurrence if field == "misfire" else "x" * 1_000_000
    }
    with pytest.raises(ScheduleError) as raised:
        read_schedule(msgspec.json.encode(fields))
    writing = Writing(TopicNames("delay"), Ladder((1000,)), lambda topic, within: 1, lambda topic: None, Counter())
    letter = writing.dead_letter(Stored(), raised.value, "of that")
    assert sum(len(name) + len(value or "") for name, value in letter.headers or ()) < 5000


class Stored:
    """A record in a line."""

    def __getattr__(self, name: str) -> Callable[[], Any]:
        fields = {"topic": "delay.line-0", "partition": 0, "offset": 7, "timestamp": (2, 5), "headers": []}
        return lambda: fields.get(name)


def refused_out(size: int = 100, key: bytes | None = b"k", topic: str = "t", partition: int = -1) -> RelayRecord:
    return RelayRecord(topic, b"x" * size, key, partition, 0, None, source=object())


@pytest.mark.parametrize(
    ("error", "other", "likewise"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", refused_out(1), True),
        ("UNKNOWN_TOPIC_OR_PART", refused_out(1), True),
        ("UNKNOWN_TOPIC_OR_PART", refused_out(partition=1), False),
        ("UNKNOWN_TOPIC_OR_PART", refused_out(topic="u"), False),
        ("UNKNOWN_TOPIC_OR_PART", RelayRecord("t", b"", b"", -1, 0, None), False),  # one of our own
        ("MSG_SIZE_TOO_LARGE", refused_out(100), True),
        ("MSG_SIZE_TOO_LARGE", refused_out(99), False),
        ("MSG_SIZE_TOO_LARGE", refused_out(99, b"kk"), True),
        ("MSG_SIZE_TOO_LARGE", refused_out(101, None), True),
        (
            "MSG_SIZE_TOO_LARGE",
            RelayRecord("t", b"x" * 90, b"k", -1, 0, [("head", b"value")], source=object()),
            True,
        ),
        ("INVALID_RECORD", refused_out(), False),
    ],
)
def test_of_one_refused_record_only_what_kafka_must_refuse_likewise_is_taken_to_be_refused(
    error: str, other: RelayRecord, likewise: bool
) -> None:
    assert is_refused_too(error, refused_out(), other) is likewise


def test_what_has_no_key_is_refused_likewise_where_a_key_is_missing() -> None:
    assert is_refused_too("INVALID_RECORD", refused_out(key=None), refused_out(1, key=None))
    assert not is_refused_too("INVALID_RECORD", refused_out(key=None), refused_out())


class ReadDelayTopics:
    """What a search reads of Kafka: the delay topics that exist, all without a record; one has no leader."""

    def __init__(self, *delay_topics: int, away: int | None = None) -> None:
        self._delay_topics = dict.fromkeys(map(TopicNames("delay").delay_topic, delay_topics), 4)
        self._away = None if away is None else TopicNames("delay").delay_topic(away)

    def __call__(self, *_: object) -> "ReadDelayTopics":
        return self

    def topics(self) -> dict[str, int]:
        return self._delay_topics

    def ends(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        [(topic, number)] = places
        if topic == self._away:
            raise KafkaError("The leader is away.")
        return {(topic, number): 0} if topic in self._delay_topics else {}

    def offset_at(self, *_: object) -> int:
        return 0

    def read(self, *_: object) -> list[object]:
        return []

    def close(self) -> None:
        pass


def searched(
    delay_topics: ReadDelayTopics, monkeypatch: pytest.MonkeyPatch, search: Search
) -> list[tuple[int, Search, object]]:
    """What a search in partition 3 comes to."""
    monkeypatch.setattr("headway.delay.relay.search.GroupInspector", delay_topics)
    monkeypatch.setattr("headway.delay.relay.search.Admin", delay_topics)
    with closing(Wakeup()) as wake, closing(Searcher({}, TopicNames("delay"), wake)) as searcher:
        searcher.search(3, search, Ladder((1000,)), {MEMORY: 0, 1000: 7}, now=2000)
        wake.wait(30)
        return list(searcher.results())


def test_a_search_passes_over_a_line_whose_topic_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search("1", 5000, 0, 0)
    assert searched(ReadDelayTopics(MEMORY), monkeypatch, search) == [(3, search, None)]


@pytest.mark.parametrize("away", [1000, 4000])
def test_a_search_of_a_line_that_cannot_be_read_does_not_count(away: int, monkeypatch: pytest.MonkeyPatch) -> None:
    [(_, counted, found)] = searched(
        ReadDelayTopics(MEMORY, 1000, 4000, away=away), monkeypatch, Search("1", 5000, 0, 0, 9)
    )
    assert (counted.tries, found) == (0, None)


def test_a_search_begins_where_the_record_is_now_and_tries_each_line_once_more() -> None:
    ladder, day = Ladder((1_000, 60_000, 3_600_000)), 86_400_000
    search = Search("1", due=30 * day, at=0, live=0)
    first, *others = search_ranges(search, ladder, [MEMORY, *ladder.delays], now=10 * day)
    assert first.delay_topic == 3_600_000
    assert 0 <= 10 * day - first.first <= 3_600_000
    assert [stretch.delay_topic for stretch in others] == list(ladder.delays)


def test_a_change_that_is_made_again_and_again_is_to_be_forgotten_once() -> None:
    changes = Changes()
    changes.change("1", was_due=1_000, due=10**9)
    for time in range(1_000):
        changes.recurs("1", 2, time)
    assert changes.expiring == 1
    assert changes.forget(10**9, most=10) == 0
    assert changes.forget(10**9 + 1, most=10) == 1
    assert changes.get("1") is None
