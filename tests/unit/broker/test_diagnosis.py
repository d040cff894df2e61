"""What a failed start says, from logs as Kafka 4.3.1 and the JVM write them."""

from pathlib import Path

import pytest

from headway.broker.node import Node, diagnose, missing_metadata
from headway.errors import LocalBrokerError

FATAL = "2026-01-01T00:00:00.000 [main] ERROR kafka.Kafka$ - Exiting Kafka due to fatal exception\n"
TRACE = "\tat kafka.Kafka$.main(Kafka.scala:75)\n"

LOGS = {
    "in use by another broker": FATAL
    + "org.apache.kafka.common.KafkaException: Failed to acquire lock on file .lock in /d.\n"
    + TRACE,
    "port of node 1 was taken": FATAL
    + "org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:9092: "
    + "Address already in use.\n"
    + TRACE,
    r"refused a property: Invalid value abc for .* type INT\. Correct": FATAL
    + "org.apache.kafka.common.config.ConfigException: Invalid value abc for configuration num.partitions: "
    + "Not a number of type INT\n",
    r"stopped during its start \(File ended prematurely\)\. If its data is damaged, restore": FATAL
    + f"java.lang.RuntimeException: wrapped\n{TRACE}Caused by: java.io.EOFException: File ended prematurely.\n{TRACE}",
    r"stopped during its start \(Exiting Kafka due to fatal exception\)": FATAL,
    r"stopped during its start \(Unrecognized option: -Xfoo\)": "Unrecognized option: -Xfoo\n",
    "it logged nothing": "",
}


@pytest.mark.parametrize("sentence", LOGS)
def test_a_failed_start_is_one_sentence(sentence: str, tmp_path: Path) -> None:
    node = Node(1, 9092, 9093, tmp_path)
    node.log_file.write_text(LOGS[sentence])
    with pytest.raises(LocalBrokerError, match=sentence):
        raise diagnose(node)


def test_metadata_that_come_up_empty_beside_topics_are_missed(tmp_path: Path) -> None:
    node = Node(1, 9092, 9093, tmp_path)
    node.log_file.write_text("WARN … Performing controller activation. The metadata log appears to be empty. …\n")
    (node.data_dir / "__cluster_metadata-0").mkdir(parents=True)
    assert missing_metadata(node) is None  # a first start
    (node.data_dir / "orders-0-5").mkdir()
    assert "was damaged" in str(missing_metadata(node))
