"""The log's word on a member's partitions: one line when they have settled, and one if the group does not meet."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from headway.core.levels.group_subscription import GroupSubscription
from headway.core.levels.naming import LevelSubscription
from headway.kafka.consumer.addresses import Addresses
from headway.parallel.assignment_log import AssignmentLog, sentence
from headway.records.record_types import TopicPartition


class Level(SimpleNamespace):
    @property
    def client(self) -> Any:
        return SimpleNamespace(addresses=Addresses([0], GroupSubscription({0: LevelSubscription(["orders"], "")})))


def has(*numbers: int) -> set[TopicPartition]:
    return {TopicPartition("orders", partition=number, level=0) for number in numbers}


def test_each_settled_set_of_partitions_is_one_line_and_waiting_for_a_group_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headway")
    membership = SimpleNamespace(was_member=False, assigned=has())
    levels: Any = [Level(membership=membership)]
    about = AssignmentLog(levels)
    seen: list[int] = []  # the lines by then
    states = [(False, has())] * 20 + [(True, has(0)), (True, has(0, 1)), (True, has(0, 1)), (True, has(0, 1))]
    for number, (was_member, assigned) in enumerate([*states, (True, has()), (True, has())]):
        membership.was_member, membership.assigned = was_member, assigned
        about.check(number / 2)
        about.check(number / 2 + 0.1)
        seen.append(len(caplog.records))
    assert seen == [0] * 10 + [1] * 12 + [2, 2, 2, 3]
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("This member is waiting for its group to rebalance.")
    assert [line.partition(" and has ")[2] for line in lines[1:]] == [
        "these partitions: orders: 0-1.",
        "no partitions. Either all partitions are assigned to other members, or the topics do not exist.",
    ]


def test_partitions_of_many_topics_are_told_in_short() -> None:
    places = {(f"orders-{topic}", number) for topic in range(12) for number in (0, 1, 2, 5)}
    assert sentence(places).endswith("; orders-7: 0-2, 5; and partitions of 2 more topics.")
