"""The `headway` command.

Each subcommand lives in a module of its own, imported only when it is called. So `headway --help` is quick, and only
the command that needs an extra misses it.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from headway.errors import HeadwayError
from headway.runtime.interrupt import INTERRUPTED

SUMMARIES = {
    "broker": "Run a real Apache Kafka on this machine, for development and tests.",
    "topics": "Create, list and delete topics and their levels.",
    "produce": "Send the lines of FILES, or of stdin, to a topic by priority.",
    "consume": "Write the records of TOPICS, highest level first, until Ctrl-C.",
    "schedule": "Schedule records for later, list what is pending, cancel or reschedule it.",
    "relay": "Deliver delayed records when they are due.",
    "worker": "Run handlers that are declared with @worker, and keep them running.",
    "offsets": "Show what groups have committed, draw their offset maps, and move or set commits.",
    "dead": "List dead letters, look into them, and send them again.",
    "pipeline": "Run pipelines on Spark, and start your own from them.",
    "report": "Show throughput, waits and lag of what a pipeline did, as a page with plots.",
    "acls": "Show the smallest rights (ACLs) that a role needs, as commands that grant them.",
    "levels": "Show how a capacity is shared over levels.",
}
"""The subcommands, each in the module of its name, and their summaries for the help, which imports none of them."""


class _Mistake(click.ClickException):
    """A `HeadwayError` as click shows it and ends with it."""

    def show(self, file: Any = None) -> None:
        click.echo(f"headway: {self.message}", err=True, file=file)


def _refused(error: OSError) -> str:
    """Return the sentence for a refusal by the operating system; an error without a file is of a standard stream."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)} cannot be used: {reason}."
    from headway.cli.display.streams import silence  # noqa: PLC0415 - seldom needed

    with contextlib.suppress(OSError, ValueError, AttributeError):
        silence(sys.stdout.fileno())
    return f"What is read or shown was refused: {reason}. Check where stdin and stdout go; /dev/null takes everything."


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except HeadwayError as error:
        raise _Mistake(str(error)) from error
    except BrokenPipeError:
        raise  # click handles it: the reader of the pipe has enough
    except OSError as error:
        raise _Mistake(_refused(error)) from error
    except KeyboardInterrupt:
        click.echo("\nheadway: stopped by Ctrl-C.", err=True)
        sys.exit(INTERRUPTED)


class _LazyGroup(click.Group):
    """A group that imports subcommands only when needed, and shows errors as one sentence."""

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
        with _one_sentence():  # it shows the help
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_sentence():
            return super().invoke(ctx)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headway")
def headway() -> None:
    """Apache Kafka as a work queue: priority, delay and parallel processing.

    A topic has levels, 0 the lowest priority; level 2 of `orders` is the Kafka topic `orders-2`. Try it:

    \b
      headway broker start
      headway topics create orders --levels 3
      echo 'ship at once' | headway produce orders --level 2
      echo 'ship some day' | headway produce orders
      headway consume orders --group billing --timeout 5

    Every command explains itself: `headway consume --help`.
    """


def main() -> None:
    """Run the command; a user's mistake is one sentence on stderr and exit code 1."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from headway.cli.display.streams import hold_streams  # noqa: PLC0415 - seldom needed

        hold_streams()
    if {sys.stdout.encoding, sys.stderr.encoding} != {"utf-8"}:
        from headway.cli.display.streams import take_any_character  # noqa: PLC0415 - seldom needed

        take_any_character()
    headway()
