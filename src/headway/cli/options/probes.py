"""The option `--probes` of the commands that run as services."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from headway.errors import ConfigError
from headway.metrics.health import CheckHealth
from headway.metrics.samples import Measure
from headway.probes.serving import Probes, parsed_address

log = logging.getLogger("headway.probes")


def _checked(context: click.Context, option: click.Parameter, address: str | None) -> str | None:
    if address is not None:
        try:
            parsed_address(address)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error
    return address


def probes_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--probes` to a command."""
    return click.option(
        "--probes",
        metavar="HOST:PORT",
        callback=_checked,
        help="Serve /livez, /readyz and /metrics over HTTP at this address, such as 127.0.0.1:8080, or 0.0.0.0:8080 "
        "in a pod.",
    )(command)


@contextmanager
def probes_at(address: str | None, check: Callable[[], CheckHealth], measure: Callable[[], Measure]) -> Iterator[None]:
    """Serve probes at this address during a `with` block, if there is one. Only then are the functions called."""
    if address is None:
        yield
        return
    with Probes(check(), measure(), address) as probes:
        log.info("The probes are served at http://%s/livez, /readyz and /metrics.", probes.address)
        yield
