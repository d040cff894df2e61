"""The demo's command: a year of flights by priority through a real Apache Kafka, and then through Spark."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console

from demo import flights, later, priority
from demo.evidence import Promise, promises
from demo.live import Display, Working
from demo.machine import SAMPLE, Machine, minutes
from demo.report import show_promises, verdict, waits_table
from headway.broker import LocalBroker
from headway.core.levels.policies import PolicyName, make_policy
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST, SHORT = 1_000, 20_000
FOLLOWED_UP = 6_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code: 1 if a promise was broken or the demo failed. Ctrl-C is not caught."""
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
        console.print(f"Apache Kafka is ready at {broker.bootstrap_servers} after {time.monotonic() - started:.1f} s.")
        machine = _calibrate(broker.bootstrap_servers, options, console)
        made, machine = _by_priority(broker.bootstrap_servers, machine, options, console)
        made += _later_and_through_spark(broker.bootstrap_servers, machine, options, console)
    _end(options, console, made, time.monotonic() - started)
    return all(promise.kept is not False for promise in made)


def _calibrate(servers: str, options: argparse.Namespace, console: Console) -> Machine:
    with Working(console, f"Warming up with {SAMPLE:,} flights …"):
        began = time.monotonic()
        sample = list(flights.records(SAMPLE))
        machine = Machine.measured(time.monotonic() - began, priority.warm_up(servers, sample))
    about = minutes(machine.seconds(options.records))
    console.print(f"On this machine, as busy as it is now, the demo may take {about}.")
    if machine.seconds(SHORT) < machine.seconds(options.records) - 60:
        console.print(f"A short one, with RECORDS={SHORT}, {minutes(machine.seconds(SHORT))}.")
    return machine


def _by_priority(
    servers: str, machine: Machine, options: argparse.Namespace, console: Console
) -> tuple[list[Promise], Machine]:
    plan = priority.Plan(options.records)
    console.print(
        f"\n[bold]Step 1:[/] {plan.records:,} flights by priority, up to {plan.sent_per_s:,.0f} a second, to a\n"
        "consumer that keeps up with three quarters of what is really sent.\n"
        f"Policy {options.policy}, at most {plan.capacity} records in a poll."
    )
    shares, _ = make_policy(options.policy, None, flights.LEVELS, plan.capacity)
    display = Display(console, plan.records, shares)
    outcome = priority.run(servers, flights.records(plan.records), plan, options.policy, display)
    console.print(f"\n{outcome.sent_per_s:,.0f} a second were really sent. What did not fit had to wait:\n")
    console.print(waits_table(outcome.evidence))
    with Working(console, "Drawing it …"):
        from demo import plots  # noqa: PLC0415 - matplotlib takes a second to import, and longer on a busy machine

        plots.draw(outcome.evidence, options.output / "priority.png")
    conserves_work = options.policy != "capacity_burst"
    made = promises(outcome.evidence, outcome.sent, conserves_work=conserves_work)
    show_promises(console, made)
    return made, machine.having_sent(outcome.sent_per_s, plan)


def _later_and_through_spark(
    servers: str, machine: Machine, options: argparse.Namespace, console: Console
) -> list[Promise]:
    from demo import pipeline  # noqa: PLC0415 - PySpark takes a second to import, and step 1 does not need it
    from headway.spark.session.interruptible import beside  # noqa: PLC0415 - imports PySpark, too

    with beside(pipeline.session) as starting:  # Spark starts during step 2, which mostly waits
        made = _later(servers, options, console)
        with Working(console, "Spark starts …"):
            spark = starting.result()
    return made + _through_spark(spark, servers, machine, options, console)


def _later(servers: str, options: argparse.Namespace, console: Console) -> list[Promise]:
    count = min(options.records, FOLLOWED_UP)
    console.print(
        f"\n[bold]Step 2:[/] of {count:,} flights, each that left late has a follow-up when it left.\n"
        "Spark starts meanwhile."
    )
    with Working(console, "Follow-ups are scheduled …") as working:
        outcome = later.run(servers, flights.records(count), working.say)
    made = outcome.promises()
    show_promises(console, made)
    return made


def _through_spark(
    spark: "SparkSession", servers: str, machine: Machine, options: argparse.Namespace, console: Console
) -> list[Promise]:
    from demo import pipeline  # noqa: PLC0415 - see `_later_and_through_spark`
    from headway.spark.session.interruptible import interruptible  # noqa: PLC0415 - see `_later_and_through_spark`

    after = machine.follow_up_after(options.records)
    about = minutes(machine.seconds_after_sending(options.records))
    console.print(
        "\n[bold]Step 3:[/] the flights of step 1 through Spark, joined with weather, airports,\n"
        "planes and airlines, and handled in parallel; into Parquet, and back to Kafka\n"
        f"with a notice of each, and a follow-up of the very late ones {after.total_seconds():.0f} s later.\n"
        f"This may take {about}."
    )
    with Working(console, "Spark reads the flights …") as working:
        outcome, audit = interruptible(
            lambda: pipeline.run(
                spark,
                servers,
                priority.TOPIC,
                flights.LEVELS,
                options.records,
                machine.flights_at_once,
                after,
                options.output,
                console,
                working.say,
            )
        )
    console.print(f"\nMicro-batches of Spark: {outcome.micro_batches}, in {outcome.streaming_s:.0f} s.")
    rows = f"{outcome.rows:,}, of which {outcome.distinct:,} different"
    made = [
        Promise("every flight once in Parquet", rows, outcome.each_once),
        Promise("a notice of each once, at its level", f"{outcome.notices:,}", outcome.each_noticed_once),
        *audit.promises(),
    ]
    show_promises(console, made)
    return made


def _end(options: argparse.Namespace, console: Console, made: Sequence[Promise], seconds: float) -> None:
    console.print(f"\n[bold]Done in {seconds:.0f} s:[/] {verdict(made)}")
    console.print(f"The results are in {options.output}:", soft_wrap=True)
    console.print("  priority.png  records per second by level, and how long they waited")
    console.print("  delays.png    delays by destination, and by visibility")
    console.print("  report.html   throughput, waiting times and lag of step 3 by level (headway report)")
    console.print("  flights/      the flights with what Spark joined to them, as Parquet")
    console.print("\nNext: look at the pictures, try another policy, or keep a broker:")
    console.print("  python -m demo --policy strict")
    console.print("  headway broker start")
    console.print("  headway topics create orders --levels 3 --partitions 6")
