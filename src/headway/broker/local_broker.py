"""A local Apache Kafka, which a Python program or the command line starts and stops."""

import atexit
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headway.broker.data_dir import (
    Description,
    NodeDescription,
    canonical_path,
    claim,
    default_data_dir,
    read_description,
    remove,
    remove_stopped,
    security_dir,
    starting_in,
)
from headway.broker.guard import Guard
from headway.broker.node import Node, client_addresses
from headway.broker.ports import HOST, choose_ports
from headway.broker.properties import render, server_properties
from headway.broker.runtime import ClassData, Runtime, find_runtime
from headway.broker.security import ADMIN, APP, Security, new_password
from headway.errors import ConfigError, LocalBrokerError, PortTakenError
from headway.kafka.acls import Acl, SecurityAdmin
from headway.kafka.admin import Admin
from headway.kafka.binding.forks import register_for_forks

_LAST_PORT = 65_500  # the highest port for the first node, so that the other nodes can use the ports above it
_ASK_AGAIN_AFTER = 0.05
_TRIES = 3


class LocalBroker:
    """A real Apache Kafka on this machine's loopback interface, in KRaft mode. It needs no ZooKeeper and no Docker.

    >>> with LocalBroker() as broker:  # doctest: +SKIP
    ...     producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    Args:
        nodes: The number of nodes, each of which is both broker and controller. By default it is the number of nodes of
            the earlier start in `data_dir`, or 1. With 3 nodes, topics have three replicas and survive
            `nodes[i].kill()`.
        port: The port of the first node; the other nodes use the ports that follow. By default free ports are chosen.
        data_dir: The directory for the records. By default it is a temporary directory.
        ephemeral: Whether `stop` deletes the records. By default, it deletes them only if no `data_dir` is given.
        properties: Kafka's broker settings in addition to Headway's, such as {"message.max.bytes": "2000000"}. By
            default topics are not created on first use ("auto.create.topics.enable" is "false").
        java_options: Options for the JVM in addition to Headway's, such as ["-Xmx2g"].
        secure: Whether clients need TLS, a login (SCRAM-SHA-512 or a certificate), and a permission for each operation.
            There are two users: `admin`, who is permitted to do everything, and `app`, who is permitted nothing until
            `grant` is called. `client_config` and `admin_config` return the users' settings. By default, the same as at
            the earlier start in `data_dir`, or False.
        background: Whether the broker continues to run when this process ends. By default, the broker stops, even if
            this process is killed.

    The first start downloads Apache Kafka (45 MB), and a Java if the machine has none. If the broker cannot start,
    `start` raises a `LocalBrokerError` whose message says what to do.
    """

    def __init__(
        self,
        nodes: int | None = None,
        *,
        port: int | None = None,
        data_dir: str | PathLike[str] | None = None,
        ephemeral: bool | None = None,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        secure: bool | None = None,
        background: bool = False,
    ) -> None:
        if nodes is not None and nodes < 1:
            raise ConfigError(f"nodes is {nodes}; it must be at least 1.")
        if port is not None and not 1 <= port <= _LAST_PORT:
            raise ConfigError(f"port is {port}; it must be from 1 to {_LAST_PORT}.")
        self.nodes: list[Node] = []
        self.ephemeral = data_dir is None if ephemeral is None else ephemeral
        self.data_dir = canonical_path(_own_data_dir(self.ephemeral) if data_dir is None else data_dir)
        self._node_count = nodes
        self._port = port
        self._properties = dict(properties or {})
        self._java_options = tuple(java_options)
        self._secure = secure
        self._security: Security | None = None
        self._background = background
        self._class_data: ClassData | None = None
        self._guard: Guard | None = None
        self._is_forked = False
        register_for_forks(self)

    def forked(self) -> None:
        """Mark this object as the copy in a forked process, so that it never stops the original process's broker."""
        self._is_forked = True

    @classmethod
    def attach(cls, data_dir: str | PathLike[str]) -> Self:
        """Return an object to inspect and stop the broker in `data_dir`, which another process may have started."""
        broker = cls(data_dir=data_dir)
        description = read_description(broker.data_dir)
        if description is None:
            raise LocalBrokerError(f"There is no broker in {data_dir}. Start one with `headway broker start`.")
        broker._adopt(description)
        return broker

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for a client's `bootstrap.servers`."""
        if not self.nodes:
            raise LocalBrokerError("The broker has not been started yet. Call start(), or use it in a `with` block.")
        return client_addresses(self.nodes)

    @property
    def secure(self) -> bool:
        """True if clients need TLS, a login, and a permission for each operation."""
        return self._security is not None

    @property
    def admin_config(self) -> dict[str, Any]:
        """The settings of a client that is permitted to do everything. For a secured broker they have a password."""
        return self._security.client_config(ADMIN, self.bootstrap_servers) if self._security else self.client_config()

    def client_config(self, user: str | None = None, *, certificate: bool = False) -> dict[str, Any]:
        """Return the settings with which a client of Headway or confluent-kafka connects to this broker.

        For a secured broker they contain a password, or the path of a file with a private key.

        Args:
            user: The user to log in as. By default it is `app` if the broker is secured.
            certificate: Log in with a client certificate (mutual TLS) instead of a password.
        """
        if not self._security:
            if user is not None or certificate:
                raise self._not_secured()
            return {"bootstrap.servers": self.bootstrap_servers}
        if certificate:
            return self._security.certificate_config(user or APP, self._tls_servers)
        return self._security.client_config(user or APP, self.bootstrap_servers)

    def config_file(self, user: str = APP) -> Path:
        """Return the file with a user's settings, for `--config-file`. Only its owner can read it."""
        return self._secured().properties_file(user)

    def add_user(self, user: str) -> dict[str, Any]:
        """Create a user with a random password, a certificate and no permissions. Returns its `client_config`."""
        security = self._secured()
        security.require_new(user)
        password = new_password()
        self._for_security().add_user(user, password)
        security.keep_password(user, password)
        security.write_client_files(user, self.bootstrap_servers, self._tls_servers)
        return self.client_config(user)

    def grant(self, user: str, operation: str, resource: str, name: str, *, prefixed: bool = False) -> None:
        """Grant a user a permission (a Kafka ACL), as in `grant("app", "Write", "Topic", "orders-", prefixed=True)`.

        Returns once the brokers apply the permission. Raises `ConfigError` if Kafka does not have such an operation or
        resource.

        Args:
            user: The user who gets the permission.
            operation: The name of the operation in Kafka: Read, Write, Create, Delete, Alter, Describe,
                DescribeConfigs, All …
            resource: Topic, Group, TransactionalId or Cluster. The name of the cluster is kafka-cluster.
            name: The name of the resource; "*" means all names.
            prefixed: True to grant the permission for all resources whose names start with `name`.
        """
        self._for_security().grant(Acl(user, operation, resource, name, prefixed))

    def revoke(self, user: str, operation: str, resource: str, name: str, *, prefixed: bool = False) -> None:
        """Revoke a permission that `grant` granted with the same arguments.

        Returns once the brokers no longer apply the permission.

        Raises `KafkaError` if the user does not have the permission.
        """
        self._for_security().revoke(Acl(user, operation, resource, name, prefixed))

    def _for_security(self) -> SecurityAdmin:
        self._secured()
        return SecurityAdmin(self.admin_config, [f"{HOST}:{node.port}" for node in self.nodes])

    def _secured(self) -> Security:
        if not self._security:
            raise self._not_secured()
        return self._security

    def _not_secured(self) -> LocalBrokerError:
        return LocalBrokerError(
            f"The broker in {self.data_dir} has no users and no permissions, because it is not secured. Start a "
            "secured broker with secure=True (`headway broker start --secure`)."
        )

    @property
    def _tls_servers(self) -> str:
        return ",".join(f"{HOST}:{node.tls_port}" for node in self.nodes)

    @property
    def running(self) -> bool:
        """True if any node is running."""
        return any(node.running for node in self.nodes)

    def start(self, timeout: float = 60) -> Self:
        """Start all nodes, and return once they serve clients. If that fails, stop the nodes that were started."""
        runtime = find_runtime(self._java_options)
        with starting_in(self.data_dir):
            earlier = claim(self.data_dir, self.ephemeral)
            try:
                self._start(earlier, runtime, timeout)
            except BaseException:  # including KeyboardInterrupt after Ctrl-C
                self._end()
                if self.ephemeral:
                    remove(self.data_dir)
                raise
        return self

    def stop(self) -> None:
        """Stop all nodes, and wait until their processes have ended. If the broker is ephemeral, delete its records.

        If the broker was never started, nothing is deleted. In a forked process, this does nothing, because
        otherwise the end of that process would stop the broker for all its users.
        """
        if self._is_forked:
            return
        self._end()
        if self.ephemeral and self.nodes:
            remove_stopped(self.data_dir)

    def _end(self) -> None:
        in_order = self._stop_nodes()
        if self._class_data:
            self._class_data.keep(in_order)
        self._release_guard()

    def _stop_nodes(self) -> bool:
        """Stop all nodes. Returns True if all of them shut down cleanly."""
        in_a_hurry = self.ephemeral and not (self._class_data and self._class_data.needed)
        for node in self.nodes:
            node.kill() if in_a_hurry else node.terminate()
        return all([node.stop() for node in self.nodes])  # noqa: C419 - the list makes sure that each of them is stopped

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, description: Description | None, runtime: Runtime, timeout: float) -> None:
        for tries_left in reversed(range(_TRIES)):
            description = self._prepare(description, runtime)
            try:
                self._launch(time.monotonic() + timeout)
                return
            except PortTakenError:  # another process took the port after it had been chosen
                if self._port is not None or not tries_left:
                    raise
                self._stop_nodes()
                self._release_guard()

    def _prepare(self, earlier: Description | None, runtime: Runtime) -> Description:
        cluster_id = earlier.cluster_id if earlier else _new_cluster_id()
        secure = self._require_as_before(earlier)
        nodes = self._describe_nodes(earlier, secure)
        description = Description(cluster_id, self.ephemeral, str(runtime.class_data.unfinished), nodes, secure)
        self._adopt(description)
        if self._security:
            if not earlier:
                self._security.make()
            self._security.renew(self.bootstrap_servers, self._tls_servers)
        for node in self.nodes:
            _configure(node, self.nodes, runtime, cluster_id, self._security, self._properties)
        description.write(self.data_dir)
        return description

    def _adopt(self, description: Description) -> None:
        self.ephemeral = description.ephemeral
        self.nodes = description.nodes_in(self.data_dir)
        self._class_data = ClassData(Path(description.class_data))
        self._security = Security(security_dir(self.data_dir)) if description.secure else None

    def _require_as_before(self, earlier: Description | None) -> bool:
        """Return whether the cluster is secured. Raises `LocalBrokerError` if the earlier start was different."""
        if earlier and self._secure not in (None, earlier.secure):
            raise LocalBrokerError(
                f"{self.data_dir} holds a cluster created with secure={earlier.secure}, but secure={self._secure} was "
                "requested. Choose another data directory."
            )
        return earlier.secure if earlier else bool(self._secure)

    def _describe_nodes(self, earlier: Description | None, secure: bool) -> list[NodeDescription]:
        held = len(earlier.nodes) if earlier else None
        count = self._node_count or held or 1
        if held not in (None, count):
            raise LocalBrokerError(
                f"{self.data_dir} holds a cluster with nodes={held}, but nodes={count} was requested. Use "
                f"nodes={held}, or choose another data directory."
            )
        before = (
            [*(n.port for n in earlier.nodes), *(n.tls_port for n in earlier.nodes if n.tls_port)] if earlier else []
        )
        ports, controllers = choose_ports(2 * count if secure else count, self._port, before)
        tls_ports: Sequence[int | None] = ports[count:] or [None] * count
        return [NodeDescription(i + 1, ports[i], controllers[i], tls_ports[i]) for i in range(count)]

    def _launch(self, deadline: float) -> None:
        self._guard = Guard(self.data_dir)
        atexit.register(self.stop)
        with self._security.format_arguments() if self._security else nullcontext():
            for node in self.nodes:
                node.spawn_format()
            for node in self.nodes:
                node.finish_format()
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.wait_until_ready(deadline)
        for node in self.nodes:
            self._wait_until_it_knows_all(node, deadline)
        if self._background:
            self._release_guard()

    def _wait_until_it_knows_all(self, node: Node, deadline: float) -> None:
        """Wait until a node's metadata includes all nodes, itself included.

        The metadata is complete only some time after the node opens its port. A client that got incomplete metadata
        before that time would abandon its requests to the missing nodes.
        """
        # Each check needs a new client, because a client that has found other brokers may send the request to them.
        while Admin({**self.admin_config, "bootstrap.servers": f"{HOST}:{node.port}"}).broker_count() < len(self.nodes):
            if time.monotonic() > deadline:
                raise LocalBrokerError(
                    f"Node {node.id} did not find all other nodes in time. Look for the reason in its log, "
                    f"{node.log_file}."
                )
            time.sleep(_ASK_AGAIN_AFTER)

    def _release_guard(self) -> None:
        atexit.unregister(self.stop)
        if self._guard:
            self._guard.release()
            self._guard = None


def _own_data_dir(ephemeral: bool) -> Path:
    if ephemeral:
        return Path(tempfile.gettempdir(), f"headway-broker-{uuid.uuid4().hex[:12]}")
    return default_data_dir()


def _new_cluster_id() -> str:
    """Return a random cluster id in the format of Kafka's own tool: URL-safe Base64 that does not start with a dash."""
    return "h" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def _configure(
    node: Node,
    nodes: Sequence[Node],
    runtime: Runtime,
    cluster_id: str,
    security: Security | None,
    properties: Mapping[str, str],
) -> None:
    """Write the node's properties file, and set the commands that run the node."""
    node.directory.mkdir(exist_ok=True)
    secured = security.server_properties() if security else {}
    settings = server_properties(node, nodes, node.data_dir, {**secured, **properties})
    node.properties_file.write_text(render(settings), encoding="utf-8")
    file = str(node.properties_file)
    format_ = ["format", "--ignore-formatted", "-t", cluster_id]
    if security:
        format_.append(f"@{security.format_file}")
    format_ += ["-c", file]  # the file must be the last argument, because a node recognises its process by it
    node.format_command = runtime.command("kafka.tools.StorageTool", *format_)
    node.run_command = runtime.command("kafka.Kafka", file, record=node is nodes[0])
