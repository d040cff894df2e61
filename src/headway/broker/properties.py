"""The properties, or broker settings, of the nodes of a local Apache Kafka."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.broker.node import Node
from headway.broker.ports import HOST


def server_properties(node: Node, nodes: Sequence[Node], data_dir: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return all properties of `node` in a cluster of `nodes`, which is secured if the nodes have a `tls_port`.

    The properties in `extra` override all others.
    """
    several = _replication(len(nodes)) | _patience(len(nodes))
    return _identity(node, nodes, data_dir) | _quick_and_small() | several | dict(extra)


def render(properties: Mapping[str, str]) -> str:
    r"""Return the text of a Java properties file, in ASCII with the same escapes as in JSON.

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
    """Return the replication settings: with three nodes there are three replicas, and one node can fail."""
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
    """Return the setting for a longer heartbeat interval if the cluster has several nodes.

    With several nodes, a coordinator's answer can take longer, because the coordinator waits for a node that has
    failed. librdkafka loses answers that take longer than the heartbeat interval (docs/design/librdkafka.md).
    """
    return {"group.consumer.heartbeat.interval.ms": "5000"} if nodes > 1 else {}


def _quick_and_small() -> dict[str, str]:
    return {
        # A misspelt topic name must be an error, and must not create a new topic.
        "auto.create.topics.enable": "false",
        # The default is 50 partitions, which is slow, because each partition has its own files and leader.
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.num.partitions": "8",
        # The first member of a group does not wait for other members.
        "group.initial.rebalance.delay.ms": "0",
        # Members can request shorter heartbeat intervals and session timeouts than Kafka allows by default.
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        # In the newer group protocol the broker sets the heartbeat interval. With one second instead of five, a
        # rebalance takes about one second. `_patience` explains why this is too short for several nodes.
        "group.consumer.heartbeat.interval.ms": "1000",
        # The log cleaner allocates this buffer at the start; the default is 128 MiB.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }
