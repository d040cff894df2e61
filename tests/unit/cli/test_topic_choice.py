"""The topics that a command is given, with levels or under their own names."""

import pytest

from headway.cli.options.topic_choice import TopicChoice, choose_topics
from headway.errors import ConfigError

KAFKA_TOPICS = {"orders-0": 6, "orders-1": 6, "payments": 2, "clicks": 1, "both": 1, "both-0": 1}


def test_a_topic_that_kafka_has_only_under_its_own_name_is_taken_so() -> None:
    assert choose_topics(["payments"], KAFKA_TOPICS, None) == TopicChoice(["payments"], 1, {"payments": 0})
    assert choose_topics(["both"], KAFKA_TOPICS, None) == TopicChoice(["both"], 1)
    assert choose_topics(["both=1"], KAFKA_TOPICS, None) == TopicChoice(["both"], 2, {"both": 1})


def test_the_kafka_topics_of_a_level_are_those_that_have_it() -> None:
    assert choose_topics(["orders", "^o.*"], KAFKA_TOPICS, 2).kafka_topics(1) == ["orders-1"]
    given = choose_topics(["payments=2", "clicks=0"], KAFKA_TOPICS, None)
    assert [given.kafka_topics(level) for level in range(3)] == [["clicks"], [], ["payments"]]
    assert given.only_topic(2) == "payments"
    with pytest.raises(ValueError, match="for level 1, which no topic has"):
        given.only_topic(1)
    with pytest.raises(ValueError, match="payments and clicks both have"):
        choose_topics(["payments=1", "clicks=1"], KAFKA_TOPICS, None).only_topic(1)


@pytest.mark.parametrize(
    ("names", "levels", "sentence"),
    [
        (["payments=2", "clicks"], None, "The topic clicks needs a level from 0 to 999 after its name"),
        (["payments=x"], None, "The topic payments=x needs a level"),
        (["payments=1000"], None, "The topic payments=1000 needs a level"),
        (["payments=²"], None, "needs a level"),
        (["payments=2"], 3, "--levels is for topics with levels"),
        (["payment=2"], None, "Kafka has no topic payment. Create it with"),
        (["payments", "orders"], None, "The topic payments has no levels, but orders has"),
        (["orders-1"], None, "orders-1 is level 1 of orders. Use orders instead"),
        (["payments"], 2, "payments exists without levels"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(names: list[str], levels: int | None, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        choose_topics(names, KAFKA_TOPICS, levels)
