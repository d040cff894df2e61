"""The demo's command: a year of flights by priority through a real Apache Kafka, and then through Spark."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console

from demo import flights, later, plots, priority
from demo.evidence import Promise, promises
from demo.live import Display
from demo.report import show_promises, waits_table
from headway.broker import LocalBroker
from headway.core.fairness import PolicyName, make_policy
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST = 1_000
WARM_UP = 12_000
FOLLOWED_UP = 6_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code is 1 when a promise was broken, or the demo could not run. Ctrl-C goes through."""
    options = _parse(arguments)
    console = Console(highlight=False)
    try:
        return 0 if _run(options, console) else 1
    except HeadwayError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--records", type=_records, default=flights.COUNT, metavar="N", help="so many flights, not the whole year"
    )
    parser.add_argument("--output", type=Path, default=Path("demo-output"), metavar="DIR", help="for the results")
    parser.add_argument("--policy", choices=get_args(PolicyName), default="fair", help="how the levels share a poll")
    return parser.parse_args(arguments)


def _records(text: str) -> int:
    if not text.isdigit() or not LEAST <= int(text) <= flights.COUNT:
        raise argparse.ArgumentTypeError(f"it must be from {LEAST} to {flights.COUNT}, not {text}")
    return int(text)


def _run(options: argparse.Namespace, console: Console) -> bool:
    started = time.monotonic()
    options.output.mkdir(parents=True, exist_ok=True)
    console.print("Starting Apache Kafka …")
    with LocalBroker(ephemeral=True) as broker:
        console.print(
            f"Apache Kafka is ready at {broker.bootstrap_servers} after {time.monotonic() - started:.1f} s.\n"
        )
        kept = _by_priority(broker.bootstrap_servers, options, console)
        kept &= _later_and_through_spark(broker.bootstrap_servers, options, console)
    _end(options, console, time.monotonic() - started)
    return kept


def _by_priority(servers: str, options: argparse.Namespace, console: Console) -> bool:
    plan = priority.Plan(options.records)
    with console.status("Warming up …"):
        priority.warm_up(servers, flights.records(WARM_UP))
    console.print(
        f"[bold]Step 1:[/] {plan.records:,} flights by priority: {plan.sent_per_s:,.0f} are sent a second, and the "
        f"consumer's\nwork allows {plan.worked_per_s:,.0f}. Policy {options.policy}, {plan.capacity} records in a poll."
    )
    shares, _ = make_policy(options.policy, None, flights.LEVELS, plan.capacity)
    display = Display(console, plan.records, shares)
    outcome = priority.run(servers, flights.records(plan.records), plan, options.policy, display)
    console.print()
    console.print(waits_table(outcome.evidence))
    plots.draw(outcome.evidence, options.output / "priority.png")
    conserves_work = options.policy != "capacity_burst"
    return show_promises(console, promises(outcome.evidence, outcome.sent, conserves_work=conserves_work))


def _later_and_through_spark(servers: str, options: argparse.Namespace, console: Console) -> bool:
    # PySpark takes a second to import, and step 1 can do without.
    from demo import pipeline  # noqa: PLC0415
    from headway.spark.apart import beside  # noqa: PLC0415

    with beside(pipeline.session) as starting:  # which takes as long as step 2, and that mostly waits
        kept = _later(servers, options, console)
        with console.status("Spark starts …"):
            spark = starting.result()
    return _through_spark(spark, servers, options, console) and kept


def _later(servers: str, options: argparse.Namespace, console: Console) -> bool:
    count = min(options.records, FOLLOWED_UP)
    console.print(
        f"\n[bold]Step 2:[/] of {count:,} flights, each that left late has a follow-up when it left. "
        "Spark starts meanwhile"
    )
    with console.status("Follow-ups are scheduled, and come when they are due …"):
        outcome = later.run(servers, flights.records(count))
    return show_promises(console, outcome.promises())


def _through_spark(spark: "SparkSession", servers: str, options: argparse.Namespace, console: Console) -> bool:
    from demo import follow_ups, pipeline  # noqa: PLC0415
    from headway.spark.apart import apart  # noqa: PLC0415

    console.print(
        "\n[bold]Step 3:[/] the flights of step 1 through Spark, with weather, airports, planes and airlines, and a\n"
        "handler that runs in parallel, into Parquet, and back to Kafka with a notice of each flight, and a follow-up\n"
        "of the very late ones 5 s later"
    )
    with console.status("Spark reads, joins, handles and writes the flights, and a relay delivers the follow-ups …"):
        outcome, totals = apart(
            lambda: pipeline.run(
                spark, servers, priority.TOPIC, flights.LEVELS, options.records, options.output, console
            )
        )
    seen = (
        f"{outcome.rows:,} rows, {outcome.distinct:,} different ones, in {outcome.micro_batches} micro-batches and "
        f"{outcome.streaming_s:.0f} s"
    )
    noticed = f"{outcome.notices:,}, exactly once through the sink"
    return show_promises(
        console,
        [
            Promise("every flight once in Parquet", seen, outcome.each_once),
            Promise("a notice of each at its level", noticed, outcome.each_noticed_once),
            follow_ups.promise(totals),
        ],
    )


def _end(options: argparse.Namespace, console: Console, seconds: float) -> None:
    console.print(f"\nDone in {seconds:.0f} s. The results are in {options.output}:", soft_wrap=True)
    console.print("  priority.png  records per second by level, and how long they waited")
    console.print("  delays.png    delays by destination, and by visibility")
    console.print("  report.html   throughput, waits and lag of step 3 by level (headway report)")
    console.print("  flights/      the flights with weather, airports, planes and airlines, as Parquet")
    console.print(
        "\nNext: look at the pictures, try another policy (python -m demo --policy strict), or keep a broker:"
    )
    console.print("  headway broker start\n  headway topics create orders --levels 3 --partitions 6")
