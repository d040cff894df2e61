"""The settings of a node."""

from pathlib import Path

from headway.broker.node import Node
from headway.broker.properties import server_properties


def settings(count: int, extra: dict[str, str] | None = None) -> dict[str, str]:
    nodes = [Node(i, 9000 + i, 9100 + i, Path(f"/data/node-{i}")) for i in range(1, count + 1)]
    return server_properties(nodes[0], nodes, nodes[0].data_dir, extra or {})


def test_one_node_asks_for_one_replica() -> None:
    assert {value for key, value in settings(1).items() if key.endswith("replication.factor")} == {"1"}
    assert {value for key, value in settings(1).items() if key.endswith("min.isr")} == {"1"}


def test_three_nodes_keep_three_replicas_and_work_with_two() -> None:
    assert {value for key, value in settings(3).items() if key.endswith("replication.factor")} == {"3"}
    assert settings(3)["min.insync.replicas"] == settings(3)["transaction.state.log.min.isr"] == "2"


def test_every_node_votes_and_listens_on_the_loopback_interface_only() -> None:
    three = settings(3)
    assert three["controller.quorum.voters"] == "1@127.0.0.1:9101,2@127.0.0.1:9102,3@127.0.0.1:9103"
    assert three["listeners"] == "PLAINTEXT://127.0.0.1:9001,CONTROLLER://127.0.0.1:9101"


def test_given_properties_win() -> None:
    assert settings(1, {"auto.create.topics.enable": "true"})["auto.create.topics.enable"] == "true"
