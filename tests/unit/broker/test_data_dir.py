"""Who may start a broker in a directory, and on a port."""

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner

from headway.broker import LocalBroker
from headway.broker.data_dir import (
    Description,
    NodeDescription,
    claim,
    read_description,
    remove,
    remove_stopped,
    starting_in,
)
from headway.broker.ports import choose_ports, free_ports, require_free
from headway.cli import headway
from headway.errors import ConfigError, LocalBrokerError


def describe(data_dir: Path, *, ephemeral: bool = False) -> Description:
    """As an earlier start leaves the directory, with a process id that is now another process's: ours."""
    description = Description("hcluster", ephemeral, "classes.jsa.1", [NodeDescription(1, 9092, 9093)])
    description.write(data_dir)
    (data_dir / "node-1").mkdir()
    (data_dir / "node-1" / "pid").write_text(str(os.getpid()))
    return description


@contextmanager
def running_in(data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An ephemeral broker whose node is a process that waits, with a record."""
    data_dir.mkdir()
    describe(data_dir, ephemeral=True)
    node = data_dir / "node-1"
    (node / "record").write_text("of somebody who is still there")
    (node / "server.properties").touch()
    command = [sys.executable, "-c", "print(flush=True); input()", str(node / "server.properties")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        process.stdout.readline()  # only now is its command line sure to be seen: Popen returns amid the exec
        (node / "pid").write_text(str(process.pid))
        yield process
        process.kill()


@pytest.fixture
def spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Other paths of `tmp_path / "data"`."""
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return [
        str(tmp_path / "link"),
        f"{tmp_path}/elsewhere/../data",
        "../data",
        "../link/.",
        f"{tmp_path}/link/node-1/..",
    ]


def test_a_running_broker_is_known_by_every_spelling_of_its_directory(tmp_path: Path, spellings: list[str]) -> None:
    with running_in(tmp_path / "data"):
        for spelling in spellings:
            assert LocalBroker.attach(spelling).running
            with pytest.raises(LocalBrokerError, match="A broker is already running in"):
                LocalBroker(data_dir=spelling, ephemeral=True).start()
        assert (tmp_path / "data" / "node-1" / "record").exists()


def test_a_broker_that_an_earlier_version_started_by_another_spelling_is_known(
    tmp_path: Path, spellings: list[str]
) -> None:
    with running_in(tmp_path / "data"):
        for spelling in spellings:
            with pytest.raises(LocalBrokerError, match="A broker is already running in"):
                claim(Path(spelling), ephemeral=True)


def test_stop_ends_a_broker_by_another_spelling(tmp_path: Path, spellings: list[str]) -> None:
    for spelling in spellings:
        with running_in(tmp_path / "data") as process:
            stopped = CliRunner().invoke(headway, ["broker", "stop", "--data-dir", spelling])
            assert f"Stopped the broker in {tmp_path / 'data'}; its records were deleted." in stopped.output
            process.wait(30)
        assert not (tmp_path / "data").exists()


def test_records_that_a_kafka_holds_under_another_path_are_not_removed(tmp_path: Path) -> None:
    with running_in(tmp_path / "before"):
        (tmp_path / "before" / "node-1" / "data").mkdir()
        (tmp_path / "before" / "node-1" / "data" / ".lock").touch()
        hold = (
            "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
        )
        lock = tmp_path / "after" / "node-1" / "data" / ".lock"
        (tmp_path / "before").rename(tmp_path / "after")
        command = [sys.executable, "-c", hold, str(lock)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout
            holder.stdout.readline()
            with pytest.raises(LocalBrokerError, match="in use by a broker that was started with another path"):
                claim(tmp_path / "after", ephemeral=True)
            holder.kill()
        assert (tmp_path / "after" / "node-1" / "record").exists()


def test_a_directory_inside_another_brokers_is_refused_and_not_made(tmp_path: Path) -> None:
    describe(tmp_path, ephemeral=True)
    (tmp_path / "link").symlink_to(tmp_path / "node-1")
    for inside in ("node-1", "new/one", "link/new"):
        with pytest.raises(LocalBrokerError, match=f"is inside {tmp_path}, the data directory of another broker"):
            LocalBroker(data_dir=tmp_path / inside, ephemeral=True).start()
    assert not (tmp_path / "new").exists()


def test_a_directory_inside_one_where_a_broker_is_starting_is_refused(tmp_path: Path) -> None:
    inside = pytest.raises(LocalBrokerError, match="is inside")
    with starting_in(tmp_path), inside, starting_in(tmp_path / "new"):
        pass
    with starting_in(tmp_path / "new"):  # the file of a start that is over says nothing
        pass


def test_stopping_a_broker_whose_start_was_refused_deletes_nothing(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for broker in (LocalBroker(data_dir=tmp_path, ephemeral=True), LocalBroker(data_dir=tmp_path, ephemeral=True)):
        with pytest.raises(LocalBrokerError, match="not empty"):
            broker.start()
        broker.stop()
    LocalBroker(data_dir=tmp_path, ephemeral=True).stop()
    assert (tmp_path / "thesis.txt").exists()


def test_what_another_broker_has_begun_since_is_not_deleted(tmp_path: Path) -> None:
    with running_in(tmp_path / "data"):
        remove_stopped(tmp_path / "data")
        assert (tmp_path / "data" / "node-1" / "record").exists()
    with starting_in(tmp_path / "data"):
        remove_stopped(tmp_path / "data")
        assert (tmp_path / "data" / "node-1" / "record").exists()
    remove_stopped(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_start_that_waits_while_the_directory_is_deleted_locks_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fcntl.flock
    deleted: list[IO[str]] = []

    def flock(file: IO[str], how: int) -> None:
        original(file, how)
        if not deleted:
            deleted.append(file)
            remove(tmp_path / "data")

    monkeypatch.setattr(fcntl, "flock", flock)
    with starting_in(tmp_path / "data"):
        with pytest.raises(LocalBrokerError, match="Another process is starting"), starting_in(tmp_path / "data"):
            pass
        assert claim(tmp_path / "data", ephemeral=True) is None


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
    with pytest.raises(LocalBrokerError, match="not empty, but it is not the data directory of a Headway broker"):
        LocalBroker(data_dir=tmp_path, ephemeral=True).start()
    assert (tmp_path / "thesis.txt").exists()


def test_an_ephemeral_broker_does_not_take_over_records_that_are_kept(tmp_path: Path) -> None:
    describe(tmp_path)
    with pytest.raises(LocalBrokerError, match="holds the records of a broker that is not ephemeral"):
        claim(tmp_path, ephemeral=True)


def test_what_a_dead_ephemeral_broker_left_is_removed(tmp_path: Path) -> None:
    describe(tmp_path, ephemeral=True)
    (tmp_path / "security").mkdir()
    assert claim(tmp_path, ephemeral=False) is None
    assert not (tmp_path / "node-1").exists()
    assert not (tmp_path / "security").exists()


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
    with pytest.raises(LocalBrokerError, match="with nodes=1, but nodes=3 was requested"):
        LocalBroker(nodes=3, data_dir=tmp_path).start()


def test_fewer_nodes_than_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="nodes is 0; it must be at least 1"):
        LocalBroker(nodes=0)


def test_what_cannot_be_a_port_or_a_data_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="port is 70000; it must be from 1 to 65500"):
        LocalBroker(port=70_000)
    with pytest.raises(ConfigError, match="must not contain a comma"):
        LocalBroker(data_dir="/data/a,b")
    with pytest.raises(ConfigError, match=r"data_dir 'a\\x00b' cannot be used: .*null"):
        LocalBroker(data_dir="a\0b")


def test_a_comma_that_a_link_hides_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a,b")
    with pytest.raises(ConfigError, match="must not contain a comma"):
        LocalBroker(data_dir=tmp_path / "link")


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
