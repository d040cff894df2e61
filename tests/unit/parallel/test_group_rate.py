"""The partitions that the members of a group share."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.levels.naming import by_given_level, by_level
from headway.parallel.group_rate import partitions_of

counts = st.dictionaries(st.sampled_from("abc"), st.integers(1, 50))


@given(counts, st.integers(1, 4))
def test_the_partitions_of_all_levels_count_and_those_of_other_topics_do_not(
    partitions: dict[str, int], levels: int
) -> None:
    there = {f"{name}-{level}": count for name, count in partitions.items() for level in range(levels)}
    others = {"orders": 7, "ab-0": 9, "a-4": 3, "xa-0": 5}
    assert partitions_of(by_level(["a", "b", "c"], levels), others | there) == sum(there.values())


def test_a_topic_that_two_patterns_match_counts_once() -> None:
    assert partitions_of(by_level(["^shop_.*", "^shop_a.*"], 1), {"shop_a-0": 6, "shop_b-0": 2, "shop_a": 9}) == 8


def test_topics_that_have_a_level_each_count_under_their_own_names() -> None:
    assert partitions_of(by_given_level({"payments": 1, "clicks": 0}, 2), {"payments": 6, "clicks": 2, "p": 1}) == 8


def test_topics_that_are_missing_have_no_partitions() -> None:
    assert partitions_of(by_level(["orders"], 2), {}) == 0
