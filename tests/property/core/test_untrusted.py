"""What lies in topics, written by anybody: each decoder raises its one error, in bounded time and memory."""

import base64
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from headway.cli.dead_letters.letter_texts import letter_json, letter_page, letter_row
from headway.core.delay.changes import Change, Changes, Command, Settled, read_command, read_settled
from headway.core.delay.delay_topic_retirement import read_fit_state
from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.due_queue import Mark
from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.delay.partition_relay import PartitionRelay
from headway.core.delay.recent_delays import RecentDelays
from headway.core.delay.recurrence import Recurrence, UnknownZoneError
from headway.core.delay.relay_state import StoredState, change_key, delay_topic_key, stored_producers
from headway.core.delay.relay_tick import Search
from headway.core.delay.schedule import HandleParts, Schedule, read_schedule
from headway.core.offsets.commit_metadata import read_metadata
from headway.core.untrusted import LATEST
from headway.dead_letters import PREFIX
from headway.delay.records import RelayRecord, Writing, fetched_from
from headway.delay.relay.search import search_ranges
from headway.delay.topic_names import TopicNames
from headway.delay.topics import decode_ladder, ladder_from
from headway.errors import ConfigError, HeadwayError, KafkaError, ScheduleError, UnreadableError
from headway.inspection.letters import Letter
from headway.records.history import HEADER, History, Origin, ToldError, after_attempt, history_of, told
from headway.spark.sink.markers import Marker, read_marker

T = TypeVar("T")

NOW = 1_760_000_000_000
LADDER = Ladder((1000, 4000))
LINES = (MEMORY, 1000, 4000)
TOPICS = {"memory": "a", "line:1000": "b", "line:4000": "c", "commands": "d"}
ENDS = dict.fromkeys(TOPICS, 1000)

# What JSON has in place of a value: as bytes, for `json` would not write all of it.
TOKENS = st.one_of(
    st.sampled_from(
        [
            *(b"null", b"true", b"-0", b"-1", b"1e400", b"1.5", b"NaN", b"-Infinity", b"9" * 400, b"-" + b"9" * 5000),
            *(b"9223372036854775807", b"9223372036854775808", b"253402300799001", b'"\\ud800"', b'"\\u0000"'),
            *(b"", b"[", b"{}", b"[]", b'"', b"[" * 3000 + b"]" * 3000, b'{"a":' * 3000, b'"' + b"x" * 70_000 + b'"'),
            b'"\xff"',
        ]
    ),
    st.integers(-(2**70), 2**70).map(lambda number: b"%d" % number),
    st.integers(0, 2**42).map(lambda number: b"%d" % number),
    st.text(max_size=8).map(msgspec.json.encode),
    st.floats().map(lambda number: repr(number).encode()),
    st.lists(st.integers(-2, 2**66), max_size=4).map(lambda numbers: repr(numbers).encode()),
)
GARBAGE = st.one_of(st.none(), st.binary(max_size=60), TOKENS)


def damaged(*good: bytes) -> st.SearchStrategy[bytes | None]:
    """Good JSON of which a value is another, or that is cut off, changed or followed by more; or garbage."""

    @st.composite
    def damage(draw: st.DrawFn) -> bytes:
        value = draw(st.sampled_from(good))
        fields: Any = msgspec.json.decode(value, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
        for _ in range(draw(st.integers(1, 2))):
            name = draw(st.sampled_from(list(fields) if isinstance(fields, dict) else range(len(fields))))
            fields[name] = draw(TOKENS)
        if isinstance(fields, dict):
            members = [msgspec.json.encode(name) + b":" + bytes(token) for name, token in fields.items()]
            return b"{" + b",".join(members) + b"}"
        return b"[" + b",".join(map(bytes, fields)) + b"]"

    @st.composite
    def flip(draw: st.DrawFn) -> bytes:
        value = bytearray(draw(st.sampled_from(good)))
        for _ in range(draw(st.integers(0, 3))):
            value[draw(st.integers(0, len(value) - 1))] = draw(st.integers(0, 255))
        return bytes(value[: draw(st.integers(0, len(value)))]) + draw(st.binary(max_size=3))

    return st.one_of(GARBAGE, st.sampled_from(good), damage(), flip())


def read_or(error: type[HeadwayError], read: Callable[[], T]) -> T | None:
    """Return what is read; None where it raises this error, whose sentence is short."""
    said = ""
    try:
        return read()
    except error as raised:
        said = str(raised)
    assert 0 < len(said) < 2_000
    return None


def schedule(**fields: Any) -> Schedule:
    return Schedule(**{"id": "1", "due": NOW + 5, "at": NOW, "order": 0, "topic": "t", **fields})


def header(**fields: Any) -> bytes:
    value = schedule(**fields).header()[1]
    assert isinstance(value, bytes)
    return value


def command(**fields: Any) -> bytes:
    return Command(**{"id": "1", "due": NOW + 5, "at": NOW, "token": "t", "reply": 0, **fields}).encode()


HEADERS = damaged(
    header(partition=1, generation=2),
    header(recurrence=Recurrence(interval=100)),
    header(due=LATEST, recurrence=Recurrence(interval=LATEST, misfire="fire", older_than=LATEST)),
    header(recurrence=Recurrence(cron="0 17 * * MON-FRI", zone="Europe/Berlin", misfire="skip", older_than=5)),
    header(recurrence=Recurrence(cron="0 17 * * *", zone="Mars/Base", fired=NOW)),
)
RECURRENCES = st.one_of(
    damaged(
        *(
            msgspec.json.encode(each)
            for each in (
                Recurrence(interval=1000, misfire="fire"),
                Recurrence(cron="*/5 0 29 2 MON#5", zone="Pacific/Kiritimati"),
                Recurrence(cron="0 0 L * *", zone="America/Sao_Paulo", misfire="skip"),
            )
        )
    ),
    st.text("0123456789*/,-#LW ", max_size=25).map(lambda cron: msgspec.json.encode({"cron": cron})),
)
COMMANDS = damaged(command(), command(to=NOW + 1), command(due=LATEST, at=0, to=1), command(due=0, at=LATEST))
LADDERS = damaged(b"[1000]", b"[1000,2000,253402300799000]", b"[60000,60001]")
CHANGE = msgspec.json.encode(Change(1, 1, NOW, NOW, NOW))
MARK = msgspec.json.encode(Mark(5, 7, (NOW, NOW, 1, 5), (6,)))
MAPS = st.one_of(GARBAGE, damaged(b"[1]"), st.sampled_from([b"5", b"5 bAAFGgA=", b"5 azzz", b"5 ", b" 5", b"-5"]))
STATES = st.fixed_dictionaries(
    {},
    optional={
        "memory": damaged(MARK, b"[0]"),
        "commands": MAPS,
        delay_topic_key(1000): MAPS,
        delay_topic_key(7): MAPS,
        change_key("1"): damaged(CHANGE),
        change_key("\0"): damaged(CHANGE),
        "topics": damaged(b'{"memory":"a","line:1000":"x"}'),
        "producers": damaged(b'["d-relay-1","payments"]'),
        "line:": GARBAGE,
        "line:x": GARBAGE,
        f"line:{'9' * 5000}": GARBAGE,
        "line:٣": GARBAGE,
        "anything": GARBAGE,
    },
).map(lambda state: {key: value for key, value in state.items() if value is not None})


@given(HEADERS)
def test_whatever_a_header_says_it_is_a_schedule_that_can_be_delivered_or_a_schedule_error(value: bytes | None) -> None:
    read = read_or(ScheduleError, lambda: read_schedule(value))
    if read is not None:
        read.check()
        assert read_schedule(read.header()[1]) == read


@given(RECURRENCES, st.integers(0, LATEST), st.integers(0, LATEST))
@example(msgspec.json.encode(Recurrence(cron="0 0 29 2 MON#5")), LATEST, LATEST)
@example(msgspec.json.encode(Recurrence(interval=LATEST)), LATEST, LATEST)
def test_whatever_recurs_has_a_next_time_or_none(value: bytes | None, due: int, now: int) -> None:
    text = b'{"id":"1","due":5,"at":4,"order":0,"topic":"t","recurrence":' + (value or b"") + b"}"
    recurrence = read_or(ScheduleError, lambda: read_schedule(text).recurrence)
    if recurrence is not None:
        recurrence.fires(due, now)
        following = read_or(UnknownZoneError, lambda: recurrence.following(due, now))
        assert following is None or due < following <= LATEST


@given(COMMANDS)
def test_whatever_a_command_says_it_can_be_answered_or_is_a_schedule_error(value: bytes | None) -> None:
    read = read_or(ScheduleError, lambda: read_command(value))
    if read is not None:
        assert 0 <= read.reply < 2**31
        assert len(f"{read.id}{read.token}".encode()) <= 8_000


@given(st.one_of(st.binary(max_size=40), st.sampled_from([each.value.encode() for each in Settled])))
def test_an_answer_is_one_of_four_or_a_schedule_error(value: bytes) -> None:
    read = read_or(ScheduleError, lambda: read_settled(value))
    assert (read is None) == (value not in [each.value.encode() for each in Settled])


@given(LADDERS, st.integers(0, LATEST), st.integers(0, LATEST))
def test_whatever_a_ladder_says_it_has_lines_or_is_unreadable(value: bytes | None, delay: int, passed: int) -> None:
    assert ladder_from(TopicNames("d"), b"other", value) is None
    ladder = read_or(UnreadableError, lambda: decode_ladder(value or b""))
    assert ladder_from(TopicNames("d"), b"ladder", value) == ladder
    if ladder is not None:
        assert ladder.writes(delay) > 1
        step = ladder.step_at(delay, passed)
        assert step is None or (step[1] in ladder.delays and step[0] <= passed)
        for stretch in search_ranges(Search("1", delay, 0, 0), ladder, [*ladder.delays], passed):
            assert stretch.first >= 0


@given(st.integers(0, 200_000), st.integers(0, 200_000))
def test_the_step_of_a_record_is_the_last_of_its_path_that_has_begun(delay: int, passed: int) -> None:
    begun = [step for step in LADDER.path(delay) if step[0] <= passed]
    assert LADDER.step_at(delay, passed) == (begun[-1] if begun else None)
    naive, elapsed = [], 0
    while line := LADDER.delay_for(delay - elapsed):
        naive.append((elapsed, line))
        elapsed += line - 100
    assert list(LADDER.path(delay)) == naive
    assert LADDER.writes(delay) == max(1, len(naive)) + 1


@given(st.one_of(st.text(max_size=40), st.from_regex(r"\d{1,5}\.\d{1,17}\.\d{1,17}\..+", fullmatch=True)))
def test_a_handle_leads_to_a_command_or_is_a_config_error(text: str) -> None:
    parts = read_or(ConfigError, lambda: HandleParts.read(text))
    if parts is not None:
        sent = Command(parts.id, parts.due, parts.at, "t", 0)
        assert read_command(sent.encode()) == sent


@given(STATES)
def test_whatever_is_stored_a_relay_begins_from_what_can_be_read(stored: dict[str, bytes]) -> None:
    state = StoredState(stored, TOPICS, ENDS)
    assert 0 <= state.mark.offset <= 1000
    assert 0 <= state.commands.end <= 1000
    assert state.delay_topic(1000).end <= 1000
    assert set(state.unreadable) <= set(stored)
    assert all(len(error) < 2_000 for error in state.unreadable.values())
    assert all(each.startswith("d-relay-") for each in stored_producers(stored, "d-relay-"))


@given(STATES, st.lists(st.tuples(st.sampled_from(LINES), HEADERS), max_size=8), st.lists(COMMANDS, max_size=4))
def test_a_relay_carries_on_whatever_its_topics_hold(
    stored: dict[str, bytes], headers: list[tuple[int, bytes | None]], commands: list[bytes | None]
) -> None:
    relay = PartitionRelay(LADDER, LINES, stored, 100_000, TOPICS, ENDS)
    good = fetched(0, header(id="good", due=NOW + 90_000), NOW)
    for line in LINES:
        records = [fetched(1000 + i, value, NOW) for i, (place, value) in enumerate(headers) if place == line]
        relay.receive(
            line,
            [*records, msgspec.structs.replace(good, offset=2000)]
            if line == MEMORY
            else records or [fetched(1000, b"", NOW)],
        )
        relay.reached_end(line, 2001)
    for i, value in enumerate(commands):
        relay.command(1000 + i, read_or(ScheduleError, lambda value=value: read_command(value)), NOW)  # type: ignore[misc]
    left, delivered = dict(stored), []
    for now in (NOW, NOW + 5_000, NOW + 60_001, NOW + 100_000, NOW + 200_000):
        for search in relay.searches:
            relay.found(search, None, now)
        relay.searches.clear()
        tick = relay.take(now, 50, 1_000_000)
        ends = dict.fromkeys(tick.moved, 0)
        if ends:
            relay.written(ends, now)
        for write in tick.writes:
            assert read_schedule(write.schedule.header()[1]).id == write.schedule.id
            delivered += [write.schedule.id] if write.delay_topic is None else []
        for key, state in tick.state.items():
            left.pop(key, None) if state is None else left.update({key: state})
    assert "good" in delivered
    again = StoredState(left, TOPICS, dict.fromkeys(TOPICS, 2001))
    assert set(again.unreadable) <= {key for key in stored if key.startswith(("change:", "line:7"))}


def fetched(offset: int, value: bytes | None, appended: int) -> Fetched:
    try:
        schedule: Schedule | ScheduleError = read_schedule(value)
    except ScheduleError as error:
        schedule = error
    return Fetched(offset, appended, 100, object(), schedule)


@given(damaged(Marker(3, 5, "what", "when", "run", ("a", "b")).encode()))
def test_a_marker_is_one_or_unreadable(value: bytes | None) -> None:
    marker = read_or(UnreadableError, lambda: read_marker(value or b""))
    if marker is not None:
        assert read_marker(marker.encode()) == marker


TOLD = ToldError("builtins.OSError", "no", NOW)
HISTORIES = damaged(
    msgspec.json.encode(History("t", Origin("orders-2", 3, 4711))),
    msgspec.json.encode(History("t", Origin("t", 0, 2**63 - 1), 1_000_000, 5, TOLD, TOLD, LATEST)),
    msgspec.json.encode(History("another", Origin("t", 0, 0))),
    msgspec.json.encode(TOLD),
)


@given(st.lists(st.tuples(st.sampled_from([HEADER, "x"]), HISTORIES), max_size=3))
def test_a_history_is_within_its_bounds_or_as_if_there_were_none(headers: list[tuple[str, bytes | None]]) -> None:
    history = history_of(headers, "t")
    if history is None:
        return
    origin = history.origin
    assert history.topic == "t"
    assert 0 < len(origin.topic) < 250
    assert (0 <= origin.partition < 2**31, 0 <= origin.offset < 2**63) == (True, True)
    assert 0 <= history.untried <= history.attempts <= 1_000_000
    assert not history.attempts or (history.first and history.last)
    assert str(origin).rsplit("-", 2) == [origin.topic, str(origin.partition), str(origin.offset)]
    assert history_of([history.header()], "t") == history


@given(st.text(max_size=2_000), st.text(max_size=2_000), st.floats(-1e9, 1e15), st.integers(-1, 2**63 - 1))
@example("\0" * 300, "\0" * 2_000, -1.0, 0)
@example("\ud800" * 300, "\udfff" * 2_000, 1e15, -1)
def test_whatever_an_attempt_failed_of_can_be_read_again(exception: str, message: str, at: float, number: int) -> None:
    error, longest = told(exception, message, at), "t" * 249
    attempts = max(1, number)
    history = after_attempt(longest, Origin(longest, 0, attempts), number, attempts, attempts, error, error)
    assert history_of([("x", b"y"), history.header()], longest) == history


class Stored:
    """A record as the binding gives it."""

    def __init__(self, value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
        self._fields = {"topic": "d.line-0", "partition": 0, "offset": 7, "timestamp": (2, 5), "leader_epoch": None}
        self._fields |= {"value": value, "key": key, "headers": headers}

    def __getattr__(self, name: str) -> Callable[[], Any]:
        return lambda: self._fields[name]

    def __len__(self) -> int:
        return len(self._fields["value"] or b"")  # type: ignore[arg-type]


STORY = [f"{PREFIX}{name}" for name in ("exception", "message", "reason", "attempts", "topic", "partition", "offset")]
NAMES = st.sampled_from(
    [*STORY, f"{PREFIX}timestamp", f"{PREFIX}last.time", f"{PREFIX}shortened", "headway.delay", HEADER, "x"]
)
RECORDS = st.builds(
    Stored,
    st.one_of(st.none(), st.binary(max_size=30), st.integers(0, 100_000).map(bytes)),
    st.one_of(st.none(), st.binary(max_size=30), st.integers(0, 9_000).map(bytes)),
    st.lists(st.tuples(NAMES, GARBAGE), max_size=6),
)


@given(RECORDS)
def test_every_record_in_a_line_can_be_decided_about_and_become_a_dead_letter_that_can_be_shown(record: Any) -> None:
    found = fetched_from(record)
    assert found.size >= sum(
        len(part or b"") for part in (record.value(), record.key(), *dict(record.headers()).values())
    )
    letter = Writing(
        TopicNames("d"), Ladder((1000,)), lambda topic, within: 1, lambda topic: None, Counter()
    ).dead_letter(record, ScheduleError("why"), "of that")
    shown = Letter.of(
        Stored(letter.value, letter.key, letter.headers),  # type: ignore[arg-type]
        settled=False,
    )
    assert letter_row(shown)
    assert letter_page("d.dead", shown)
    assert msgspec.json.decode(letter_json("d.dead", shown))


@given(RECORDS)
def test_whatever_lies_in_a_topic_of_dead_letters_can_be_shown(record: Any) -> None:
    letter = Letter.of(record, settled=False)
    assert letter_row(letter)
    assert letter_page("d.dead", letter)
    assert msgspec.json.decode(letter_json("d.dead", letter))


@given(RECORDS)
def test_a_dead_letter_that_is_refused_for_its_size_shrinks_until_it_is_small_and_says_what_it_was(record: Any) -> None:
    writing = Writing(TopicNames("d"), Ladder((1000,)), lambda topic, within: 1, lambda topic: None, Counter())
    letter: RelayRecord | None = writing.dead_letter(record, ScheduleError("why"), "of that")
    for _ in range(30):
        assert letter is not None
        letter = writing.instead_of(letter, "MSG_SIZE_TOO_LARGE", "too large")
        assert letter is not None
        if letter.topic == "d.line-0":  # nothing can be left out any more: it waits
            break
        said = dict(letter.headers or ())
        assert f"value {len(record)} bytes".encode() in (said[f"{PREFIX}shortened"] or b"")
        assert (record.value() or b"").startswith(letter.value or b"")
    else:
        pytest.fail("It was shortened for ever.")
    with pytest.raises(KafkaError):
        writing.instead_of(letter, "TOPIC_AUTHORIZATION_FAILED", "forbidden")
    assert len(letter.value or b"") + len(letter.key or b"") <= 2_000


def bitset_in_a_few_characters() -> bytes:
    """Return the text of a map that has eight million runs."""
    body = (8 * 2**20 - 64).to_bytes(4, "big") + b"\x55" * (2**20 - 8)
    frame = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return base64.b64encode(b"s" + frame.compress(body) + frame.flush())


LARGE = 2**21
NESTED = b"[" * (LARGE // 2)
HOSTILE: list[Callable[[], object]] = [
    lambda: read_schedule(header(id="x" * LARGE)),
    lambda: read_schedule(b'{"id":' + NESTED),
    lambda: read_schedule(b'{"id":' + b"[" * 30_000),
    lambda: read_schedule(header(recurrence=Recurrence(cron=("1," * 30_000) + "1 * * * *"))),
    lambda: read_schedule(header(recurrence=Recurrence(cron="* * * * *", zone="x/" * 15_000))),
    lambda: read_command(command(id="x" * LARGE)),
    lambda: read_command(b'{"id":' + NESTED),
    lambda: decode_ladder(b"[" + b"1," * LARGE + b"1]"),
    lambda: decode_ladder(NESTED),
    lambda: read_fit_state(b'{"lines":' + NESTED),
    lambda: read_fit_state(b'{"lines":{' + b'"1":{"written":1,"since":1},' * (LARGE // 30) + b"}}"),
    lambda: RecentDelays.decode(b'{"at":1,"delays":' + NESTED),
    lambda: RecentDelays.decode(b'{"at":1,"delays":[' + b"[1,1]," * (LARGE // 10) + b"[1,1]]}"),
    lambda: Ladder((500,)).writes(LATEST),
    lambda: list(search_ranges(Search("1", LATEST, 0, 0), Ladder((500,)), [500], NOW)),
    lambda: StoredState({"commands": b"9" * LARGE}, {}),
    lambda: StoredState({"memory": b"[0,0,[0,0,0,0],[" + b"1," * (LARGE // 2) + b"1]]"}, {}),
    lambda: StoredState({"topics": NESTED, "producers": NESTED}, {}),
    lambda: StoredState({f"line:{'9' * LARGE}": b"1"}, {}).other_delay_topics([]),
    lambda: stored_producers({"producers": b'["x",' + b'"x",' * LARGE + b'"x"]'}, "x"),
    lambda: Changes().restore("1", NESTED),
    lambda: read_settled(b"\xff" * LARGE),
    lambda: read_marker(NESTED),
    lambda: HandleParts.read("1.1.1." + "x" * LARGE),
    lambda: read_metadata(bitset_in_a_few_characters(), 0),
]


@pytest.mark.parametrize("attempt", HOSTILE)
def test_what_is_large_or_nested_takes_little_time_and_memory(attempt: Callable[[], object]) -> None:
    tracemalloc.start()
    try:
        began = time.process_time()
        read_or(HeadwayError, attempt)
        took, (_, most) = time.process_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took < 5  # on a busy machine; each takes some milliseconds, and most did not end before
    assert most < 60_000_000
