"""The directory of a local Apache Kafka: what it holds, and who may start there."""

import fcntl
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from headway.broker.node import Node
from headway.errors import LocalBrokerError

_DESCRIPTION = "broker.json"


def default_data_dir(ephemeral: bool = False) -> Path:
    """Where `headway broker start` keeps its broker when not told otherwise."""
    return platformdirs.user_data_path("headway") / ("ephemeral-broker" if ephemeral else "broker")


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """Where a node is reached."""

    id: int
    port: int
    controller_port: int


@dataclass(frozen=True, slots=True)
class Description:
    """What `broker.json` says of the cluster in a data directory."""

    cluster_id: str
    ephemeral: bool
    class_data: str
    nodes: Sequence[NodeDescription]

    def write(self, data_dir: Path) -> None:
        """Note it, whole or not at all."""
        text = json.dumps(asdict(self), indent=2)
        unfinished = data_dir / f"{_DESCRIPTION}.new"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(data_dir / _DESCRIPTION)

    def nodes_in(self, data_dir: Path) -> list[Node]:
        """The nodes, with the processes that run them."""
        return [Node(n.id, n.port, n.controller_port, data_dir / f"node-{n.id}") for n in self.nodes]


def read_description(data_dir: Path) -> Description | None:
    """What is known of the cluster in `data_dir`; None when there is none."""
    try:
        found = json.loads((data_dir / _DESCRIPTION).read_text(encoding="utf-8"))
        nodes = [NodeDescription(**node) for node in found.pop("nodes")]
        return Description(**found, nodes=nodes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocalBrokerError(
            f"{data_dir / _DESCRIPTION} cannot be read ({error.strerror}). Choose another --data-dir, or be the user "
            "whose broker it is."
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LocalBrokerError(
            f"{data_dir / _DESCRIPTION} is damaged ({error}). Restore it from a backup, or delete {data_dir} to "
            "begin anew without its records."
        ) from error


@contextmanager
def starting_in(data_dir: Path) -> Iterator[None]:
    """Hold the directory while a start prepares it; of two starts at once the second is told so."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (data_dir / "start.lock").open("w")
    except OSError as error:
        raise LocalBrokerError(
            f"The data directory {data_dir} cannot be used: {error.strerror}. Choose another (--data-dir)."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees a dead process's lock
        except BlockingIOError:
            raise LocalBrokerError(f"Another process is starting a broker in {data_dir}. Wait for it.") from None
        yield


def claim(data_dir: Path, ephemeral: bool) -> Description | None:
    """Check that a cluster may start in `data_dir`; return what an earlier one left there."""
    earlier = read_description(data_dir)
    if earlier is None:
        _require_unused(data_dir)
        return None
    _require_stopped(data_dir, earlier)
    if earlier.ephemeral:  # whoever started it died; nothing in it is meant to be kept
        for node in earlier.nodes_in(data_dir):
            remove(node.directory)
        return None
    if ephemeral:
        raise LocalBrokerError(
            f"{data_dir} holds records that are kept, and an ephemeral broker would delete them when it stops. "
            "Choose another --data-dir, or leave out --ephemeral."
        )
    return earlier


def remove(data_dir: Path) -> None:
    """Delete what an ephemeral broker leaves."""
    shutil.rmtree(data_dir, ignore_errors=True)


def _require_unused(data_dir: Path) -> None:
    """Never start among files of somebody else's: an ephemeral broker deletes its directory."""
    if {path.name for path in data_dir.iterdir()} - {"start.lock"}:
        raise LocalBrokerError(
            f"{data_dir} is not empty and holds no broker of Headway's. Choose an empty or new data directory."
        )


def _require_stopped(data_dir: Path, earlier: Description) -> None:
    for node in earlier.nodes_in(data_dir):
        if node.running:
            raise LocalBrokerError(
                f"A broker is running in {data_dir} already (process {node.pid}, port {node.port}). Use it, stop it "
                f"with `headway broker stop --data-dir {data_dir}`, or choose another data directory."
            )
