"""`headway outbox`: send the rows of a transactional outbox, and look after those that Kafka refuses.

The package `headway.contrib.outbox` needs the extra `outbox`. It is imported only when a command runs, so that the help
works without the extra.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click

from headway.cli.display.tables import Column, show_table
from headway.cli.display.texts import local_time
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.workers.logs import log_options, log_to_stderr
from headway.cli.workers.messages import LogStyle
from headway.errors import ConfigError
from headway.runtime.interrupt import Interrupt
from headway.runtime.sigterm import on_terminate

log = logging.getLogger("headway.outbox")

F = TypeVar("F", bound=Callable[..., Any])

_VARIABLE = "HEADWAY_OUTBOX_DATABASE"


@click.group()
def outbox() -> None:
    """Send the rows of an outbox table, and look after those that Kafka refuses.

    \b
      export HEADWAY_OUTBOX_DATABASE=postgresql+psycopg://shop@db/shop
      headway outbox run --name shop
      headway outbox refused
      headway outbox retry
    """


def _database_options(function: F) -> F:
    table = click.option("--table", default="headway_outbox", show_default=True, help="The name of the table.")
    database = click.option(
        "--database",
        required=True,
        envvar=_VARIABLE,
        metavar="URL",
        help=f"SQLAlchemy's URL of the database. [env {_VARIABLE}, which hides a password]",
    )
    return database(table(function))


@outbox.command()
@click.option("--name", required=True, help="A name that no other outbox in the Kafka cluster has.")
@_database_options
@log_options
@kafka_options
def run(name: str, database: str, table: str, style: LogStyle, connection: ConnectionSettings) -> None:
    """Send each committed row as one record, until SIGTERM or Ctrl-C.

    Run one relay for each outbox. A second one with the same name takes over, and the first one ends.
    """
    log_to_stderr(style, command="outbox run")
    contrib = _contrib()
    with contrib.database.outbox_database(database) as engine:
        relay = contrib.OutboxRelay(engine, connection.config, name=name, outbox=contrib.Outbox(table))
        with on_terminate(lambda drain: relay.stop()), Interrupt(relay.stop) as interrupt:
            log.info("The relay of the outbox %s is running. Stop it with Ctrl-C.", name)
            relay.run()
    log.info("The relay has stopped: %d sent, %d set aside.", relay.sent, relay.refused)
    if interrupt.requested:
        raise KeyboardInterrupt


@outbox.command()
@_database_options
def refused(database: str, table: str) -> None:
    """List the rows that were set aside, because Kafka refuses their records."""
    contrib = _contrib()
    with contrib.database.outbox_database(database) as engine, engine.connect() as rows:
        found = rows.execute(contrib.Outbox(table).refused()).all()
    if not found:
        click.echo("Kafka has refused no rows.", err=True)
        return
    columns = [Column(title, overflow="fold") for title in ("row", "topic", "level", "key", "added", "error")]
    show_table(columns, map(_shown, found))


def _shown(row: Any) -> list[str]:
    level = "" if row.level is None else str(row.level)
    key = "" if row.key is None else row.key.decode(errors="replace")
    return [str(row.id), row.topic, level, key, local_time(row.created), row.error]


@outbox.command()
@_database_options
def retry(database: str, table: str) -> None:
    """Send the rows again that were set aside, after you have removed the cause."""
    contrib = _contrib()
    with contrib.database.outbox_database(database) as engine, engine.begin() as rows:
        count = rows.execute(contrib.Outbox(table).retry()).rowcount
    click.echo(f"{count} rows will be sent again.")


def _contrib() -> Any:
    try:
        from headway.contrib import outbox as contrib  # noqa: PLC0415 - needs the extra `outbox`
        from headway.contrib.outbox import database  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing. Install it with: pip install 'headway[outbox]'") from None
    return contrib
