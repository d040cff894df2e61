"""Which of Kafka's topics are the levels of one topic."""

import pytest
from click.testing import CliRunner

from headway.cli import headway
from headway.cli.options.logical_topics import LogicalTopic, logical_topics, require_common_levels, require_levels
from headway.core.levels.naming import level_topic
from headway.errors import ConfigError

KAFKA_TOPICS = {"orders-0": 6, "orders-1": 6, "orders-2": 12, "clicks-0": 1, "clicks-1": 1, "audit": 1}


def test_consecutive_suffixes_from_0_are_the_levels_of_a_topic() -> None:
    assert logical_topics(KAFKA_TOPICS) == [
        LogicalTopic("audit", False, [1]),
        LogicalTopic("clicks", True, [1, 1]),
        LogicalTopic("orders", True, [6, 6, 12]),
    ]


@pytest.mark.parametrize("name", ["-0", "orders-1", "orders-00", "orders0", "0"])
def test_another_suffix_is_a_part_of_the_name(name: str) -> None:
    assert logical_topics({name: 1}) == [LogicalTopic(name, False, [1])]


def test_the_line_of_a_scheduler_is_no_level_and_a_topic_of_such_a_name_without_a_scheduler_is_one() -> None:
    scheduler = {"later.line-0": 4, "later.line-1000": 4, "later.state": 4}
    assert [(each.name, each.has_levels) for each in logical_topics({**scheduler, "bus.line-0": 1})] == [
        ("bus.line", True),
        ("later.line-0", False),
        ("later.line-1000", False),
        ("later.state", False),
    ]


def test_what_comes_after_a_gap_is_no_level() -> None:
    assert logical_topics({"a-0": 1, "a-2": 1}) == [LogicalTopic("a", True, [1]), LogicalTopic("a-2", False, [1])]


def test_ten_levels_are_in_their_order() -> None:
    [found] = logical_topics({f"a-{level}": level + 1 for level in reversed(range(11))})
    assert found == LogicalTopic("a", True, list(range(1, 12)))


def test_levels_are_found_and_fewer_can_be_asked_for() -> None:
    assert require_levels("orders", KAFKA_TOPICS, None) == 3
    assert require_levels("orders", KAFKA_TOPICS, 2) == 2


def test_a_level_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="has 3 levels in Kafka, but --levels is 4: orders-3 is missing"):
        require_levels("orders", KAFKA_TOPICS, 4)


def test_a_misspelt_topic_is_an_error_that_names_a_near_one() -> None:
    with pytest.raises(ConfigError, match=r"no topic ordres and no ordres-0.* Did you mean orders\? .*create ordres"):
        require_levels("ordres", KAFKA_TOPICS, None)


def test_a_topic_without_levels_is_not_proposed_for_creation() -> None:
    for topic in ("audit", "orders-9"):
        with pytest.raises(ConfigError) as caught:
            require_levels(topic, KAFKA_TOPICS | {"orders-9": 1}, None)
        assert f"{topic} exists without levels" in str(caught.value)
        assert "topics create" not in str(caught.value)


def test_a_level_in_place_of_its_topic_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"orders-2 is level 2 of orders. Use orders instead\.$"):
        require_levels("orders-2", KAFKA_TOPICS, None)


@pytest.mark.parametrize("name", ["our orders", "orders;rm", "grün", "x" * 248, "", "a/b"])
def test_a_name_that_kafka_does_not_take_is_not_proposed_for_creation(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_levels(name, {}, 3 if name else 10)
    told = "This is not a valid name in Kafka" in str(caught.value)
    assert told == (name != "")
    assert ("topics create" in str(caught.value)) == (not told)


def test_a_level_below_0_is_no_topic() -> None:
    with pytest.raises(ConfigError, match=r"The level -1 of orders does not exist. Levels are numbered from 0"):
        level_topic("orders", -1)


@pytest.mark.parametrize(
    "command",
    ["topics create t", "topics delete t", "consume t --group g", "produce t", "offsets show g", "levels --capacity 1"],
)
def test_more_levels_than_anybody_has_are_refused(command: str) -> None:
    result = CliRunner().invoke(headway, [*command.split(), "--levels", "4611686018427387905"])
    assert result.exit_code == 2
    assert "is not in the range 1<=x<=1000" in result.stderr


def test_topics_that_are_read_together_have_as_many_levels() -> None:
    with pytest.raises(ConfigError, match=r"orders has 3, clicks has 2. Use --levels 2"):
        require_common_levels(["orders", "clicks"], KAFKA_TOPICS, None)
    assert require_common_levels(["orders", "clicks"], KAFKA_TOPICS, 2) == 2


def test_a_pattern_has_the_most_levels_of_what_it_matches() -> None:
    assert require_common_levels(["^(orders|clicks)$"], KAFKA_TOPICS, None) == 3
    assert require_common_levels(["^later.*"], KAFKA_TOPICS, 4) == 4
    with pytest.raises(ConfigError, match=r"No topic in Kafka matches .* with --levels"):
        require_common_levels(["^later.*"], KAFKA_TOPICS, None)
    with pytest.raises(ConfigError, match="is not a pattern"):
        require_common_levels(["^("], KAFKA_TOPICS, None)
