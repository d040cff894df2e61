"""The options and columns of the sink: what is refused, and how that is said."""

import pytest
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

from headway.errors import ConfigError
from headway.spark.sink.options import TARGETS, SinkOptions, check_columns, for_batch, for_stream, parse, topics_of

KAFKA = {"kafka.bootstrap.servers": "there:9092"}


def test_names_come_in_any_case_and_settings_of_kafka_keep_theirs() -> None:
    options = parse({**KAFKA, "TxnAppId": "job", "txnversion": "7", "kafka.linger.ms": "1", "checkpointLocation": "x"})
    assert (options.app_id, options.version) == ("job", 7)
    assert options.kafka == {"bootstrap.servers": "there:9092", "linger.ms": "1"}
    assert options.delivery == "exactly_once"


def test_the_topics_of_a_write_are_those_of_its_options_or_those_that_outputs_names() -> None:
    plain = StructType([StructField("value", StringType()), StructField("identity", StringType())])
    named = StructType([StructField("identity", StringType(), metadata={TARGETS: ["receipts", "dead"]})])
    assert topics_of(plain, parse({**KAFKA, "topic": "orders"})) == ("orders",)
    assert topics_of(plain, parse({**KAFKA, "priorities": '{"payments": 2, "clicks": 0}'})) == ("clicks", "payments")
    assert topics_of(named, parse(KAFKA)) == ("dead", "receipts")
    assert topics_of(plain, parse(KAFKA)) == ()


def test_settings_that_can_be_secret_are_not_in_the_repr() -> None:
    assert "hunter2" not in repr(parse({**KAFKA, "kafka.sasl.password": "hunter2"}))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "Spark does not pass the options of CREATE TABLE to data sources in Python: use CREATE TEMPORARY VIEW"),
        ({}, "needs the option `kafka.bootstrap.servers`"),
        ({**KAFKA, "topc": "orders"}, "no option `topc`. Did you mean topic?"),
        ({**KAFKA, "delivery": "once"}, "The option `delivery` is 'once'. Choose exactly_once or at_least_once."),
        ({**KAFKA, "txnAppId": "job"}, "belong together"),
        (
            {**KAFKA, "txnAppId": "job", "txnVersion": "1", "delivery": "at_least_once"},
            "but delivery=at_least_once never skips rows",
        ),
        ({**KAFKA, "txnAppId": "job", "txnVersion": "-1"}, "txnVersion` is '-1'; it must be a whole number"),
        (
            {**KAFKA, "txnAppId": "job", "txnVersion": "9" * 5_000},
            "it must be at most 9223372036854775807: a number that grows",
        ),
        (
            {**KAFKA, "keepVersion": "1" + "0" * 22},
            "keepVersion` is '10000000000000000000000'; it must be at most 9223372036854775807",
        ),
        ({**KAFKA, "keepVersion": "last"}, "keepVersion` is 'last'; it must be a whole number"),
        (
            {**KAFKA, "keepVersion": "1", "delivery": "at_least_once"},
            "keepVersion` applies to delivery=exactly_once only.",
        ),
        (
            {**KAFKA, "markerTopic": "m", "delivery": "at_least_once"},
            "markerTopic` applies to delivery=exactly_once only.",
        ),
        ({**KAFKA, "path": "orders"}, "a path, but 'orders' was given. Name a topic with the `topic` option."),
        ({**KAFKA, "kafka.transactional.id": "x"}, "kafka.transactional.id` cannot be set"),
    ],
)
def test_a_wrong_option_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.").replace("?", r"\?")):
        parse(given)


def test_a_stream_takes_no_version_of_its_own() -> None:
    with pytest.raises(ConfigError, match="a stream uses the query's id"):
        for_stream(parse({**KAFKA, "txnAppId": "job", "txnVersion": "1"}))


def test_a_write_without_a_name_has_no_version_to_keep() -> None:
    with pytest.raises(ConfigError, match="keepVersion` is for a write with txnAppId and txnVersion"):
        for_batch(parse({**KAFKA, "keepVersion": "1"}))
    assert for_batch(parse({**KAFKA, "keepVersion": "1", "txnAppId": "job", "txnVersion": "1"})).keep_version == 1


TYPES = {"string": StringType(), "int": IntegerType(), "double": DoubleType()}


def columns(text: str) -> StructType:
    """A schema as "name type, name type"."""
    pairs = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


@pytest.mark.parametrize(
    ("schema", "topic", "sentence"),
    [
        (columns("value string"), None, "needs a `topic` column, or the `topic` option"),
        (columns("topic string, value string"), "orders", "both a `topic` column and the `topic` option"),
        (columns("topic string"), None, "needs a `value` column, but the columns are topic"),
        (columns("value string, levle int"), "orders", "no `levle` column. Did you mean level?"),
        (columns("value string, due string"), "orders", "due` is string; the headway sink needs a timestamp."),
        (columns("value string, offset int"), "orders", "no `offset` column"),
        (columns("value string, identity double"), "orders", "identity` is double; the headway sink needs a string"),
        (columns("value string, level double"), "orders", "level` is double; the headway sink needs a whole number."),
        (
            columns("value string, headers string"),
            "orders",
            "needs array<struct<key: string, value: binary>>.",
        ),
    ],
)
def test_a_wrong_column_is_one_sentence(schema: StructType, topic: str | None, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_columns(schema, SinkOptions(kafka={}, topic=topic))
    assert sentence in str(refused.value)
