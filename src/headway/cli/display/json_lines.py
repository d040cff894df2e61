"""JSON for programs: whatever a command prints with --json, each line is one object."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_option(each: str | None = None, more: str = "") -> Callable[[F], F]:
    """Return the option --json of a command that prints a line for `each`, or one line in all."""
    what = f"a line of JSON for each {each}" if each else "one line of JSON"
    return click.option("--json", "as_json", is_flag=True, help=f"For programs: {what}{more}.")


def echo_json(described: Mapping[str, Any]) -> None:
    """Print an object as one line."""
    click.echo(to_json(described))
