"""`headway relay`: a process that moves delayed records, and delivers those that are due."""

import gc
import logging
import sys
from typing import Any

import click

from headway.cli.options.due_times import DUE
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.workers.logs import log_options, log_to_stderr
from headway.cli.workers.messages import LogStyle
from headway.delay.relay.line_fitter import MOST_LINES, RETIRE_AFTER
from headway.delay.relay.relay import Relay
from headway.delay.topic_names import DEFAULT_NAME
from headway.runtime.interrupt import Interrupt
from headway.runtime.sigterm import on_terminate

log = logging.getLogger("headway.relay")


@click.command()
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="The scheduler's name.")
@click.option(
    "--mode",
    type=click.Choice(["exactly-once", "low-latency"]),
    default="exactly-once",
    show_default=True,
    help="low-latency delivers some milliseconds sooner; after a crash what was just delivered comes again.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=16),
    metavar="MB",
    default=256,
    show_default=True,
    help="How much of records may wait in memory, whatever is pending.",
)
@click.option(
    "--fit",
    type=click.Choice(["off", "report", "auto"]),
    default="off",
    show_default=True,
    help="auto adds delay lines that pay for the delays that come in, and deletes unused ones; report only logs them.",
)
@click.option(
    "--max-lines",
    type=click.IntRange(2, 64),
    default=MOST_LINES,
    show_default=True,
    help="With --fit: how many delay lines may have topics.",
)
@click.option(
    "--retire-after",
    type=DUE,
    default=f"{RETIRE_AFTER / 3600:g}h",
    show_default=True,
    help="With --fit auto: a line to which nothing is written for so long may be given up.",
)
@log_options
@kafka_options
def relay(
    name: str,
    mode: Any,
    memory: int,
    fit: Any,
    max_lines: int,
    retire_after: float,
    style: LogStyle,
    connection: ConnectionSettings,
) -> None:
    """Deliver delayed records when they are due.

    It runs until SIGTERM or Ctrl-C.

    \b
      headway relay
      headway relay --name billing-delay --mode low-latency
      headway relay --fit auto

    Run as many as you like: they share the work, as many as the scheduler's topics have partitions. What comes due
    while none runs is delivered when one runs again. One that is killed is replaced by the others within some seconds.
    """
    log_to_stderr(style, command="relay")
    _give_all_to_the_relay()
    fitting: dict[str, Any] = {"fit": fit, "max_lines": max_lines, "retire_after": retire_after}
    with Relay(connection.config, name=name, mode=mode, memory=memory * 2**20, **fitting) as running:
        log.info("The relay of %s runs. Ctrl-C ends it.", name)
        with on_terminate(lambda drain: running.stop()), Interrupt(running.stop) as interrupt:
            running.run()
    counts = running.counts
    log.info("The relay ends: %d read, %d moved, %d delivered.", counts["read"], counts["moved"], counts["delivered"])
    if interrupt.requested:
        raise KeyboardInterrupt


def _give_all_to_the_relay() -> None:
    """Tune this process for the relay, since nothing else runs in it."""
    # Records that wait in memory are no garbage, and looking through all of them would delay the next records.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    # The thread that commits one round does little, and must not wait for all the work of the other for the next.
    sys.setswitchinterval(0.0005)
