"""JSON output for programs: with --json, a command prints one object per line."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_option(each: str | None = None, more: str = "") -> Callable[[F], F]:
    """Return the option --json. The command prints one line for each `each`, or by default a single line."""
    what = f"a line of JSON for each {each}" if each else "one line of JSON"
    return click.option("--json", "as_json", is_flag=True, help=f"For programs: {what}{more}.")


def echo_json(described: Mapping[str, Any]) -> None:
    """Print an object as one line of JSON."""
    click.echo(to_json(described))
