"""`headway dashboard`: serves the page, and sets marks that it shows."""

import logging
import os
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from headway.actions.marks import OperatorMarks
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.workers.logs import log_options, log_to_stderr
from headway.cli.workers.messages import LogStyle
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.dashboard import Dashboard

log = logging.getLogger("headway.dashboard")

TOKEN_VARIABLE = "HEADWAY_DASHBOARD_TOKEN"  # noqa: S105 - the name of the variable
_REQUESTS_AT_A_TIME = 500
_STOP_WITHIN = 2  # seconds


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="0 takes a free one.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A host name by which browsers reach the page, such as queues.example.org. Loopback names always work.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"A file with the token for the login page, required beyond loopback. [env {TOKEN_VARIABLE} has the token]",
)
@click.option("--group", "groups", multiple=True, help="Show only this group, by its name without the level.")
@click.option(
    "--metrics",
    multiple=True,
    metavar="URL",
    help="The /metrics of a member, for what Kafka does not have: shares, tenants, circuits, retries.",
)
@click.option("--allow-actions", is_flag=True, help="Let users send dead letters again and cancel schedules.")
@log_options
@kafka_options
@click.pass_context
def dashboard(
    context: click.Context,
    host: str,
    port: int,
    allowed_hosts: tuple[str, ...],
    token_file: Path | None,
    groups: tuple[str, ...],
    metrics: tuple[str, ...],
    allow_actions: bool,
    style: LogStyle,
    connection: ConnectionSettings,
) -> None:
    """Show queues in a browser: levels, offset maps, dead letters, schedules.

    The page reads everything from Kafka: it joins no group and commits nothing. By default it can be reached only from
    this machine, and changes nothing. Beyond loopback it needs a token. With --allow-actions, each action is logged
    with its user.

    \b
      headway dashboard
      headway dashboard --group billing --metrics http://10.0.0.7:8080/metrics
      headway dashboard --host 0.0.0.0 --allowed-host queues.example.org --token-file token.txt
      headway dashboard mark v1.2.3
    """
    if context.invoked_subcommand is not None:
        return
    log_to_stderr(style, command="dashboard")
    from headway.dashboard import app  # noqa: PLC0415 - needs the extra `dashboard`
    from headway.dashboard.access import LOOPBACK, is_loopback  # noqa: PLC0415 - as above

    token = token_file.read_text().strip() if token_file else os.environ.get(TOKEN_VARIABLE) or None
    if not is_loopback(host) and token is None:
        raise ConfigError(
            f"--host {host} can be reached from other machines, so the dashboard needs a token. Put one into a file "
            f"for --token-file, or into the variable {TOKEN_VARIABLE}, for example from: openssl rand -hex 32"
        )
    hosts = [*LOOPBACK, *allowed_hosts, *([] if host in {"0.0.0.0", "::"} else [host])]  # noqa: S104 - it is compared
    page = app(connection.config, groups=groups, metrics=metrics, hosts=hosts, token=token, allow_actions=allow_actions)
    connection.admin().topics()  # raises an error if no broker answers
    with page:
        page.start()
        _serve(page, host, port)


@dashboard.command()
@click.argument("text")
@kafka_options
def mark(text: str, connection: ConnectionSettings) -> None:
    """Mark this moment in the curves of the page, for example when you deploy a version.

    The mark is a record in the compacted topic headway-marks, which is created if it does not exist.

    \b
      headway dashboard mark v1.2.3
    """
    with OperatorMarks(connection.config) as marks:
        marks.set(text)
    click.echo("The mark is set.")


def _serve(page: "Dashboard", host: str, port: int) -> None:
    import uvicorn  # noqa: PLC0415 - needs the extra `dashboard`

    class DashboardServer(uvicorn.Server):
        """A server that ends the streams of events when it is told to stop, because it waits for all requests."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            page.stop_streams()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for each in self.servers:
                address = each.sockets[0].getsockname()
                name = f"[{address[0]}]" if ":" in address[0] else address[0]
                log.info("The dashboard is at http://%s:%d/. Stop it with Ctrl-C.", name, address[1])

    settings = uvicorn.Config(
        page,
        host,
        port,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_REQUESTS_AT_A_TIME,
        timeout_graceful_shutdown=_STOP_WITHIN,
    )
    DashboardServer(settings).run()
