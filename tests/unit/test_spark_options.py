"""The options of `format("headway")`: each mistake is a sentence that says what to do."""

import pytest

from headway.errors import ConfigError
from headway.spark.options import Options, check_kafka, parse

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
    assert parsed == Options(
        topics=("orders", "returns"),
        levels=3,
        kafka={"bootstrap.servers": "127.0.0.1:1", "ssl.ca.location": "ca.pem"},
        max_records=50,
        starting_offsets="latest",
        include_headers=True,
    )


def test_what_is_not_given_stays_open() -> None:
    parsed = parse(GIVEN)
    assert (parsed.max_records, parsed.starting_offsets, parsed.include_headers) == (None, None, False)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"subscribe": " , "}, "The option subscribe is ','. Name one topic or more"),
        ({"subscribe": ""}, "needs the option subscribe"),
        ({"levels": "0"}, "The option levels is '0'; it must be a whole number of at least 1"),
        ({"levels": "-1"}, "The option levels is '-1'"),
        ({"levels": "2.5"}, "The option levels is '2.5'"),
        ({"maxRecordsPerTrigger": "6"}, "maxRecordsPerTrigger is '6'; it must be a whole number of at least 7"),
        ({"startingOffsets": "first"}, "startingOffsets is 'first'. Choose earliest or latest."),
        ({"includeHeaders": "yes"}, "includeHeaders is 'yes'. Choose true or false."),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset cannot be set: Spark's checkpoint says"),
        ({"maxOffsetsPerTrigger": "10"}, "no option maxoffsetspertrigger. Did you mean maxRecordsPerTrigger?"),
        ({"bootstrap.servers": "x"}, "no option bootstrap.servers. Did you mean kafka.bootstrap.servers?"),
        ({"xyz": "1"}, "no option xyz. It has subscribe, levels"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_what_to_do(wrong: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(GIVEN | wrong)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("missing", GIVEN)
def test_a_missing_option_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"needs the option {missing}"):
        parse({name: value for name, value in GIVEN.items() if name != missing})


def test_a_setting_that_librdkafka_does_not_know_is_named() -> None:
    with pytest.raises(ConfigError, match=r'No such configuration property: "fetch.wait.ms"'):
        check_kafka(parse(GIVEN | {"kafka.fetch.wait.ms": "1"}))
