"""The topics of one member: each Kafka topic has one address, and an address leads to its topic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.levels.group_subscription import GroupSubscription
from headway.core.levels.naming import by_given_level, level_subscriptions
from headway.errors import ConfigError

NAMES = st.text("ab0-1.", min_size=1, max_size=6)
LEVELS = st.integers(1, 12)


@given(st.lists(NAMES, min_size=1, unique=True), LEVELS)
def test_a_level_topic_has_the_topic_and_level_that_it_was_made_of(topics: list[str], levels: int) -> None:
    joined = GroupSubscription.of(range(levels), level_subscriptions(topics, levels))
    assert len(joined.topics) == levels * len(topics)
    for topic in topics:
        for level in range(levels):
            assert joined.address(joined.kafka_topic(topic, level)) == (topic, level)
            assert joined.reads(topic, level)
            assert joined.level_of(joined.kafka_topic(topic, level)) == level
    assert not joined.reads(topics[0], levels)


@given(st.dictionaries(NAMES, st.integers(0, 3), min_size=1))
def test_a_topic_under_its_own_name_has_the_level_that_it_is_given(given_levels: dict[str, int]) -> None:
    joined = GroupSubscription.of(range(4), by_given_level(given_levels, 4))
    for topic, level in given_levels.items():
        assert joined.kafka_topic(topic, level) == topic
        assert joined.address(topic) == (topic, level)
        assert [joined.reads(topic, each) for each in range(4)] == [each == level for each in range(4)]


@given(st.dictionaries(NAMES, st.integers(0, 2)), st.dictionaries(NAMES, st.integers(0, 2), min_size=1))
def test_a_new_subscription_that_keeps_addresses_has_every_topic_of_the_old_one_at_its_level(
    old: dict[str, int], new: dict[str, int]
) -> None:
    before, after = (GroupSubscription.of(range(3), by_given_level(each, 3)) for each in (old, new))
    if old and after.keeps_addresses_of(before):
        assert all(after.address(topic) == (topic, level) for topic, level in old.items())
    assert not GroupSubscription.of(range(3), level_subscriptions(list(new), 3)).keeps_addresses_of(after)


@given(st.lists(NAMES, min_size=1, unique=True), LEVELS)
def test_the_member_of_one_level_reads_that_level_alone(topics: list[str], levels: int) -> None:
    of_levels = level_subscriptions(topics, levels)
    for level in range(levels):
        single = GroupSubscription.of([level], of_levels)
        assert single.topics == of_levels[level].topics
        assert all(single.address(name)[1] == level for name in single.topics)


def test_a_pattern_at_one_level_of_a_member_that_reads_several_is_refused() -> None:
    given_levels = by_given_level({"^emails.*": 1, "reports": 0}, 2)
    with pytest.raises(ConfigError, match=r"The pattern '\^emails\.\*' is assigned to a level"):
        GroupSubscription.of([0, 1], given_levels)
    assert GroupSubscription.of([1], given_levels).reads("emails.urgent", 1)  # a member of its own may
