"""`headway broker`: a local Apache Kafka from the command line.

The package `headway.broker` needs the extra `broker`. It is imported only when a command runs, so that the help works
without the extra.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.options.kafka_options import KeyValue

if TYPE_CHECKING:
    from headway.broker.local_broker import LocalBroker

_DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the records are stored. By default, in your user's data directory; `status` shows the path.",
)


@click.group()
def broker() -> None:
    """Run a real Apache Kafka on this machine, for development and tests.

    The broker listens only on 127.0.0.1, and runs in the background until `stop`. Its records survive a restart. The
    first start downloads Kafka (45 MB), and Java if it is missing; later starts take seconds.

    \b
      headway broker start               one node, at 127.0.0.1:9092
      headway broker start --nodes 3     three nodes, with a copy of each record on each
      headway broker start --secure      with TLS, logins, and ACLs
      headway broker status
      headway broker stop
    """


@broker.command()
@click.option(
    "--nodes", type=click.IntRange(1, 9), help="The number of nodes. By default, the same as at the last start, or 1."
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65_500),
    default=9092,
    show_default=True,
    help="The port of the first node. The others use the ports that follow.",
)
@_DATA_DIR
@click.option("--ephemeral", is_flag=True, help="Delete the records when the broker is stopped.")
@click.option("--secure", is_flag=True, help="Use TLS, logins, and ACLs.")
@click.option(
    "--property",
    "properties",
    type=KeyValue("message.max.bytes=2000000"),
    multiple=True,
    help="A Kafka broker setting.",
)
def start(
    nodes: int | None,
    port: int,
    data_dir: Path | None,
    ephemeral: bool,
    secure: bool,
    properties: tuple[tuple[str, str], ...],
) -> None:
    """Start a broker in the background and wait until it is ready.

    Topics are not created on first use, so a misspelt name is an error. Create them with `headway topics create`, or
    start with `--property auto.create.topics.enable=true`.

    \b
      headway broker start --nodes 3 --port 19092 --ephemeral

    With `--secure` there are two users: `admin`, who is permitted to do everything, and `app`, who has no permissions
    until you grant some. For each user there is a file for `--config-file` with the password, which only you can read.
    Another file has settings for a client certificate instead (mutual TLS). The ports for client certificates follow
    the nodes' other ports. Without `--data-dir`, a secured broker and an unsecured broker have separate data
    directories. docs/broker.md shows how to grant permissions.
    """
    from headway.broker import LocalBroker  # noqa: PLC0415 - see above
    from headway.broker.data_dir import default_data_dir  # noqa: PLC0415 - as above
    from headway.broker.lock import KAFKA_VERSION  # noqa: PLC0415 - as above

    begin = time.monotonic()
    started = LocalBroker(
        nodes,
        port=port,
        data_dir=data_dir or default_data_dir(ephemeral, secure),
        ephemeral=ephemeral,
        properties=dict(properties),
        secure=secure or None,
        background=True,
    ).start()
    click.echo(f"Apache Kafka {KAFKA_VERSION} is ready after {time.monotonic() - begin:.1f} s.")
    for key, value in _shown(started):
        click.echo(f"  {key:<17}  {value}")
    click.echo(f"  data directory     {started.data_dir}{' (deleted at stop)' if started.ephemeral else ''}")
    click.echo("Next:")
    as_admin = f" --config-file {shlex.quote(str(started.config_file('admin')))}" if started.secure else ""
    # Other commands find a broker on their own only if it is in one of the user's default directories.
    if data_dir and not started.secure:
        click.echo(f"  export HEADWAY_BOOTSTRAP_SERVERS={started.bootstrap_servers}")
    click.echo(f"  headway topics create orders --levels 3 --partitions 6{as_admin}")
    click.echo(f"  headway broker stop{f' --data-dir {shlex.quote(str(started.data_dir))}' if data_dir else ''}")


@broker.command()
@_DATA_DIR
@json_option("broker")
@click.pass_context
def status(context: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """Show the brokers and their nodes. The exit code is 1 if no broker is running."""
    brokers = _brokers(data_dir)
    if as_json:
        for each in brokers:
            echo_json(_describe(each))
    else:
        _show(brokers)
    if not any(each.running for each in brokers):
        context.exit(1)


@broker.command()
@_DATA_DIR
def stop(data_dir: Path | None) -> None:
    """Stop the broker, and wait until its processes have ended."""
    running = [each for each in _brokers(data_dir) if each.running]
    for each in running:
        each.stop()
        click.echo(f"Stopped the broker in {each.data_dir}{'; its records were deleted' if each.ephemeral else ''}.")
    if not running:
        click.echo("No broker was running.")


def _brokers(data_dir: Path | None) -> list[LocalBroker]:
    """Return the broker in `data_dir`, or by default the brokers that `start` keeps in the user's directories."""
    from headway.broker import LocalBroker  # noqa: PLC0415 - see above
    from headway.broker.data_dir import default_data_dir, read_description  # noqa: PLC0415 - as above

    if data_dir:
        return [LocalBroker.attach(data_dir)]
    directories = [default_data_dir(ephemeral, secure) for secure in (False, True) for ephemeral in (False, True)]
    return [LocalBroker.attach(directory) for directory in directories if read_description(directory)]


def _shown(started: LocalBroker) -> Iterator[tuple[str, str]]:
    """Yield the client settings for the user to copy. A password is not shown; it stays in its file."""
    for key, value in started.client_config().items():
        yield key, f"(in {started.config_file()})" if key == "sasl.password" else value
    if started.secure:
        yield "config file", f"{started.config_file()} (no permissions until you grant some)"
        yield "admin's", f"{started.config_file('admin')} (permitted to do everything)"


def _describe(each: LocalBroker) -> dict[str, Any]:
    return {
        "bootstrap_servers": each.bootstrap_servers,
        "running": each.running,
        "data_dir": str(each.data_dir),
        "ephemeral": each.ephemeral,
        "secure": each.secure,
        "nodes": [
            {"id": node.id, "port": node.port, "tls_port": node.tls_port, "pid": node.pid} for node in each.nodes
        ],
    }


def _kind(each: LocalBroker) -> str:
    kinds = [*["ephemeral"] * each.ephemeral, *["secure"] * each.secure]
    return f" ({', '.join(kinds)})" if kinds else ""


def _show(brokers: list[LocalBroker]) -> None:
    if not any(each.running for each in brokers):
        click.echo("No broker is running. Start one with `headway broker start`.")
    for each in brokers:
        click.echo(f"{each.bootstrap_servers}{_kind(each)}, data in {each.data_dir}")
        for node in each.nodes:
            process = f"process {node.pid}" if node.running else "not running"
            certificates = f" (certificates: {node.tls_port})" if node.tls_port else ""
            click.echo(f"  node {node.id}  port {node.port}{certificates}  {process}  log {node.log_file}")
