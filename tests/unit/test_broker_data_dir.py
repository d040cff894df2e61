"""Who may start a broker in a directory, and on a port."""

import os
import socket
from pathlib import Path

import pytest

from headway.broker import LocalBroker
from headway.broker.data_dir import Description, NodeDescription, claim, read_description, starting_in
from headway.broker.ports import choose_ports, free_ports, require_free
from headway.errors import ConfigError, LocalBrokerError


def describe(data_dir: Path, *, ephemeral: bool = False) -> Description:
    """As an earlier start leaves the directory, with a process id that is now another process's: ours."""
    description = Description("hcluster", ephemeral, "classes.jsa.1", [NodeDescription(1, 9092, 9093)])
    description.write(data_dir)
    (data_dir / "node-1").mkdir()
    (data_dir / "node-1" / "pid").write_text(str(os.getpid()))
    return description


def test_a_new_directory_may_be_claimed(tmp_path: Path) -> None:
    with starting_in(tmp_path / "new"):
        assert claim(tmp_path / "new", ephemeral=True) is None


def test_a_dead_brokers_process_id_is_no_hindrance_even_if_reused(tmp_path: Path) -> None:
    description = describe(tmp_path)
    assert claim(tmp_path, ephemeral=False) == description
    assert not LocalBroker.attach(tmp_path).running


def test_stopping_a_dead_broker_leaves_the_process_with_its_id_alone(tmp_path: Path) -> None:
    describe(tmp_path)
    LocalBroker.attach(tmp_path).stop()


def test_a_directory_with_somebodys_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(LocalBrokerError, match="not empty and holds no broker"):
        LocalBroker(data_dir=tmp_path, ephemeral=True).start()
    assert (tmp_path / "thesis.txt").exists()


def test_an_ephemeral_broker_does_not_take_over_records_that_are_kept(tmp_path: Path) -> None:
    describe(tmp_path)
    with pytest.raises(LocalBrokerError, match="holds records that are kept"):
        claim(tmp_path, ephemeral=True)


def test_what_a_dead_ephemeral_broker_left_is_removed(tmp_path: Path) -> None:
    describe(tmp_path, ephemeral=True)
    assert claim(tmp_path, ephemeral=False) is None
    assert not (tmp_path / "node-1").exists()


def test_a_damaged_description_is_one_sentence(tmp_path: Path) -> None:
    for damage in ("", "[]", '{"nodes": 1}', '{"nodes": [{"id": 1}]}', "\0"):
        (tmp_path / "broker.json").write_text(damage)
        with pytest.raises(LocalBrokerError, match="is damaged"):
            read_description(tmp_path)


def test_a_description_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broker.json").mkdir()
    with pytest.raises(LocalBrokerError, match=r"broker\.json cannot be read \(Is a directory\)\. Choose another"):
        read_description(tmp_path)


def test_of_two_starts_at_once_the_second_is_told(tmp_path: Path) -> None:
    with (
        starting_in(tmp_path),
        pytest.raises(LocalBrokerError, match="Another process is starting"),
        starting_in(tmp_path),
    ):
        pass


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalBrokerError, match="cannot be used"), starting_in(tmp_path / "file"):
        pass


def test_another_number_of_nodes_than_the_directory_has_is_refused(tmp_path: Path) -> None:
    describe(tmp_path)
    with pytest.raises(LocalBrokerError, match="with nodes=1, and nodes=3 was asked for"):
        LocalBroker(nodes=3, data_dir=tmp_path).start()


def test_fewer_nodes_than_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="nodes must be at least 1; it is 0"):
        LocalBroker(nodes=0)


def test_what_cannot_be_a_port_or_a_data_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="port must be from 1 to 65500; it is 70000"):
        LocalBroker(port=70_000)
    with pytest.raises(ConfigError, match="must not contain a comma"):
        LocalBroker(data_dir="/data/a,b")


def test_an_empty_directory_has_no_broker_to_attach_to(tmp_path: Path) -> None:
    with pytest.raises(LocalBrokerError, match="There is no broker in"):
        LocalBroker.attach(tmp_path)


def test_a_port_in_use_is_one_sentence_that_names_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LocalBrokerError, match=rf"Port {port} .* in use.* choose another"):
            require_free(port)


def test_a_restart_takes_the_earlier_ports_again_unless_one_is_taken() -> None:
    earlier = free_ports(2)
    assert choose_ports(2, None, earlier)[0] == earlier
    with socket.create_server(("127.0.0.1", earlier[1])):
        assert earlier[1] not in choose_ports(2, None, earlier)[0]


def test_controllers_and_clients_have_ports_of_their_own() -> None:
    first = free_ports(1)[0]
    listeners, controllers = choose_ports(1, first, [])
    assert listeners == [first]
    assert set(listeners).isdisjoint(controllers)
