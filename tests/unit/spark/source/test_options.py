"""The options of `format("headway")`: each mistake is a sentence that says what to do."""

import pytest

from headway.errors import ConfigError
from headway.spark.source.level_split import Sightings, Unread
from headway.spark.source.options import check_kafka, parse
from headway.spark.source.topic_selection import Selection

GIVEN = {"subscribe": "orders, returns,orders", "levels": "3", "kafka.bootstrap.servers": "127.0.0.1:1"}


def test_options_are_read_in_any_case_as_spark_hands_them_over() -> None:
    parsed = parse(
        GIVEN
        | {
            "MAXRECORDSPERTRIGGER": "50",
            "startingoffsets": "Latest",
            "IncludeHeaders": "TRUE",
            "kafka.ssl.ca.location": "ca.pem",
        }
    )
    assert parsed.selection == Selection(topics=("orders", "returns"))
    assert parsed.kafka == {"bootstrap.servers": "127.0.0.1:1", "ssl.ca.location": "ca.pem"}
    assert (parsed.naming.levels, parsed.max_records, parsed.start, parsed.include_headers) == (3, 50, "latest", True)


def test_what_is_not_given_has_its_default() -> None:
    parsed = parse(GIVEN)
    assert (parsed.max_records, parsed.start, parsed.end, parsed.group) == (None, None, None, None)
    assert (parsed.policy, parsed.isolation, parsed.fail_on_data_loss) == ("fair", "read_committed", True)
    assert (parsed.min_records, parsed.max_trigger_delay, parsed.strict_max_wait) == (1, 900, 60)
    assert parsed.make_policy() is None


def test_secrets_among_the_settings_are_not_shown() -> None:
    assert "hunter2" not in repr(parse(GIVEN | {"kafka.sasl.password": "hunter2"}))


@pytest.mark.parametrize(
    ("distributor", "shares"), [("exponential", [2, 4, 8]), ("linear", [2, 4, 8]), ("1,1,5", [2, 2, 10])]
)
def test_the_policy_shares_the_limit_as_the_distributor_says(distributor: str, shares: list[int]) -> None:
    options = GIVEN | {"maxRecordsPerTrigger": "14", "policy": "capacity_burst", "distributor": distributor}
    policy = parse(options).make_policy()
    assert policy is not None
    assert policy.demand([Unread({}, 0, Sightings())] * 3) == shares


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"subscribe": " , "}, "The option `subscribe` is ','. Name one or more topics"),
        (
            {"subscribe": ""},
            "needs exactly one of the options subscribe, subscribePattern, assign and priorities, but none was given",
        ),
        ({"assign": '{"orders": [0]}'}, "but subscribe and assign were given"),
        ({"levels": "0"}, "The option `levels` is '0'; it must be a whole number of at least 1"),
        ({"levels": "-1"}, "The option `levels` is '-1'"),
        ({"levels": "2.5"}, "The option `levels` is '2.5'"),
        ({"maxRecordsPerTrigger": "6"}, "capacity of 6 cannot be divided among 3 levels"),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger` is '0'; it must be a whole number of at least 1"),
        ({"startingOffsets": "first"}, "startingOffsets` is 'first'. Choose earliest, latest, a time with its zone"),
        ({"startingOffsets": "2026-05-01 12:00"}, "Choose earliest, latest, a time with its zone"),
        ({"startingOffsets": '{"orders": 3}'}, "it must be JSON, such as"),
        (
            {"startingOffsets": '{"orders": {"0": {"0": "x"}}}'},
            "the text 'x'; text must be a time with its zone",
        ),
        ({"policy": "strict"}, "decides how the levels share maxRecordsPerTrigger, which is not given"),
        ({"policy": "lifo", "maxRecordsPerTrigger": "9"}, "policy` is 'lifo'. Choose capacity_burst, fair or strict."),
        ({"distributor": "1,2", "maxRecordsPerTrigger": "9"}, "2 weights were given for 3 levels"),
        ({"distributor": "even", "maxRecordsPerTrigger": "9"}, "a weight for each level"),
        ({"distributor": "linear", "policy": "strict", "maxRecordsPerTrigger": "9"}, "'strict' takes no distributor"),
        (
            {"strictMaxWait": "5s", "maxRecordsPerTrigger": "9"},
            "strictMaxWait` is for the policy 'strict', not for 'fair'",
        ),
        ({"targetTriggerTime": "100ms"}, "targetTriggerTime` is '100ms'; it must be at least 0.25 s"),
        ({"targetTriggerTime": "soon"}, "targetTriggerTime` is 'soon'; it must be a duration"),
        ({"targetTriggerTime": "1s", "policy": "capacity_burst"}, "'capacity_burst' divides it into fixed shares"),
        (
            {"targetTriggerTime": "1s", "minRecordsPerTrigger": "2"},
            "minRecordsPerTrigger` waits for many records, but targetTriggerTime asks for short micro-batches.",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay` is 'soon'; it must be a duration"),
        ({"minRecordsPerTrigger": "10", "maxRecordsPerTrigger": "9"}, "is 10, which is above maxRecordsPerTrigger=9"),
        ({"isolation": "dirty"}, "isolation` is 'dirty'. Choose read_committed or read_uncommitted."),
        ({"kafka.isolation.level": "x"}, "kafka.isolation.level` cannot be set. Use the option `isolation`."),
        ({"kafka.group.id": "x"}, "kafka.group.id` cannot be set. Use the option `group.id`."),
        ({"includeHeaders": "yes"}, "includeHeaders` is 'yes'. Choose true or false."),
        (
            {"kafka.auto.offset.reset": "latest"},
            "kafka.auto.offset.reset` cannot be set, because Spark's checkpoint decides",
        ),
        ({"maxOffsetsPerTrigger": "10"}, "no option `maxoffsetspertrigger`. Did you mean maxRecordsPerTrigger?"),
        ({"bootstrap.servers": "x"}, "no option `bootstrap.servers`. Did you mean kafka.bootstrap.servers?"),
        ({"xyz": "1"}, "no option `xyz`. The options are subscribe, subscribePattern, assign, priorities, levels"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_what_to_do(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(GIVEN | wrong)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("subscribePattern", "shop_(", "is not a valid regular expression"),
        ("assign", "orders", "it must be JSON, such as"),
        ("assign", '{"orders": [-1]}', "it must be JSON, such as"),
        ("assign", '{"orders": []}', "names no partition"),
    ],
)
def test_a_selection_that_selects_nothing_is_a_sentence(option: str, value: str, sentence: str) -> None:
    options = {name: given for name, given in GIVEN.items() if name != "subscribe"} | {option: value}
    with pytest.raises(ConfigError) as caught:
        parse(options)
    assert sentence in str(caught.value)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(ConfigError, match=r"needs the option `kafka.bootstrap.servers`"):
        parse({name: value for name, value in GIVEN.items() if name != "kafka.bootstrap.servers"})


PLAIN = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def test_topics_without_levels_are_read_under_their_own_names() -> None:
    naming = parse(PLAIN | {"subscribe": "orders"}).naming
    assert (naming.levels, naming.level_count) == (None, 1)
    assert naming.kafka_topics(["orders"]) == [("orders", 0, "orders")]


def test_topics_that_exist_have_the_levels_that_are_given_to_them() -> None:
    parsed = parse(PLAIN | {"priorities": '{"payments": 2, "clicks": 0}', "maxRecordsPerTrigger": "14"})
    assert parsed.selection.topics == ("payments", "clicks")
    assert parsed.naming.kafka_topics(parsed.selection.topics) == [("payments", 2, "payments"), ("clicks", 0, "clicks")]
    policy = parsed.make_policy()
    assert policy is not None
    assert len(policy.demand([Unread({}, 0, Sightings())] * 3)) == 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"priorities": '{"payments": -1}'},
            "priorities` gives payments the level -1; it must be a whole number from 0",
        ),
        ({"priorities": '{"payments": 1000}'}, "the level 1000; it must be a whole number from 0, the lowest, to 999"),
        ({"priorities": '{"payments": true}'}, "priorities` gives payments the level True; it must be a whole number"),
        ({"priorities": '{"payments": "2"}'}, "gives payments the level '2'; it must be a whole number"),
        ({"priorities": "{}"}, "The option `priorities` names no topic. Name at least one"),
        ({"priorities": "payments"}, "The option `priorities` is 'payments'; it must be JSON, such as"),
        ({"priorities": '{"payments": 1}', "levels": "3"}, "Remove one of the two."),
        ({"priorities": '{"payments": 1}', "subscribe": "orders"}, "subscribe and priorities were given"),
    ],
)
def test_wrong_priorities_are_a_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(PLAIN | given)
    assert sentence in str(caught.value)


def test_a_setting_that_librdkafka_does_not_know_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'fetch\.wait\.ms' is not known\. Did you mean 'fetch\.wait\.max\.ms'\?"):
        check_kafka(parse(GIVEN | {"kafka.fetch.wait.ms": "1"}))
