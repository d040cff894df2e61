"""The `headway` command.

Each subcommand has its own module, which is imported only when the command is called. So `headway --help` is fast, and
a missing extra affects only the commands that need it.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import click

from headway.errors import HeadwayError
from headway.runtime.interrupt import INTERRUPTED

SUMMARIES = {
    "broker": "Run a real Apache Kafka on this machine, for development and tests.",
    "topics": "Create, list and delete topics and their levels.",
    "produce": "Send the lines of files, or of stdin, to a topic, with a priority.",
    "consume": "Write the records of topics, highest level first, until Ctrl-C.",
    "schedule": "Schedule records for later; list, cancel or reschedule pending ones.",
    "relay": "Deliver delayed records when they are due.",
    "outbox": "Send the rows of an outbox table, and look after those that Kafka refuses.",
    "worker": "Run handlers that are declared with @worker, and keep them running.",
    "top": "Watch queues: what waits, what is stuck, what failed, and what is due.",
    "rules": "Hold, drop or limit the records of a running group, and end such rules.",
    "waiting": "List the records that wait in a group, and drop or move them.",
    "offsets": "Show, copy and reset the commits of groups, with their offset maps.",
    "dashboard": "Show queues in a browser: levels, offset maps, dead letters, schedules.",
    "dead": "List dead letters, inspect them, and send them again.",
    "pipeline": "Run pipelines on Spark.",
    "report": "Write a page with plots of a pipeline's throughput, waiting times and lag.",
    "acls": "Show the permissions (ACLs) that a role needs, as commands that grant them.",
    "levels": "Show how a capacity is shared among levels.",
    "experiment": "Repeat the experiments of two Java clients with Headway, and draw the results.",
}
"""The summary of each subcommand. All are listed here so that `headway --help` imports no subcommand."""


class _UserError(click.ClickException):
    """Prints a `HeadwayError` as one sentence on stderr, without click's usage line, and exits with its exit code."""

    def show(self, file: Any = None) -> None:
        click.echo(f"headway: {self.message}", err=True, file=file)


def _describe(error: OSError) -> str:
    """Describe an error of the operating system in a sentence.

    An error without a file name concerns stdin or stdout.
    """
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)} cannot be used: {reason}."
    from headway.cli.display.streams import silence  # noqa: PLC0415 - seldom needed

    with contextlib.suppress(OSError, ValueError, AttributeError):
        silence(sys.stdout.fileno())

    return (
        f"Reading stdin or writing stdout failed: {reason}. Check what they are connected to; /dev/null accepts "
        "everything."
    )


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except HeadwayError as error:
        raise _UserError(str(error)) from error
    except BrokenPipeError:
        raise  # the reader has closed the pipe, which click handles
    except OSError as error:
        raise _UserError(_describe(error)) from error
    except KeyboardInterrupt:
        click.echo("\nheadway: stopped by Ctrl-C.", err=True)
        sys.exit(INTERRUPTED)


class _LazyGroup(click.Group):
    """A command group that imports a subcommand only to call it, and shows each error as one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUMMARIES:
            return None
        command = getattr(importlib.import_module(f"headway.cli.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101 - for the type checker
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _one_sentence():  # without a subcommand, `make_context` prints the help, which can fail
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_sentence():
            return super().invoke(ctx)


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from headway.runtime.compiled import is_compiled  # noqa: PLC0415 - seldom needed

        click.echo(f"headway {metadata.version('headway')} ({'compiled' if is_compiled() else 'plain Python'})")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, and whether the hot path is compiled.",
)
def headway() -> None:
    """Apache Kafka as a work queue: priority, delay and parallel processing.

    A topic has levels; level 0 has the lowest priority. Level 2 of `orders` is the Kafka topic `orders-2`. An example:

    \b
      headway broker start
      headway topics create orders --levels 3
      echo 'ship at once' | headway produce orders --level 2
      echo 'ship some day' | headway produce orders
      headway consume orders --group billing --timeout 5

    For the help of a command, add --help: `headway consume --help`.
    """


def main() -> None:
    """Run the command. If the user made a mistake, print one sentence on stderr and exit with code 1."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from headway.cli.display.streams import hold_streams  # noqa: PLC0415 - seldom needed

        hold_streams()
    if {sys.stdout.encoding, sys.stderr.encoding} != {"utf-8"}:
        from headway.cli.display.streams import take_any_character  # noqa: PLC0415 - seldom needed

        take_any_character()
    headway()
