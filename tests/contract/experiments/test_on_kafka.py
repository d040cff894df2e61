"""The experiments on a real Kafka, small."""

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from headway import cli
from headway.broker import LocalBroker
from headway.experiments.backends import KafkaBackend
from headway.experiments.kafka_run import topic_of_run
from headway.experiments.level_figures import level_figures
from headway.experiments.level_setup import LEVELS, WAYS, ConsumerName, LevelSetup, RecordWave
from headway.kafka.admin import Admin

pytestmark = pytest.mark.kafka

SETUP = LevelSetup((RecordWave(0.0, 90), RecordWave(4.0, 30)), members=2, slots=14, poll_records=14)


@pytest.mark.parametrize("consumer", ["parallel", "priority"])
def test_each_record_is_handled_once(headway_broker: LocalBroker, consumer: ConsumerName) -> None:
    config = {"bootstrap.servers": headway_broker.bootstrap_servers}
    log = KafkaBackend(config, speed=10).run_levels(SETUP, WAYS[2], consumer, lambda done: None)
    assert Counter(log.levels) == dict.fromkeys(range(LEVELS), SETUP.records)
    assert level_figures(log, SETUP, SETUP.limit(consumer)).overshoot == 0


def test_the_topics_of_a_run_are_deleted_at_its_end(headway_broker: LocalBroker) -> None:
    config = {"bootstrap.servers": headway_broker.bootstrap_servers}
    with topic_of_run(config, partitions=1, levels=2) as topic:
        assert sorted(Admin(config).topics(named=topic.kafka_topics).seen) == topic.kafka_topics
    assert not Admin(config).topics(named=topic.kafka_topics).seen


def test_the_command_runs_on_the_kafka_that_is_given(headway_broker: LocalBroker, tmp_path: Path) -> None:
    arguments = ["experiment", "keys", "--records", "100", "--output", str(tmp_path), "--speed", "2"]
    result = CliRunner().invoke(cli.headway, [*arguments, "-b", headway_broker.bootstrap_servers])
    assert result.exit_code == 0, result.output
    assert "on Apache Kafka, 2 times as fast as the times shown" in result.stdout.replace("\n", " ")
    assert (tmp_path / "keys.html").exists()
