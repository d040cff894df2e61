"""`headway relay`: a process that delivers delayed records when they are due."""

import gc
import logging
import sys
from typing import Any

import click

from headway.cli.options.due_times import DUE
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.options.probes import probes_at, probes_option
from headway.cli.workers.logs import log_options, log_to_stderr
from headway.cli.workers.messages import LogStyle
from headway.delay.relay.delay_topic_fitter import MOST_DELAY_TOPICS, RETIRE_AFTER
from headway.delay.relay.relay import Relay
from headway.delay.topic_names import DEFAULT_NAME
from headway.runtime.interrupt import Interrupt
from headway.runtime.sigterm import on_terminate
from headway.tracing.tracing import Tracing

log = logging.getLogger("headway.relay")


@click.command()
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="The scheduler's name.")
@click.option(
    "--mode",
    type=click.Choice(["exactly-once", "low-latency"]),
    default="exactly-once",
    show_default=True,
    help="low-latency delivers some milliseconds sooner, but repeats the latest records after a crash.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=16),
    metavar="MB",
    default=256,
    show_default=True,
    help="The maximum memory for waiting records, however many are pending.",
)
@click.option(
    "--fit",
    type=click.Choice(["off", "report", "auto"]),
    default="off",
    show_default=True,
    help="auto adds delay topics that pay off for the delays in use, and deletes unused ones. report only logs them.",
)
@click.option(
    "--max-delay-topics",
    type=click.IntRange(2, 64),
    default=MOST_DELAY_TOPICS,
    show_default=True,
    help="With --fit: the maximum number of delay topics.",
)
@click.option(
    "--retire-after",
    type=DUE,
    default=f"{RETIRE_AFTER / 3600:g}h",
    show_default=True,
    help="With --fit auto: delete a delay topic only if nothing was written to it for this long.",
)
@click.option(
    "--tracing",
    is_flag=True,
    help="Make a span of the time that each delivered record has waited, as in docs/tracing.md. Start the command with "
    "opentelemetry-instrument.",
)
@probes_option
@log_options
@kafka_options
def relay(
    name: str,
    mode: Any,
    memory: int,
    fit: Any,
    max_delay_topics: int,
    retire_after: float,
    tracing: bool,
    probes: str | None,
    style: LogStyle,
    connection: ConnectionSettings,
) -> None:
    """Deliver delayed records when they are due.

    The command runs until it gets SIGTERM or Ctrl-C.

    \b
      headway relay
      headway relay --name billing-delay --mode low-latency
      headway relay --fit auto

    You can run several relays, up to one for each partition of the scheduler's topics; they share the work. If a relay
    is killed, the others take over its partitions within seconds. Records that come due while no relay is running are
    delivered when one runs again.

    With --probes, /livez is red if the relay completes no rounds, /readyz is green while it works, and /metrics has
    its figures for Prometheus.
    """
    log_to_stderr(style, command="relay")
    _tune_process()
    options: dict[str, Any] = {"fit": fit, "max_delay_topics": max_delay_topics, "retire_after": retire_after}
    if tracing:
        options["tracing"] = Tracing()
    with Relay(connection.config, name=name, mode=mode, memory=memory * 2**20, **options) as running:
        log.info("The relay of the scheduler %s is running. Stop it with Ctrl-C.", name)
        with (
            probes_at(probes, running.watch_health, running.measure),
            on_terminate(lambda drain: running.stop()),
            Interrupt(running.stop) as interrupt,
        ):
            running.run()
    counts = running.counts
    log.info(
        "The relay has stopped: %d read, %d moved, %d delivered.", counts["read"], counts["moved"], counts["delivered"]
    )
    if interrupt.requested:
        raise KeyboardInterrupt


def _tune_process() -> None:
    """Tune this process for the relay. This is safe, because nothing else runs in the process."""
    # The garbage collector would scan all waiting records, which are not garbage, and delay the next deliveries.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    # The thread that commits does little work. With the default switch interval of 5 ms, that thread would have to wait
    # for the main thread, which is already busy with the next round.
    sys.setswitchinterval(0.0005)
