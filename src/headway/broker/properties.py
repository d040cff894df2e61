"""The settings of a local Apache Kafka's nodes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.broker.node import Node
from headway.broker.ports import HOST


def server_properties(node: Node, nodes: Sequence[Node], data_dir: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return all properties of `node` in a cluster of `nodes`, secured if they have a `tls_port`. `extra` wins."""
    several = _replication(len(nodes)) | _patience(len(nodes))
    return _identity(node, nodes, data_dir) | _quick_and_small() | several | dict(extra)


def render(properties: Mapping[str, str]) -> str:
    r"""Format the text of a Java properties file: Latin-1, with the escapes that JSON has too.

    >>> print(render({"log.dirs": "/home/zoë/data", "node.id": "1"}), end="")
    log.dirs=/home/zo\u00eb/data
    node.id=1
    """
    return "".join(f"{key}={json.dumps(value)[1:-1]}\n" for key, value in properties.items())


def _identity(node: Node, nodes: Sequence[Node], data_dir: Path) -> dict[str, str]:
    if node.tls_port is None:
        listeners = f"PLAINTEXT://{HOST}:{node.port}"
    else:
        listeners = f"SASL_SSL://{HOST}:{node.port},SSL://{HOST}:{node.tls_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(f"{n.id}@{HOST}:{n.controller_port}" for n in nodes),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listeners},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": listeners,
        "log.dirs": str(data_dir),
    }


def _replication(nodes: int) -> dict[str, str]:
    """Return the settings for three copies on three nodes, one of which may fail."""
    copies, in_sync = str(min(nodes, 3)), str(min(nodes, 2))
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def _patience(nodes: int) -> dict[str, str]:
    """Return a longer heartbeat interval for several nodes, where a coordinator may wait for another node that fails.

    librdkafka loses answers that take longer than the interval (docs/design/librdkafka.md).
    """
    return {"group.consumer.heartbeat.interval.ms": "5000"} if nodes > 1 else {}


def _quick_and_small() -> dict[str, str]:
    return {
        # A misspelt topic must be an error, not create a new topic.
        "auto.create.topics.enable": "false",
        # The default is 50 partitions, each with its own files and leader.
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.num.partitions": "8",
        # The first member of a group need not wait for others.
        "group.initial.rebalance.delay.ms": "0",
        # Members may ask for shorter heartbeats and sessions than Kafka allows by default …
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        # … and in the newer protocol, where the broker decides, a rebalance takes one second instead of five. A single
        # node waits for no other.
        "group.consumer.heartbeat.interval.ms": "1000",
        # The log cleaner allocates this at once; the default is 128 MiB.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }
