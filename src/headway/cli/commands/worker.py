"""`headway worker`: runs handlers that are declared with `@worker`, and keeps them running."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from headway.cli.display.terminal import stderr_is_terminal
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.options.probes import probes_at, probes_option
from headway.cli.workers.logs import log_options, log_to_stderr
from headway.cli.workers.messages import Code, LogStyle, MemberTask
from headway.cli.workers.progress_line import WorkersProgressLine
from headway.cli.workers.required_topics import list_topics, require_topics
from headway.cli.workers.supervisor import Conclusion, Supervisor
from headway.workers.find_workers import find_workers

log = logging.getLogger("headway.worker")


@click.command()
@click.argument("workers", nargs=-1, required=True, metavar="MODULE[:HANDLER]…")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes per handler. They share the topic's partitions, so more processes than partitions are idle.",
)
@click.option(
    "--max-concurrency",
    type=click.IntRange(min=1),
    help="How many records each process handles at once. By default the declared number.",
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=30,
    show_default=True,
    help="How long running handlers may continue after SIGTERM.",
)
@click.option("--one-group", is_flag=True, help="One group reads all levels. By default each level has its own group.")
@probes_option
@log_options
@kafka_options
@click.pass_context
def worker(
    context: click.Context,
    workers: Sequence[str],
    processes: int,
    max_concurrency: int | None,
    drain_timeout: float,
    one_group: bool,
    probes: str | None,
    style: LogStyle,
    connection: ConnectionSettings,
) -> None:
    """Run handlers that are declared with @worker, and keep them running.

    \b
      # billing.py
      from headway import worker
      \b
      @worker("orders", group="billing", max_concurrency=200)
      def bill(record, context):
          print(record.key, record.value)

    \b
      headway worker billing:bill --processes 4
      headway worker billing shipping.parcels --log-format json

    A module name stands for all workers in the module. Each process is a member of its handler's group. A process that
    dies is restarted, after a pause that grows each time, until it has died five times in a row while no record was
    running. A record that kills its process becomes a dead letter.

    After SIGTERM, the command waits until running handlers have finished. After a second SIGTERM, or Ctrl-C, it does
    not wait. A second Ctrl-C kills the processes. Records whose handlers did not finish are handled again later.

    With --probes, /livez is red if a partition stands still although it could go on, /readyz is green while all
    processes take part in their groups and their commits succeed, and /metrics has the metrics of all processes.

    \b
    Exit codes:
      0    stopped by SIGTERM, and all running handlers have finished
      1    an error to correct, which one sentence on stderr describes
      3    a record failed for good, and its worker has no dead_letter_topic
      4    a process died five times in a row while no record was running
      5    some running handlers did not finish
      130  stopped by Ctrl-C
    """
    found = find_workers(workers)
    require_topics(found, list_topics(found, connection))
    shown = style.format == "text" and stderr_is_terminal()
    logs = replace(style, over_progress=shown)
    log_to_stderr(logs)

    own: dict[str, Any] = {"group.per.level": False} if one_group else {}

    def config_of(name: str) -> dict[str, Any]:
        return connection.renewed().over(found[name].config) | own

    jobs = [
        MemberTask(
            name,
            index,
            connection.over(its.config) | own,
            max_concurrency,
            drain_timeout,
            logs,
            is_probed=probes is not None,
        )
        for name, its in found.items()
        for index in range(processes)
    ]
    progress = WorkersProgressLine(sys.stderr) if shown else None
    supervisor = Supervisor(jobs, drain_timeout, progress, config_of)
    with probes_at(probes, lambda: supervisor.pod.health, lambda: supervisor.pod.samples):
        outcome = asyncio.run(supervisor.run())
    _show(outcome, style)
    context.exit(outcome.code)


def _show(outcome: Conclusion, style: LogStyle) -> None:
    if outcome.code == Code.INTERRUPTED:
        raise KeyboardInterrupt
    if not outcome.sentence:
        return
    if style.format == "json":
        log.critical(outcome.sentence)
    else:
        click.echo(f"headway: {outcome.sentence}", err=True)
