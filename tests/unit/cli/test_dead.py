"""Dead letters on the command line: what they tell, which are meant, where they go, and what is remembered."""

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner

from headway import cli
from headway.actions.choice import Choice, open_letters
from headway.actions.sending_again import LetterTarget, Plan, make_plan
from headway.cli.dead_letters.letter_texts import letter_json, letter_page, letter_row
from headway.cli.display.texts import local_time
from headway.cli.options.due_times import Moment
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.core.selectors.selector import Selector
from headway.errors import ConfigError, KafkaError
from headway.inspection.dead_topic import DeadTopic
from headway.inspection.letters import SENT_AGAIN_FROM, Filter, Letter, LetterPosition
from headway.kafka.binding.capi import Partition
from headway.records.history import HEADER, History, Origin, ToldError, history_of
from headway.records.record_types import Header

TOPIC = "orders-dead"
STORY = {
    "exception": "builtins.ValueError",
    "message": "no such customer",
    "reason": "attempt 5 of 5 failed",
    "attempts": "5",
    "topic": "orders-2",
    "partition": "3",
    "offset": "4711",
    "timestamp": "1650000000000",
    "first.time": "1700000000000",
    "last.time": "1700000060000",
}


class Message:
    """A record as the Kafka client hands it over."""

    def __init__(
        self, partition: int, offset: int, headers: list[Header], key: bytes | None = b"ann", value: bytes | None = b"1"
    ) -> None:
        self._place, self._headers, self._key, self._value = (partition, offset), headers, key, value

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers or None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_600_000_000_000

    def leader_epoch(self) -> int:
        return 0


def headers_of(story: Mapping[str, str] = STORY, *own: Header) -> list[Header]:
    return [*own, *((f"headway.error.{name}", text.encode()) for name, text in story.items())]


def letter(
    headers: list[Header] | None = None, key: bytes | None = b"ann", value: bytes | None = b"1", settled: bool = False
) -> Letter:
    return Letter.of(Message(0, 12, headers_of() if headers is None else headers, key, value), settled=settled)


class Kafka:
    """As much of an onlooker as a dead letter topic needs: records by partition, and one group's commits."""

    def __init__(self, *partitions: list[Message]) -> None:
        self.partitions = partitions
        self.commits: dict[Partition, tuple[int, bytes]] = {}

    def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {each: min((m.offset() for m in self.partitions[each[1]]), default=0) for each in partitions}

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {each: max((m.offset() + 1 for m in self.partitions[each[1]]), default=0) for each in partitions}

    def committed(self, partitions: Collection[Partition]) -> dict[Partition, tuple[int, bytes]]:
        return {each: commit for each, commit in self.commits.items() if each in partitions}

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Message]:
        return (each for each in self.partitions[partition[1]] if start <= each.offset() < end)

    def commit(self, offsets: Mapping[Partition, tuple[int, bytes]]) -> None:
        self.commits.update(offsets)


def topic(kafka: Kafka, partitions: int = 1) -> DeadTopic:
    return DeadTopic(TOPIC, partitions, kafka)  # type: ignore[arg-type]


def dead_letters(*offsets: int, partition: int = 0) -> list[Message]:
    return [Message(partition, offset, headers_of()) for offset in offsets]


def open_offsets(dead: DeadTopic) -> list[int]:
    return [each.place.offset for each in dead.letters() if not each.settled]


def plan(dead: DeadTopic, *places: LetterPosition, filter: Filter = Filter(), **options: Any) -> Plan:  # noqa: B008 - immutable
    to = options.pop("to", None)
    topics = {"orders-2": 6, "clicks": 1, TOPIC: 2}
    return make_plan(dead, Choice(frozenset(places), filter, **options), to, topics, lambda done, records: None)


# The help and the command line


@pytest.mark.parametrize(
    "arguments",
    [["dead"], ["dead", "list"], ["dead", "show"], ["dead", "send-again"], ["dead", "settle"]],
    ids=" ".join,
)
def test_every_help_teaches_with_an_example(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.headway, [*arguments, "--help"])
    assert result.exit_code == 0
    assert f"headway {' '.join(arguments)} " in result.output.partition("Usage")[2].partition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Select the letters"),
        (["0:1", "--all"], "selects individual dead letters"),
        (["0:1", "--exception", "ValueError"], "selects individual dead letters"),
        (["0:1", "--max", "1"], "selects individual dead letters"),
        (["0-1"], "'0-1' is not PARTITION:OFFSET, such as 0:12."),
        (["0:9223372036854775808"], "'0:9223372036854775808' is not PARTITION:OFFSET, such as 0:12."),
        (["0:1", "--where", "key = a"], "selects individual dead letters"),
        (["--where", "colour = red"], "the name of a field is expected"),
        (["--all", "--since", "yesterday"], "'yesterday' is not a time such as 2026-05-01"),
    ],
)
def test_what_to_send_must_be_said_in_one_way(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(cli.headway, ["dead", "send-again", TOPIC, *arguments])
    assert result.exit_code == 2
    assert sentence in result.stderr


def moment(text: str) -> datetime:
    return datetime.fromtimestamp(Moment().convert(text, None, None) / 1000, UTC)


def test_a_moment_is_a_time_or_how_long_ago() -> None:
    assert moment("2026-05-01T12:30+02:00") == datetime(2026, 5, 1, 10, 30, tzinfo=UTC)
    earliest = datetime.now(UTC) - timedelta(minutes=90, milliseconds=1)  # a moment is in whole milliseconds
    assert earliest <= moment("90m") <= datetime.now(UTC) - timedelta(minutes=90)
    with pytest.raises(click.BadParameter):
        moment("99999999999d")


# What a letter tells


def test_a_letter_tells_what_went_wrong_where_and_when() -> None:
    failure = letter().failure
    assert failure is not None
    assert failure._asdict() == {
        "exception": "builtins.ValueError",
        "message": "no such customer",
        "reason": "attempt 5 of 5 failed",
        "attempts": 5,
        "topic": "orders-2",
        "partition": 3,
        "offset": 4711,
        "timestamp": 1_650_000_000_000,
        "first_time": 1_700_000_000_000,
        "last_time": 1_700_000_060_000,
        "shortened": None,
        "group": None,
        "of_share_group": False,
        "first_exception": None,
        "first_message": None,
    }
    assert letter().when == 1_700_000_060_000


def test_headers_that_are_damaged_or_missing_are_no_error() -> None:
    damaged = letter(headers_of({"attempts": "many", "message": "\x00"}, ("headway.error.topic", b"\xff")))
    assert damaged.failure is not None
    assert (damaged.failure.attempts, damaged.failure.topic) == (None, "\ufffd")
    assert letter_row(damaged)[2:5] == ["\ufffd ?:?", "-", "-"]
    assert damaged.when == 1_600_000_000_000
    assert letter_page(TOPIC, damaged)


def test_a_record_that_is_no_dead_letter_is_shown_as_such() -> None:
    plain = letter([("trace", b"1")])
    assert letter_row(plain)[4] == "not a dead letter"
    assert letter_page(TOPIC, plain)[0] == "orders-dead 0:12 is not a dead letter: it has no headway.error headers."
    assert json.loads(letter_json(TOPIC, plain))["failure"] is None


def test_a_row_is_short_and_cannot_move_the_terminals_cursor() -> None:
    story = STORY | {"message": "\x1b[2J[red]no\nway" + "x" * 100}
    shown = letter_row(letter(headers_of(story), key=b"\x1b" + b"k" * 100))
    assert shown[5].startswith("\\x1b[2J[red]no\\nwayx")
    assert len(shown[5]) == 60
    assert shown[6].startswith("\\x1bk")
    assert len(shown[6]) == 30


def test_a_page_shows_all_of_a_letter() -> None:
    lines = letter_page(TOPIC, letter(headers_of(STORY, ("trace", b"\xff")), value='{"who":\n"änn"}'.encode()))
    text = "\n".join(lines)
    assert lines[0] == "orders-dead 0:12 is open."
    for part in (
        "builtins.ValueError",
        "no such customer",
        "attempt 5 of 5 failed",
        "orders-2 3:4711",
        "  trace: 0xff",
    ):
        assert part in text
    assert lines[-3:] == ["value, 15 bytes", '{"who":', '"änn"}']


def test_the_time_of_a_record_is_its_own_and_not_its_letters() -> None:
    lines = letter_page(TOPIC, letter())
    assert f"  timestamp     {local_time(1_650_000_000_000)}" in lines
    assert f"  written here  {local_time(1_600_000_000_000)}" in lines
    untold = letter_page(TOPIC, letter(headers_of({"topic": "a"})))
    assert "  timestamp     -" in untold
    assert f"  timestamp  {local_time(1_600_000_000_000)}" in letter_page(TOPIC, letter([]))


def test_a_value_that_is_not_utf_8_is_shown_in_hex() -> None:
    assert letter_page(TOPIC, letter(value=b"\xff" * 33))[-2:] == [" ".join(["ff"] * 32), "ff"]
    assert letter_page(TOPIC, letter(value=None))[-1] == "no value"


def test_a_line_of_json_is_the_whole_letter() -> None:
    found = json.loads(letter_json(TOPIC, letter(headers_of({"topic": "a"}, ("h", None)), b"\xff", b"v", settled=True)))
    assert (found["topic"], found["partition"], found["offset"], found["settled"]) == (TOPIC, 0, 12, True)
    assert (found["key_base64"], found["value"], found["failure"]["topic"]) == ("/w==", "v", "a")
    assert found["headers"] == [{"name": "h", "value": None}, {"name": "headway.error.topic", "value": "a"}]


def test_a_letter_is_sent_with_its_own_headers_and_the_name_of_its_last_life() -> None:
    own = [("trace", b"1"), ("trace", None), (SENT_AGAIN_FROM, b"orders-dead-0-3")]
    assert letter(headers_of(STORY, *own)).headers_to_send(TOPIC, "orders-2") == [
        ("trace", b"1"),
        ("trace", None),
        (SENT_AGAIN_FROM, b"orders-dead-0-12"),
        History("orders-2", Origin("orders-2", 3, 4711)).header(),
    ]


def test_a_letter_keeps_its_origin_whoever_wrote_it_and_begins_its_attempts_anew() -> None:
    first, earlier = Origin("orders-2", 0, 7), ToldError("TimeoutError", "late", 5)

    def origin_sent(*headers: Header, story: dict[str, str] = STORY) -> History | None:
        return history_of(letter(headers_of(story, *headers)).headers_to_send(TOPIC, "elsewhere"), "elsewhere")

    ours = History(TOPIC, first).header()
    copied = History("orders-2", first, attempts=4, first=earlier, last=earlier, since=1).header()
    assert origin_sent(ours) == origin_sent(copied) == origin_sent(copied, ours) == History("elsewhere", first)
    unreadable = (HEADER, b"{")
    for nothing in ((), (unreadable,), (History("another", first).header(),)):
        assert origin_sent(*nothing) == History("elsewhere", Origin("orders-2", 3, 4711))
    assert origin_sent(story={}) == History("elsewhere", Origin(TOPIC, 0, 12))  # no dead letter: a record of its own


def where(text: str) -> Filter:
    return Filter(where=Selector.parse(text))


@pytest.mark.parametrize(
    ("filter", "meant"),
    [
        (Filter(), True),
        (Filter(exception="ValueError"), True),
        (Filter(exception="builtins.ValueError"), True),
        (Filter(exception="Error"), False),
        (Filter(source_topic="orders"), True),
        (Filter(source_topic="orders-2"), True),
        (Filter(source_topic="order"), False),
        (Filter(since=1_700_000_060_000), True),
        (Filter(since=1_700_000_060_001), False),
        (Filter(until=1_700_000_060_000), False),
        (Filter(until=1_700_000_060_001, exception="ValueError"), True),
        (Filter(source_topic="orders", exception="KeyError"), False),
        (where("error = ValueError and key = ann and topic = 'orders-2' and partition = 3 and offset = 4711"), True),
        (where("attempts between 2 and 5 and age > 1d"), True),
        (where("header.headway.error.message like '%customer'"), True),
        (where("attempts > 5 or key <> ann or age < 1d"), False),
        (where("level = 2 or tenant = acme"), False),
    ],
)
def test_a_filter_lets_through_what_is_like_all_of_it(filter: Filter, meant: bool) -> None:
    assert filter.matches(letter()) is meant


def test_what_is_no_dead_letter_failed_with_nothing_and_came_from_nowhere() -> None:
    plain = letter([])
    assert not Filter(exception="ValueError").matches(plain)
    assert not Filter(source_topic="orders").matches(plain)
    assert Filter(since=1_600_000_000_000).matches(plain)
    assert not where("error = ValueError or topic = 'orders-2' or attempts > 0").matches(plain)
    assert where("error is null and key = ann").matches(plain)


# What is remembered


def test_what_was_sent_again_is_remembered_and_the_rest_is_open() -> None:
    kafka = Kafka(dead_letters(3, 4, 6, 9))
    dead = topic(kafka)
    assert open_offsets(dead) == [3, 4, 6, 9]
    dead.remember({0: [3, 4, 6, 9]}, {0: [4, 9]})
    assert open_offsets(topic(kafka)) == [3, 6]
    dead.remember({0: [3, 4, 6, 9]}, {0: [3]})  # the others are remembered still
    assert open_offsets(topic(kafka)) == [6]
    dead.remember({0: [3, 4, 6, 9]}, {0: [6]})
    assert kafka.commits == {(TOPIC, 0): (10, b"")}


def test_what_comes_later_is_open() -> None:
    kafka = Kafka(dead_letters(0, 1))
    topic(kafka).remember({0: [0, 1]}, {0: [0, 1]})
    kafka.partitions[0].extend(dead_letters(2))
    assert open_offsets(topic(kafka)) == [2]


def test_what_another_remembered_meanwhile_is_kept() -> None:
    kafka = Kafka(dead_letters(0, 1, 2, 3))
    mine, others = topic(kafka), topic(kafka)
    others.remember({0: [0, 1, 2, 3]}, {0: [2]})
    mine.remember({0: [0, 1, 2, 3]}, {0: [0]})
    assert open_offsets(topic(kafka)) == [1, 3]


@pytest.mark.parametrize(
    ("commit", "said", "still_open"),
    [
        ((50, b""), "belongs to an earlier topic of that name", [3, 4, 6]),
        (
            (4, b"checkpoint 7"),
            "from offset 4 on count as open, because their commit cannot be read: The commit metadata is not",
            [4, 6],
        ),
        ((4, b"AgAAAZrwQVAA"), "the commit metadata is that of Kafka Streams v2", [4, 6]),
        ((4, encode(OffsetMap(4, (1, 90))).encode()), "but the log ends at offset 7", [4, 6]),
    ],
)
def test_a_memory_that_cannot_be_right_is_dropped_with_a_warning(
    commit: tuple[int, bytes], said: str, still_open: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    kafka = Kafka(dead_letters(3, 4, 6))
    kafka.commits[TOPIC, 0] = commit
    assert open_offsets(topic(kafka)) == still_open
    assert said in caplog.text


def test_a_memory_that_no_offset_map_can_hold_is_refused_and_nothing_is_committed() -> None:
    kafka = Kafka(dead_letters(0))
    # Gaps of ever other lengths, which neither bits nor run lengths make small.
    sent = [number * (number + 1) // 2 + number * 7919 % 5 for number in range(10, 3000)]
    existing = list(range(sent[-1] + 1))
    with pytest.raises(KafkaError, match=r"too scattered to commit: an offset map has at most 4,096 characters"):
        topic(kafka).remember({0: existing}, {0: sent})
    assert kafka.commits == {}


def test_a_place_without_a_letter_is_a_sentence_that_says_where_there_are_some() -> None:
    dead = topic(Kafka(dead_letters(3, 4)))
    assert dead.letter(LetterPosition(0, 4)).place == (0, 4)
    with pytest.raises(KafkaError, match=r"holds no record at 0:9: its partition 0 has the offsets 3 to 4\."):
        dead.letter(LetterPosition(0, 9))
    with pytest.raises(ConfigError, match="has no partition 1; it has 1, counted from 0"):
        dead.letter(LetterPosition(1, 4))


def test_what_is_to_be_settled_is_what_a_choice_names_and_is_open() -> None:
    kafka = Kafka(dead_letters(0, 1, 2, 3))
    topic(kafka).remember({0: [0, 1]}, {0: [0]})

    def found(choice: Choice) -> list[int]:
        return list(open_letters(topic(kafka), choice, lambda done, records: None).offsets.get(0, []))

    assert found(Choice()) == [1, 2, 3]
    assert found(Choice(limit=2)) == [1, 2]
    assert found(Choice(frozenset({LetterPosition(0, 0), LetterPosition(0, 3)}))) == [3]
    assert found(Choice(filter=Filter(exception="Declined"))) == []
    with pytest.raises(KafkaError, match="holds no record at 0:7"):
        found(Choice(frozenset({LetterPosition(0, 1), LetterPosition(0, 7)})))


# What is sent, and where to


def test_all_that_is_open_goes_back_to_the_topic_and_partition_that_it_came_from() -> None:
    kafka = Kafka(dead_letters(0, 1), dead_letters(5, partition=1))
    topic(kafka, 2).remember({0: [0, 1]}, {0: [0]})
    planned = plan(topic(kafka, 2))
    home = LetterTarget("orders-2", 3)
    assert planned.destinations == {0: {1: home}, 1: {5: home}}
    assert planned.existing == {0: [0, 1], 1: [5]}
    assert planned.topics == {"orders-2": 2}


def test_a_partition_that_its_topic_has_not_leaves_the_choice_to_the_key() -> None:
    for story in (STORY | {"partition": "6"}, {"topic": "orders-2"}):
        kafka = Kafka([Message(0, 0, headers_of(story))])
        assert plan(topic(kafka)).destinations == {0: {0: LetterTarget("orders-2")}}


def test_another_topic_can_be_said_and_takes_what_is_no_dead_letter_too() -> None:
    kafka = Kafka([*dead_letters(0), Message(0, 1, [])])
    assert plan(topic(kafka), to="clicks").topics == {"clicks": 2}
    without = plan(topic(kafka))
    assert (without.topics, without.without_topic) == ({"orders-2": 1}, 1)


def test_only_so_many_are_sent_and_only_those_that_the_filter_lets_through() -> None:
    other = Message(0, 1, headers_of(STORY | {"exception": "app.Declined"}))
    kafka = Kafka([*dead_letters(0), other, *dead_letters(2, 3)])
    assert plan(topic(kafka), limit=2).destinations[0].keys() == {0, 1}
    assert plan(topic(kafka), filter=Filter(exception="Declined")).destinations[0].keys() == {1}


def test_what_was_sent_again_is_sent_once_more_only_if_asked_for() -> None:
    kafka = Kafka(dead_letters(0, 1))
    topic(kafka).remember({0: [0, 1]}, {0: [0]})
    with pytest.raises(
        ConfigError,
        match=r"orders-dead 0:0 is already settled, by `headway dead send-again` or `headway dead settle`. Nothing was",
    ):
        plan(topic(kafka), LetterPosition(0, 0), LetterPosition(0, 1))
    assert plan(topic(kafka), LetterPosition(0, 0), settled_too=True).size == 1
    assert plan(topic(kafka), settled_too=True).size == 2


def test_what_was_sent_again_since_it_was_planned_is_left_out() -> None:
    planned = plan(topic(Kafka(dead_letters(0, 1, 2))))
    planned.without({0: {1, 2}})
    assert planned.destinations == {0: {0: LetterTarget("orders-2", 3)}}


def test_a_letter_that_is_named_and_not_there_is_an_error_and_nothing_is_sent() -> None:
    with pytest.raises(KafkaError, match="holds no record at 0:7"):
        plan(topic(Kafka(dead_letters(0, 1))), LetterPosition(0, 0), LetterPosition(0, 7))


def test_a_letter_that_is_named_and_came_from_nowhere_needs_a_topic() -> None:
    kafka = Kafka([Message(0, 0, [])])
    with pytest.raises(ConfigError, match="orders-dead 0:0 does not name the topic it came from"):
        plan(topic(kafka), LetterPosition(0, 0))
    assert plan(topic(kafka), LetterPosition(0, 0), to="clicks").topics == {"clicks": 1}


def test_a_topic_that_there_is_not_is_refused_before_anything_is_sent() -> None:
    kafka = Kafka([Message(0, 0, headers_of(STORY | {"topic": "gone"}))])
    with pytest.raises(ConfigError, match="Kafka has no topic gone, where dead letters should go"):
        plan(topic(kafka), LetterPosition(0, 0))
    with pytest.raises(ConfigError, match="is the dead letter topic itself"):
        plan(topic(kafka), to=TOPIC)


def test_a_letter_whose_topic_is_gone_does_not_keep_back_the_others() -> None:
    gone, own = (Message(at, 0, headers_of(STORY | {"topic": name})) for at, name in ((0, "gone"), (1, TOPIC)))
    planned = plan(topic(Kafka([gone, own, *dead_letters(2)])))
    assert (planned.gone, planned.own, planned.size) == ({"gone": 1}, 1, 1)
