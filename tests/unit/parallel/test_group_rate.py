"""The partitions that the members of a group share."""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.levels.naming import by_given_level, level_subscriptions
from headway.parallel.group_rate import GroupRate, partitions_of

counts = st.dictionaries(st.sampled_from("abc"), st.integers(1, 50))


@given(counts, st.integers(1, 4))
def test_the_partitions_of_all_levels_count_and_those_of_other_topics_do_not(
    partitions: dict[str, int], levels: int
) -> None:
    there = {f"{name}-{level}": count for name, count in partitions.items() for level in range(levels)}
    others = {"orders": 7, "ab-0": 9, "a-4": 3, "xa-0": 5}
    assert partitions_of(level_subscriptions(["a", "b", "c"], levels), others | there) == sum(there.values())


def test_a_topic_that_two_patterns_match_counts_once() -> None:
    assert (
        partitions_of(level_subscriptions(["^shop_.*", "^shop_a.*"], 1), {"shop_a-0": 6, "shop_b-0": 2, "shop_a": 9})
        == 8
    )


def test_topics_that_have_a_level_each_count_under_their_own_names() -> None:
    assert partitions_of(by_given_level({"payments": 1, "clicks": 0}, 2), {"payments": 6, "clicks": 2, "p": 1}) == 8


def test_topics_that_are_missing_have_no_partitions() -> None:
    assert partitions_of(level_subscriptions(["orders"], 2), {}) == 0


class FailingAtFirst:
    """A shared rate limit whose first question for its needs raises an error."""

    is_shared = True

    def __init__(self) -> None:
        self.questions = 0
        self.was_asked_again = threading.Event()

    def needs(self, ready: int, seconds: float, now: float) -> dict[str, tuple[float, float]]:
        self.questions += 1
        if self.questions == 1:
            raise RuntimeError("unexpected")
        self.was_asked_again.set()
        return {}

    def share(self, share: float, now: float, others: Mapping[str, float]) -> None:
        pass


def test_an_unexpected_error_is_logged_and_rates_are_lent_and_borrowed_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "headway.parallel.group_rate.Admin", lambda config: Mock(topics=lambda: Mock(seen={"orders": 1}))
    )
    rate, levels = FailingAtFirst(), [Mock(membership=Mock(assigned=["orders-0"]))]
    dispatch: Any = Mock(lock=threading.Lock(), engine=Mock(ready=[0]))
    group_rate = GroupRate({}, "group", cast(Any, levels), [rate], dispatch, Mock())
    group_rate.subscribe(by_given_level({"orders": 0}, 1))
    with caplog.at_level(logging.ERROR), closing(group_rate):
        while not rate.was_asked_again.wait(0.01):
            group_rate.update(time.monotonic())
    assert "Sharing the rate limits raised an unexpected error" in caplog.text
