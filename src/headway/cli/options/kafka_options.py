"""The options of every command that talks to Kafka, and the settings that result."""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from headway.cli.options.settings_file import read_properties
from headway.config import Config
from headway.errors import ConfigError, LocalBrokerError
from headway.kafka.admin import Admin

log = logging.getLogger(__name__)

_VARIABLE = "HEADWAY_BOOTSTRAP_SERVERS"
_FILE_VARIABLE = "HEADWAY_CONFIG_FILE"
_SERVERS = "bootstrap.servers"
_SERVERS_TOO = "metadata.broker.list"  # librdkafka's other name for it
_LAST_RESORT = "localhost:9092"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings of a Kafka client; they can hold secrets, so neither `repr` nor any message shows them.

    `assumes_servers` says that the user has not said where Kafka is.
    """

    config: dict[str, Any] = field(repr=False)
    assumes_servers: bool = False
    read_again: Callable[[], dict[str, Any]] | None = field(default=None, repr=False, compare=False)

    def over(self, declared: Config) -> dict[str, Any]:
        """Return the settings of this connection that win over a worker's declared settings."""
        says_servers = _SERVERS in declared or _SERVERS_TOO in declared
        left_out = _SERVERS if self.assumes_servers and says_servers else None
        return {key: value for key, value in self.config.items() if key != left_out}

    def renewed(self) -> "ConnectionSettings":
        """Return the connection with its file's present settings: a password may have been renewed there."""
        if self.read_again is None:
            return self
        try:
            return replace(self, config=self.read_again())
        except ConfigError as error:
            log.warning("The settings that were read before are used again. %s", error)
            return self

    def admin(self) -> Admin:
        """Return a client that lists, creates and deletes topics."""
        return Admin(self.config)


class KeyValue(click.ParamType[tuple[str, str]]):
    """A pair from the text `key=value`. A refusal does not repeat the text: it can be a secret."""

    name = "KEY=VALUE"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        key, equals, text = str(value).partition("=")
        if not key.strip() or not equals:
            self.fail(f"It takes KEY=VALUE, as {self._example}.", param, ctx)
        return key.strip(), text


def kafka_options(command: F) -> F:
    """Give a command the options that say where Kafka is; the command gets them as `connection`."""

    @click.option(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        help=f"Where Kafka is. [env {_VARIABLE}; else the broker of `headway broker start`, or {_LAST_RESORT}]",
    )
    @click.option(
        "-X",
        "settings",
        type=KeyValue("linger.ms=5"),
        multiple=True,
        help="Any setting of librdkafka, as -X compression.type=zstd. Passwords belong in --config-file.",
    )
    @click.option(
        "--config-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar=_FILE_VARIABLE,
        help=f"Settings as lines of key=value; others cannot see them in the list of processes. [env {_FILE_VARIABLE}]",
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
    """Return a client's settings: an option wins over -X, -X over the file, and the file over the environment."""
    options = dict(settings)

    def read() -> dict[str, Any]:
        return (read_properties(config_file) if config_file else {}) | options

    config = read()
    if "oauth_cb" in config and os.getcwd() not in sys.path:  # an installed command searches beside itself
        sys.path.insert(0, os.getcwd())
    said = bootstrap_servers or config.get(_SERVERS) or config.get(_SERVERS_TOO) or os.environ.get(_VARIABLE)
    servers = {_SERVERS: said or local_broker() or _LAST_RESORT}

    def with_servers() -> dict[str, Any]:
        return {key: value for key, value in read().items() if key != _SERVERS_TOO} | servers

    return ConnectionSettings(with_servers(), not said, with_servers if config_file else None)


def local_broker() -> str | None:
    """Return the address of the broker that `headway broker start` has started, if it runs."""
    # Without the extra there is no broker, and a damaged one is a matter for `headway broker`.
    with contextlib.suppress(LocalBrokerError):
        from headway.broker import LocalBroker  # noqa: PLC0415 - not needed if the user says where Kafka is
        from headway.broker.data_dir import default_data_dir, read_description  # noqa: PLC0415

        for directory in (default_data_dir(), default_data_dir(ephemeral=True)):
            if read_description(directory) and (broker := LocalBroker.attach(directory)).running:
                return broker.bootstrap_servers
    return None
