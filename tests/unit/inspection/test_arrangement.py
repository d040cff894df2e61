"""How groups and topics become queues."""

from headway.inspection.arrangement import LevelSource, QueueSource, arrange


def test_level_groups_and_level_topics_are_one_queue_with_the_highest_level_first() -> None:
    read = {"billing-0": ["orders-0"], "billing-1": ["orders-1"]}
    assert arrange(read, {"orders-0", "orders-1"}) == [
        QueueSource(
            "orders", "billing", (LevelSource(1, "orders-1", "billing-1"), LevelSource(0, "orders-0", "billing-0"))
        )
    ]


def test_a_level_that_was_not_read_yet_belongs_to_the_queue_if_its_topic_exists() -> None:
    read = {"billing-0": ["orders-0"], "billing-1": [], "billing-2": []}
    [queue] = arrange(read, {"orders-0", "orders-1"})
    assert [each.level for each in queue.levels] == [1, 0]


def test_one_group_can_read_all_levels() -> None:
    [queue] = arrange({"billing": ["orders-0", "orders-2"]}, {"orders-0", "orders-1", "orders-2"})
    assert queue.group == "billing"
    assert [(each.kafka_topic, each.group) for each in queue.levels] == [
        ("orders-2", "billing"),
        ("orders-1", "billing"),
        ("orders-0", "billing"),
    ]


def test_a_number_at_the_end_of_a_name_is_no_level_if_nothing_else_says_so() -> None:
    assert arrange({"workers-0": ["mails"], "jobs": ["topic-7"]}, {"mails", "topic-7"}) == [
        QueueSource("mails", "workers-0", (LevelSource(None, "mails", "workers-0"),)),
        QueueSource("topic-7", "jobs", (LevelSource(None, "topic-7", "jobs"),)),
    ]


def test_topics_without_levels_can_have_a_level_in_a_level_group() -> None:
    read = {"billing-0": ["clicks", "orders-0"], "billing-1": ["payments", "orders-1"]}
    found = {queue.topic: queue.levels for queue in arrange(read, {"orders-0", "orders-1", "clicks", "payments"})}
    assert found["payments"] == (LevelSource(1, "payments", "billing-1"),)
    assert found["clicks"] == (LevelSource(0, "clicks", "billing-0"),)
    assert len(found["orders"]) == 2
