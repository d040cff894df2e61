"""`headway experiment`: the experiments of two Java clients, repeated with Headway and drawn."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.display.tables import Column, show_table
from headway.cli.display.terminal import complaints, stderr_is_terminal
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.errors import ConfigError
from headway.runtime.extras import how_to_install

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBars
    from rich.progress import TaskID

    from headway.experiments.backends import Backend
    from headway.experiments.level_experiment import LevelExperimentName
    from headway.experiments.level_setup import ConsumerName, LevelSetup
    from headway.experiments.result import ExperimentResult, ReportProgress

F = TypeVar("F", bound=Callable[..., Any])

_LEAST_RECORDS, _MOST_RECORDS = 100, 1_000_000
_WIDTH = 100  # characters of a line of the explanation


@click.group()
def experiment() -> None:
    """Repeat the experiments of two Java clients with Headway, and draw the results.

    Each picture and each table has the ideal beside the results.

    no-priority, priority and wave are those of the Java priority client: 3 levels with 100,000 records each, and 5
    consumers with 55 slots each that need 1 s for a record. keys and group are those of the Java parallel consumer:
    10,000 records that take 0 to 5 ms.

    Each experiment starts a real Apache Kafka on this machine, unless you give the address of yours, and deletes its
    topics at the end. With --simulate it needs no Kafka: the real policies and the real engine decide over simulated
    time, so that the original size takes seconds.

    \b
      headway experiment priority                        a smaller run on a real Kafka, ten times as fast
      headway experiment priority --simulate             the original size, in seconds
      headway experiment wave --simulate --consumer priority
      headway experiment keys -b localhost:9092 --records 5000
      headway experiment priority --simulate --json | jq .ways.fair.drained

    An experiment prints its figures, and writes a picture (SVG and PNG) and a page (HTML) with both.
    """


def _experiment_options(records: str) -> Callable[[F], F]:
    """Add the options that all experiments have. `records` describes the option --records."""

    def decorate(command: F) -> F:
        @click.option("--simulate", is_flag=True, help="Simulate the time instead of running on Kafka.")
        @click.option("--records", type=click.IntRange(_LEAST_RECORDS, _MOST_RECORDS), help=records)
        @click.option(
            "--speed",
            type=click.FloatRange(0.01, 1000),
            metavar="FACTOR",
            help="On Kafka, divide all times by this factor; the results show the times before the division.",
        )
        @click.option(
            "--output",
            type=click.Path(file_okay=False, path_type=Path),
            default="experiment-output",
            show_default=True,
            help="The directory for the picture and the page.",
        )
        @json_option(more=", instead of the table")
        @kafka_options
        @functools.wraps(command)
        def with_options(*args: Any, simulate: bool, speed: float | None, **kwargs: Any) -> Any:
            if simulate and speed is not None:
                raise click.UsageError("--speed is for runs on Kafka. With --simulate, leave it out.")
            return command(*args, simulate=simulate, speed=speed, **kwargs)

        return with_options  # type: ignore[return-value]

    return decorate


def _level_options(command: F) -> F:
    @_experiment_options(
        "The records of each level. By default, as many as in the original with --simulate, and otherwise 10,000."
    )
    @click.option(
        "--consumer",
        type=click.Choice(["parallel", "priority"]),
        default="parallel",
        show_default=True,
        help="parallel fills each slot as soon as it is free. priority polls 50 records and waits for all of them, as "
        "the original does.",
    )
    @functools.wraps(command)
    def with_level_options(*args: Any, **kwargs: Any) -> Any:
        return command(*args, **kwargs)

    return with_level_options  # type: ignore[return-value]


@experiment.command("no-priority")
@_level_options
def no_priority(records: int | None, consumer: ConsumerName, **options: Any) -> None:
    """Show that urgent records wait like all others if the records of all levels are in one topic.

    The picture has the rates of the levels in one topic, and how soon the urgent records are done there and with
    levels, under two policies.
    """
    from headway.experiments.level_setup import all_at_once  # noqa: PLC0415 - see `headway.cli`

    _run_with_levels("no-priority", all_at_once, 100_000, records, consumer, options)


@experiment.command()
@_level_options
def priority(records: int | None, consumer: ConsumerName, **options: Any) -> None:
    """Show how each policy divides the capacity if all levels have a backlog.

    The picture has the rate of each level over time, without priority, with capacity_burst (the policy of the Java
    client) and with fair. When a level has no more records, its capacity goes to the others.
    """
    from headway.experiments.level_setup import all_at_once  # noqa: PLC0415 - see `headway.cli`

    _run_with_levels("priority", all_at_once, 100_000, records, consumer, options)


@experiment.command()
@_level_options
def wave(records: int | None, consumer: ConsumerName, **options: Any) -> None:
    """Show how fast each policy reacts when the load comes in waves.

    Three waves bring the same number of records to each level, and the second one comes before the first is worked
    off. The original has 60,000 records at each level. The picture has the rate of each level over time.
    """
    from headway.experiments.level_setup import in_waves  # noqa: PLC0415 - see `headway.cli`

    _run_with_levels("wave", in_waves, 60_000, records, consumer, options)


@experiment.command()
@_experiment_options("The number of records. By default 10,000 with --simulate, and otherwise 2,000.")
def keys(records: int | None, **options: Any) -> None:
    """Show how long one parallel consumer needs, by the number of keys and by the ordering.

    There is one partition, and the consumer has 16 slots. The picture has the time for each ordering beside the ideal.
    With 10,000 records, it also has the times that the README of the Java parallel consumer states.
    """
    from headway.experiments.key_experiment import run_key_experiment  # noqa: PLC0415 - see `headway.cli`

    count = records or _default_records(options, 10_000, 2_000)
    _run(functools.partial(run_key_experiment, count), 1.0, **options)


@experiment.command()
@_experiment_options("The number of records. By default 10,000 with --simulate, and otherwise 2,000.")
def group(records: int | None, **options: Any) -> None:
    """Compare groups of 1 to 16 plain consumers with one parallel consumer.

    The picture has the time for a backlog, and the latency when 1,000 records come per second, by the size of the
    group. A plain consumer handles one record after the other.
    """
    from headway.experiments.group_experiment import run_group_experiment  # noqa: PLC0415 - see `headway.cli`

    count = records or _default_records(options, 10_000, 2_000)
    _run(functools.partial(run_group_experiment, count), 1.0, **options)


def _default_records(options: dict[str, Any], simulated: int, on_kafka: int) -> int:
    return simulated if options["simulate"] else on_kafka


def _run_with_levels(
    name: LevelExperimentName,
    setup: Callable[[int], LevelSetup],
    original: int,
    records: int | None,
    consumer: ConsumerName,
    options: dict[str, Any],
) -> None:
    from headway.experiments.level_experiment import run_level_experiment  # noqa: PLC0415 - see `headway.cli`

    count = records or _default_records(options, original, 10_000)
    _run(functools.partial(run_level_experiment, name, setup(count), consumer), 10.0, **options)


def _run(
    run: Callable[[Backend, ReportProgress], ExperimentResult],
    default_speed: float,
    *,
    simulate: bool,
    speed: float | None,
    output: Path,
    as_json: bool,
    connection: ConnectionSettings,
) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"The pictures of experiments need matplotlib: {how_to_install('experiments')}.")
    output.mkdir(parents=True, exist_ok=True)  # an error must come before the run, not after it
    with complaints(), _backend(connection, simulate, speed or default_speed) as backend, RunProgress() as progress:
        result = run(backend, progress.show)
    files = _write(result, output)
    if as_json:
        echo_json(result.figures | {"simulated": simulate, "files": files})
    else:
        _show_result(result, files)


@contextmanager
def _backend(connection: ConnectionSettings, simulate: bool, speed: float) -> Iterator[Backend]:
    from headway.experiments.backends import KafkaBackend, SimulatedBackend  # noqa: PLC0415 - see `headway.cli`

    if simulate:
        yield SimulatedBackend()
    elif connection.assumes_servers:  # a broker of `headway broker start` might have other work
        from headway.broker import LocalBroker  # noqa: PLC0415 - an extra

        click.echo("Starting Apache Kafka …", err=True)
        with LocalBroker(ephemeral=True) as broker:
            yield KafkaBackend(connection.config | {"bootstrap.servers": broker.bootstrap_servers}, speed)
    else:
        yield KafkaBackend(connection.config, speed)


class RunProgress:
    """Shows on stderr what is running: as a bar on a terminal, and otherwise as a line for each run."""

    def __init__(self) -> None:
        self._bar: ProgressBars | None = None
        self._task: TaskID | None = None
        self._doing = ""

    def __enter__(self) -> RunProgress:
        if stderr_is_terminal():
            from rich.console import Console  # noqa: PLC0415 - not needed without a terminal
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

            columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} records")]
            self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, doing: str, done: int, total: int) -> None:
        """Show what is running, and how many of its records are done."""
        if self._bar is None:
            if doing != self._doing:
                click.echo(f"Running: {doing} …", err=True)
        elif doing != self._doing:
            self._task = self._bar.add_task(doing, total=total)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=min(done, total))
        self._doing = doing


def _write(result: ExperimentResult, output: Path) -> list[str]:
    from headway.experiments.picture_style import write_pictures  # noqa: PLC0415 - imports matplotlib
    from headway.experiments.result_page import experiment_page  # noqa: PLC0415 - see `headway.cli`

    stem = output / result.name
    page = stem.with_suffix(".html")
    page.write_text(experiment_page(result, write_pictures(result.draw, stem)), encoding="utf-8")
    return [str(path) for path in (stem.with_suffix(".svg"), stem.with_suffix(".png"), page)]


def _show_result(result: ExperimentResult, files: list[str]) -> None:
    click.echo(f"{result.title}.\n{click.wrap_text(result.caption, _WIDTH)}\n")
    columns = [Column(title, "left" if number == 0 else "right") for number, title in enumerate(result.columns)]
    show_table(columns, result.rows)
    click.echo(f"\n{click.wrap_text(result.explanation, _WIDTH)}\n")
    click.echo(f"Wrote {', '.join(files[:-1])} and {files[-1]}.")
