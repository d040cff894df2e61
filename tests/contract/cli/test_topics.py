"""`headway topics` against Apache Kafka."""

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from headway import Scheduler, cli
from headway.cli.options.kafka_options import connect

if TYPE_CHECKING:
    from headway.broker import LocalBroker

pytestmark = pytest.mark.kafka


@pytest.fixture(autouse=True)
def servers(headway_broker: "LocalBroker", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", headway_broker.bootstrap_servers)


def topics(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli.headway, ["topics", *arguments], input=answer)


def listed(name: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in topics("list", "--json").stdout.splitlines()]
    return [each for each in found if str(each["name"]).startswith(name)]


def test_a_topic_is_created_listed_and_deleted_with_its_levels(headway_topic: str) -> None:
    created = topics("create", headway_topic, "--levels", "3", "--partitions", "6")
    names = ", ".join(f"{headway_topic}-{level}" for level in range(3))
    kept = "Kafka deletes records after 30 days, handled or not. Change this with --retention."
    assert created.stdout == f"Created {names} with 6 partitions each.\n{kept}\n"
    assert listed(headway_topic) == [{"name": headway_topic, "levels": 3, "partitions": [6, 6, 6]}]
    assert [headway_topic, "3", "6"] in [line.split() for line in topics("list").stdout.splitlines()]
    assert topics("delete", headway_topic, "--levels", "3", "--yes").stdout == f"Deleted {names}.\n"
    assert listed(headway_topic) == []


def test_a_topic_without_levels_is_created_and_deleted_under_its_own_name(headway_topic: str) -> None:
    assert topics("create", headway_topic).stdout.startswith(
        f"Created {headway_topic} with 1 partition.\nKafka deletes"
    )
    assert listed(headway_topic) == [{"name": headway_topic, "levels": None, "partitions": [1]}]
    assert topics("delete", headway_topic, "--yes").stdout == f"Deleted {headway_topic}.\n"
    assert listed(headway_topic) == []


def test_deleting_asks_first(headway_topic: str) -> None:
    topics("create", headway_topic, "--levels", "2")
    refused = topics("delete", headway_topic, answer="n\n")
    assert refused.exit_code == 1
    assert f"Delete {headway_topic}-0, {headway_topic}-1 and all their records?" in refused.stderr
    assert len(listed(headway_topic)) == 1
    assert topics("delete", headway_topic, answer="y\n").exit_code == 0
    assert listed(headway_topic) == []


def test_a_topic_that_exists_is_an_error_and_none_of_its_levels_is_created(headway_topic: str) -> None:
    topics("create", headway_topic, "--levels", "1")
    result = topics("create", headway_topic, "--levels", "2")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"headway: Kafka already has {headway_topic}-0, so no topic was created.")
    assert [each["levels"] for each in listed(headway_topic)] == [1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--config", "retention=1"], "Unknown topic config name: retention"),
        (["--replication-factor", "3"], "only 1 broker"),
    ],
)
def test_what_kafka_refuses_is_told_in_its_words(headway_topic: str, arguments: list[str], reason: str) -> None:
    result = topics("create", headway_topic, "--levels", "2", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"headway: Kafka did not create {headway_topic}-0, {headway_topic}-1 (")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_topic_that_there_is_not_cannot_be_deleted_and_is_not_proposed_for_creation(headway_topic: str) -> None:
    result = topics("delete", headway_topic, "--yes")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"headway: Kafka has no topic {headway_topic} and no {headway_topic}-0, its lowest level."
    )
    assert result.stderr.endswith("`headway topics list` lists the topics.\n")
    assert "create" not in result.stderr
    topics("create", f"{headway_topic}-plain")
    assert f"Did you mean {headway_topic}-plain? " in topics("delete", f"{headway_topic}-plan").stderr
    with_levels = topics("delete", f"{headway_topic}-plain", "--levels", "2")
    assert f"{headway_topic}-plain exists without levels. Leave out the number of levels" in with_levels.stderr


def test_a_topic_that_there_is_not_can_be_created_with_levels_or_without_to_send_there(headway_topic: str) -> None:
    sent = CliRunner().invoke(cli.headway, ["produce", headway_topic], input="one\n")
    assert sent.exit_code == 1
    create = f"Create it with `headway topics create {headway_topic} --levels 3`."
    assert sent.stderr.endswith(f"{create} Leave --levels out for a topic without levels.\n")
    topics("create", headway_topic)
    assert CliRunner().invoke(cli.headway, ["produce", headway_topic], input="one\n").exit_code == 0
    sent = CliRunner().invoke(cli.headway, ["produce", headway_topic, "--levels", "3"], input="one\n")
    assert f"{headway_topic} exists without levels. Leave out the number of levels." in sent.stderr


def test_the_local_broker_is_found_without_being_told(
    headway_broker: "LocalBroker", headway_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_BOOTSTRAP_SERVERS")
    monkeypatch.setattr("headway.broker.data_dir.default_data_dir", lambda *args, **kwargs: headway_broker.data_dir)
    assert topics("create", headway_topic, "--levels", "1").exit_code == 0
    assert connect(None, [], None).config["bootstrap.servers"] == headway_broker.bootstrap_servers


@pytest.mark.parametrize(
    ("arguments", "kept", "says"),
    [
        ([], "2592000000", "after 30 days"),
        (["--retention", "36h"], "129600000", "after 36 hours"),
        (["--retention", "forever"], "-1", "as long as the topic exists"),
        (["--config", "retention.ms=60000"], "60000", "as set by retention.ms=60000"),
    ],
)
def test_the_retention_is_chosen_and_said(
    headway_broker: "LocalBroker", headway_topic: str, arguments: list[str], kept: str, says: str
) -> None:
    assert says in topics("create", headway_topic, *arguments).stdout
    admin = AdminClient({"log_level": 0, "bootstrap.servers": headway_broker.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, headway_topic)
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == kept


@pytest.mark.parametrize("arguments", [["5"], ["0d"], ["1d", "--config", "retention.ms=5"], ["-1"], ["101y"]])
def test_a_retention_that_is_not_valid_creates_nothing(headway_topic: str, arguments: list[str]) -> None:
    assert topics("create", headway_topic, "--retention", *arguments).exit_code != 0
    assert listed(headway_topic) == []


@pytest.mark.slow
def test_the_topics_that_a_scheduler_keeps_for_itself_are_listed_only_with_all(
    headway_topic: str, headway_broker: "LocalBroker"
) -> None:
    Scheduler(headway_broker.client_config(), name=headway_topic).close()
    topics("create", f"{headway_topic}.commands.orders")
    result = topics("list")
    shown = [line.split()[0] for line in result.stdout.splitlines() if line.startswith(headway_topic)]
    assert shown == [f"{headway_topic}.commands.orders"]
    assert "of the scheduler" in result.stderr
    assert headway_topic in result.stderr
    assert f"{headway_topic}.state" in topics("list", "--all").stdout


def test_the_topics_of_shared_rate_limits_are_listed_only_with_all(headway_topic: str) -> None:
    name = f"headway-rates-{headway_topic}"
    topics("create", name)
    assert listed(name) == []
    assert "that Headway uses internally" in topics("list").stderr
    assert name in topics("list", "--all").stdout
