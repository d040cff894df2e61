"""The `headway` command.

Each subcommand lives in a module of its own, imported only when it is called, so that `headway --help` is quick
and an extra is missed only by the command that needs it.
"""

import importlib
import sys

import click

from headway.errors import HeadwayError

COMMANDS = {
    "broker": "headway.cli.broker:broker",
}


class _LazyGroup(click.Group):
    """A group whose subcommands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)  # noqa: S101 - for the type checker
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headway")
def headway() -> None:
    """Apache Kafka as a work queue: priority, delay and parallel processing."""


def main() -> None:
    """Run the command; a user's mistake is one sentence on stderr and exit code 1."""
    try:
        headway()
    except HeadwayError as error:
        click.echo(f"headway: {error}", err=True)
        sys.exit(1)
