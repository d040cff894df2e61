from typing import Any

import pytest

from headway.errors import ConfigError
from headway.settings.config import ConsumerSettings, ParallelSettings, ProducerSettings, check_servers

CONSUMER: dict[str, Any] = {"levels": 3, "group.id": "billing", "max.poll.records": 50}


def refusal(**changes: Any) -> str:
    config = {key: value for key, value in (CONSUMER | changes).items() if value is not ...}
    with pytest.raises(ConfigError) as caught:
        ConsumerSettings.parse(config)
    return str(caught.value)


def test_a_mandatory_number_that_is_missing_is_named() -> None:
    assert "The setting levels is missing" in refusal(levels=...)


def test_a_poll_returns_as_many_records_as_the_java_client_s_unless_it_is_told() -> None:
    assert ConsumerSettings.parse({"levels": 3, "group.id": "billing"}).capacity == 500


def test_a_missing_group_is_named() -> None:
    assert "group.id is None; it must be a non-empty string" in refusal(**{"group.id": ...})


def test_a_scheduler_has_a_name() -> None:
    assert ProducerSettings.parse({"levels": 1}).scheduler == "headway-delay"
    with pytest.raises(ConfigError, match=r"scheduler\.name is ''; it must be a non-empty string"):
        ProducerSettings.parse({"levels": 1, "scheduler.name": ""})


def test_a_misspelt_mandatory_setting_is_suggested() -> None:
    assert "levels is missing; 'level' may be a misspelling of it" in refusal(levels=..., level=3)


def test_the_java_clients_name_for_the_levels_is_refused_with_ours() -> None:
    for config in (CONSUMER | {"max.priority": 3}, {"group.id": "billing", "max.priority": 3}):
        for settings in (ConsumerSettings, ParallelSettings, ProducerSettings):
            with pytest.raises(ConfigError, match=r"max\.priority cannot be used here. .* Set levels instead"):
                settings.parse(config)


@pytest.mark.parametrize("value", ["three", 2.5, True, [3]])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    assert "must be a whole number" in refusal(levels=value)


def test_numbers_may_be_strings_as_in_a_properties_file() -> None:
    assert ConsumerSettings.parse(CONSUMER | {"levels": "3"}).levels == 3


@pytest.mark.parametrize("key", ["levels", "max.poll.records", "max.poll.history.window.size"])
def test_numbers_below_one_are_refused_with_the_bound(key: str) -> None:
    assert f"The setting {key} is 0; it must be at least 1" in refusal(**{key: 0})


def test_the_threshold_cannot_exceed_the_window() -> None:
    message = refusal(**{"max.poll.history.window.size": 6, "min.poll.window.maxout.threshold": 7})
    assert message == (
        "The setting min.poll.window.maxout.threshold is 7; "
        "it must be at most 6, the value of max.poll.history.window.size."
    )


def test_the_default_threshold_fits_a_small_window() -> None:
    assert ConsumerSettings.parse(CONSUMER | {"max.poll.history.window.size": 2}).threshold == 2


def test_the_java_clients_defaults_hold() -> None:
    settings = ConsumerSettings.parse(CONSUMER)
    assert (settings.window_size, settings.threshold) == (6, 4)


def test_other_keys_go_to_kafka_and_our_own_do_not() -> None:
    settings = ConsumerSettings.parse(CONSUMER | {"fetch.min.bytes": 7, "enable.auto.commit": "false"})
    assert settings.kafka == {"fetch.min.bytes": 7}
    assert settings.auto_commit_interval is None


def test_a_setting_that_would_commit_what_was_not_returned_is_refused() -> None:
    assert "enable.auto.offset.store cannot be used here" in refusal(**{"enable.auto.offset.store": True})


def test_secrets_are_not_in_the_repr() -> None:
    secret = {"sasl.password": "hunter2"}
    assert "hunter2" not in repr(ConsumerSettings.parse(CONSUMER | secret))
    assert "hunter2" not in repr(ProducerSettings.parse({"levels": 1} | secret))


def test_a_deserialiser_must_be_a_function() -> None:
    assert "value.deserializer is 'json'; it must be a function" in refusal(**{"value.deserializer": "json"})


def idempotence(**settings: Any) -> Any:
    return ProducerSettings.parse({"levels": 1} | settings).kafka["enable.idempotence"]


@pytest.mark.parametrize(
    "settings",
    [{}, {"acks": "all"}, {"acks": -1}, {"max.in.flight": "5"}, {"retries": 1}, {"queuing.strategy": "fifo"}],
)
def test_idempotence_is_on_by_default(settings: dict[str, Any]) -> None:
    assert idempotence(**settings) is True


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 1},
        {"request.required.acks": "0"},
        {"max.in.flight": 6},
        {"max.in.flight.requests.per.connection": "1000"},
        {"retries": 0},
        {"message.send.max.retries": "0"},
        {"queuing.strategy": "LIFO"},
    ],
)
def test_idempotence_is_off_where_another_setting_rules_it_out(settings: dict[str, Any]) -> None:
    assert idempotence(**settings) is False


def test_who_sets_idempotence_is_heard() -> None:
    assert idempotence(**{"enable.idempotence": "false"}) == "false"
    assert idempotence(**{"enable.idempotence": True, "acks": 1}) is True


def test_a_transactional_producer_stays_idempotent_whatever_else_is_set() -> None:
    assert idempotence(**{"transactional.id": "billing", "acks": 1}) is True


@pytest.mark.parametrize("key", ["bootstrap.servers", "metadata.broker.list"])
def test_the_address_of_a_page_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_servers({key: "one:9092, https://me:secret@two:8080"})
    assert "begins with 'https://'. Write the addresses of Kafka's brokers as host:port" in str(refused.value)
    assert "secret" not in str(refused.value)
    check_servers({key: "PLAINTEXT://one:9092,sasl_ssl://two:9093,three"})


def test_a_port_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="has the port 99999; a port must be from 1 to 65535"):
        check_servers({"bootstrap.servers": "one:9092,two:99999"})
