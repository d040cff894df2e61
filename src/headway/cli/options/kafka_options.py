"""The options of all commands that connect to Kafka, and the client settings that result from them."""

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from headway.environment import (
    FILE_VARIABLE,
    LAST_RESORT,
    SERVERS,
    SERVERS_TOO,
    SERVERS_VARIABLE,
    find_own_modules,
    local_broker,
    said_servers,
    with_servers,
)
from headway.errors import ConfigError
from headway.kafka.admin import Admin
from headway.settings.config import Config
from headway.settings.settings_file import read_properties

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings of a Kafka client, which can contain passwords, so neither `repr` nor any message shows them.

    `assumes_servers` is True if the user has not given an address of Kafka.
    """

    config: dict[str, Any] = field(repr=False)
    assumes_servers: bool = False
    read_again: Callable[[], dict[str, Any]] | None = field(default=None, repr=False, compare=False)

    def over(self, declared: Config) -> dict[str, Any]:
        """Return those settings of the command that override the settings that a worker declares."""
        says_servers = SERVERS in declared or SERVERS_TOO in declared
        left_out = SERVERS if self.assumes_servers and says_servers else None
        return {key: value for key, value in self.config.items() if key != left_out}

    def renewed(self) -> "ConnectionSettings":
        """Read the settings file again, which might have a new password, and return the new settings."""
        if self.read_again is None:
            return self
        try:
            return replace(self, config=self.read_again())
        except ConfigError as error:
            log.warning("The settings file cannot be read; the previous settings stay in use. %s", error)
            return self

    def admin(self) -> Admin:
        """Create a client that lists, creates and deletes topics."""
        return Admin(self.config)


class KeyValue(click.ParamType[tuple[str, str]]):
    """Parses a pair from the text `key=value`. The error does not repeat the text, because it can be a secret."""

    name = "KEY=VALUE"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        key, equals, text = str(value).partition("=")
        if not key.strip() or not equals:
            self.fail(f"It takes KEY=VALUE, such as {self._example}.", param, ctx)
        return key.strip(), text


def kafka_options(command: F) -> F:
    """Add the options with which a command connects to Kafka. The command gets them in the argument `connection`."""

    @click.option(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        help=f"The addresses of Kafka's brokers. [env {SERVERS_VARIABLE}; default: the broker of `headway broker "
        f"start`, or {LAST_RESORT}]",
    )
    @click.option(
        "-X",
        "settings",
        type=KeyValue("linger.ms=5"),
        multiple=True,
        help="Any librdkafka setting, such as -X compression.type=zstd. Put passwords in --config-file.",
    )
    @click.option(
        "--config-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar=FILE_VARIABLE,
        help="A file of settings, one key=value per line. Unlike options, they do not show in process lists. [env "
        f"{FILE_VARIABLE}]",
    )
    @functools.wraps(command)
    def with_connection(
        *args: Any,
        bootstrap_servers: str | None,
        settings: Iterable[tuple[str, str]],
        config_file: Path | None,
        **kwargs: Any,
    ) -> Any:
        connection = connect(bootstrap_servers, settings, config_file)
        return command(*args, connection=connection, **kwargs)

    return with_connection  # type: ignore[return-value]


def connect(
    bootstrap_servers: str | None, settings: Iterable[tuple[str, str]], config_file: Path | None
) -> ConnectionSettings:
    """Combine the settings of a client.

    Options override -X, -X overrides the file, and the file overrides the environment.
    """
    options = dict(settings)

    def read() -> dict[str, Any]:
        return (read_properties(config_file) if config_file else {}) | options

    config = read()
    find_own_modules(config)
    given = bootstrap_servers or said_servers(config)
    servers = given or local_broker()

    def read_again() -> dict[str, Any]:
        return with_servers(read(), servers)

    return ConnectionSettings(with_servers(config, servers), not given, read_again if config_file else None)
