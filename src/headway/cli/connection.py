"""The options of every command that talks to Kafka, and what they amount to."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from headway.errors import ConfigError, LocalBrokerError
from headway.kafka.admin import Admin

log = logging.getLogger(__name__)

_VARIABLE = "HEADWAY_BOOTSTRAP_SERVERS"
_LAST_RESORT = "localhost:9092"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings of a Kafka client; they can hold secrets, so neither `repr` nor any message shows them."""

    config: dict[str, Any] = field(repr=False)
    read_again: Callable[[], dict[str, Any]] | None = field(default=None, repr=False, compare=False)

    def renewed(self) -> dict[str, Any]:
        """Return the settings as their file has them now: a password may have been renewed there."""
        if self.read_again is None:
            return self.config
        try:
            return self.read_again()
        except ConfigError as error:
            log.warning("The settings that were read before are used again. %s", error)
            return self.config

    def admin(self) -> Admin:
        """Who lists, creates and deletes topics."""
        return Admin(self.config)


class KeyValue(click.ParamType[tuple[str, str]]):
    """`key=value`, as a pair. A refusal does not repeat the text: it can be a secret."""

    name = "KEY=VALUE"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        key, equals, text = str(value).partition("=")
        if not key.strip() or not equals:
            self.fail(f"It takes KEY=VALUE, as {self._example}.", param, ctx)
        return key.strip(), text


def kafka_options(command: F) -> F:
    """Give a command the options that say where Kafka is; it gets them as `connection`."""

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
        help="Settings as lines of key=value; others cannot see them in the list of processes.",
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


def connect(bootstrap_servers: str | None, settings: Iterable[tuple[str, str]], config_file: Path | None) -> Connection:
    """The settings of a client: an option wins over -X, that over the file, and that over the environment."""
    options = dict(settings)

    def read() -> dict[str, Any]:
        config = (read_properties(config_file) if config_file else {}) | options
        servers = bootstrap_servers or config.get("bootstrap.servers") or os.environ.get(_VARIABLE)
        return config | {"bootstrap.servers": servers or _local_broker() or _LAST_RESORT}

    return Connection(read(), read if config_file else None)


def read_properties(file: Path) -> dict[str, str]:
    """The settings in a file of `key=value` lines; empty ones, and those that begin with # or !, are comments.

    Raises `ConfigError` that names the line, but does not show it.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The settings in {file} cannot be read: {reason}.") from None
    settings = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        key, equals, value = line.partition("=")
        if line and not line.startswith(("#", "!")):
            if not equals:
                raise ConfigError(f"Line {number} of {file} is not key=value. Correct it, or begin it with #.")
            settings[key.strip()] = value.strip()
    return settings


def _local_broker() -> str | None:
    """The broker that runs since `headway broker start`, if there is one."""
    # Without its extra there is none, and a damaged one is the business of `headway broker`.
    with contextlib.suppress(LocalBrokerError):
        from headway.broker import LocalBroker  # noqa: PLC0415 - not needed by who says where Kafka is
        from headway.broker.data_dir import default_data_dir, read_description  # noqa: PLC0415

        for directory in (default_data_dir(), default_data_dir(ephemeral=True)):
            if read_description(directory) and (broker := LocalBroker.attach(directory)).running:
                return broker.bootstrap_servers
    return None
