"""Where reading begins and ends, as users say it, and what Kafka no longer has of it."""

from collections.abc import Collection

import pytest

from headway.errors import ConfigError
from headway.kafka.reading.range_reader import Offsets
from headway.kafka.reading.topic_naming import TopicNaming, kafka_topic
from headway.records.record_types import TopicPartition
from headway.spark.source.batch_planner import bridge
from headway.spark.source.offset_bounds import parse_bound, resolve
from headway.spark.source.stream_offset import StreamOffset

ONE, TWO = TopicPartition("orders", partition=0), TopicPartition("orders", partition=1)
THIS_YEAR = 1_767_225_600_000


class Catalog:
    """Partitions that hold offsets from 10 to before 20, of which those from 15 on are of this year."""

    def starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 10)

    def ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 20)

    def written(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self.ends(partitions)

    def at(self, time_ms: int, partitions: Collection[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 15 if time_ms > THIS_YEAR - 1 else 11)


@pytest.mark.parametrize(
    ("value", "offsets"),
    [
        ("earliest", {ONE: 10, TWO: 10}),
        ("Latest", {ONE: 20, TWO: 20}),
        ("2026-01-01T00:00:00Z", {ONE: 15, TWO: 15}),
        ("1767225600000", {ONE: 15, TWO: 15}),
        ('{"orders": {"0": {"0": 12, "1": -1}}}', {ONE: 12, TWO: 20}),
        ('{"orders": {"0": {"0": -2, "1": 0}}}', {ONE: 10, TWO: 0}),
        ('{"orders": {"0": {"0": "2026-01-01T00:00:00Z", "1": "2023-11-14T23:13:20+01:00"}}}', {ONE: 15, TWO: 11}),
        ('{"orders": {"0": {"0": 12, "1": "2026-01-01T00:00:00Z"}}}', {ONE: 12, TWO: 15}),
    ],
)
def test_a_bound_is_a_word_a_time_or_an_offset_or_time_of_each_partition(value: str, offsets: Offsets) -> None:
    assert (
        resolve("startingOffsets", parse_bound("startingOffsets", value, TopicNaming(1)), [ONE, TWO], Catalog())
        == offsets
    )


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("1" + "0" * 22, "must be at most 9223372036854775807 milliseconds after 1970"),
        ("9" * 5_000, "must be at most 9223372036854775807 milliseconds after 1970"),
        ('{"orders": {"0": {"0": 10000000000000000000000}}}', "the offset 10000000000000000000000; it must be"),
        ('{"orders": {"0": {"0": %s}}}' % ("9" * 5_000), "it must be JSON"),
        ('{"orders": {"0": {"%s": 1}}}' % ("9" * 5_000), "it must be JSON"),
        (
            '{"orders": {"0": {"0": "noon"}}}',
            "partition 0 of the Kafka topic orders-0 the text 'noon'; text",
        ),
        (
            '{"orders": {"0": {"0": "23"}}}',
            "the text '23'; text must be a time with its zone, such as 2026-05-01T12:00:00Z",
        ),
        ('{"orders": {"-1": {"0": -3}}}', "The level -1 of orders does not exist"),
        ("0000-01-01T00:00:00Z", "Choose earliest, latest, a time with its zone"),
        ("{" * 100_000, "it must be JSON"),
    ],
)
def test_a_bound_out_of_all_bounds_is_a_short_sentence(value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bound("startingOffsets", value, TopicNaming(1))
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("value", ["1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00+14:00"])
def test_a_time_before_1970_is_the_first_there_is(value: str) -> None:
    assert parse_bound("startingOffsets", value, TopicNaming(1)) == 0  # Kafka reads -1 as the end


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        ([ONE, TWO], "gives no offset for partition 1 of the Kafka topic orders-0. Name every partition"),
        ([], "names partition 0 of the Kafka topic orders-0, which is not selected"),
    ],
)
def test_offsets_are_of_just_the_partitions_that_are_read(there: list[TopicPartition], sentence: str) -> None:
    bound = parse_bound("startingOffsets", '{"orders": {"0": {"0": 12}}}', TopicNaming(1))
    with pytest.raises(ConfigError) as caught:
        resolve("startingOffsets", bound, there, Catalog())
    assert sentence in str(caught.value)


def test_reading_goes_on_where_it_was_while_nothing_is_lost() -> None:
    assert bridge(StreamOffset({ONE: 5}, {}), StreamOffset({ONE: 9}, {}), {ONE: 5}) == ({ONE: 5}, [])


def test_a_new_partition_starts_at_its_first_offset() -> None:
    assert bridge(StreamOffset({ONE: 5}, {}), StreamOffset({ONE: 9, TWO: 8}, {}), {ONE: 0, TWO: 3}) == (
        {ONE: 5, TWO: 3},
        [],
    )


@pytest.mark.parametrize(
    ("seen", "first", "start", "loss"),
    [
        (StreamOffset({ONE: 9}, {"orders-0": "a"}), 7, {ONE: 7}, "no longer holds all offsets from 5 to before 9"),
        (StreamOffset({ONE: 9}, {"orders-0": "b"}), 0, {ONE: 0}, "was deleted and recreated"),
        (StreamOffset({ONE: 3}, {"orders-0": "a"}), 1, {ONE: 3}, "Kafka only holds offsets before 3"),
        (StreamOffset({ONE: 3}, {}), 1, {ONE: 1}, "was deleted and recreated"),
        (StreamOffset({}, {}), 0, {}, "no longer exists, or the options no longer include its topic or level"),
    ],
)
def test_what_is_lost_is_told_and_reading_goes_on_with_what_there_is(
    seen: StreamOffset, first: int, start: Offsets, loss: str
) -> None:
    bridged = bridge(StreamOffset({ONE: 5}, {"orders-0": "a"}), seen, {ONE: first})
    assert bridged.start == start
    assert len(bridged.losses) == 1
    assert loss in bridged.losses[0]


def test_of_topics_without_levels_the_offsets_are_by_partition_as_in_sparks_kafka_source() -> None:
    plain = TopicNaming(None, {"orders": 2})
    bound = parse_bound("startingOffsets", '{"orders": {"0": 12, "1": -1}}', plain)
    there = [plain.partition("orders", number, 0) for number in range(2)]
    found = resolve("startingOffsets", bound, there, Catalog())
    assert found == {there[0]: 12, there[1]: 20}
    assert [(kafka_topic(at), at.level) for at in found] == [("orders", 2)] * 2
    unknown = parse_bound("startingOffsets", '{"orders": {"0": 12, "1": -1, "3": 0}}', plain)
    with pytest.raises(ConfigError, match="names partition 3 of the Kafka topic orders, which is not selected"):
        resolve("startingOffsets", unknown, there, Catalog())
    with pytest.raises(
        ConfigError, match=r'it must be JSON, such as \{"orders": \{"0": 23, "1": -2\}\}: topic, partition'
    ):
        parse_bound("startingOffsets", '{"orders": [0]}', plain)
