"""A client's settings from environment variables and a settings file: where Kafka is, and how to log in."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from headway.errors import LocalBrokerError
from headway.settings.settings_file import read_properties

SERVERS: Final = "bootstrap.servers"
SERVERS_TOO: Final = "metadata.broker.list"
"""librdkafka's other name for `bootstrap.servers`."""
SERVERS_VARIABLE: Final = "HEADWAY_BOOTSTRAP_SERVERS"
FILE_VARIABLE: Final = "HEADWAY_CONFIG_FILE"
LAST_RESORT: Final = "localhost:9092"


def settings_from_environment(config_file: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the settings that the `headway` command uses when it has no options, for clients in your own program.

    The settings are read from `config_file`, or by default from the file that `HEADWAY_CONFIG_FILE` names. Kafka's
    address comes from the first of these sources that has one: the file, `HEADWAY_BOOTSTRAP_SERVERS`, or a running
    broker that `headway broker start` started. Otherwise it is localhost:9092. This function makes no connection.

    Raises `ConfigError` if the file cannot be read, or if a line in it is not key=value.
    """
    file = config_file or os.environ.get(FILE_VARIABLE)
    settings: dict[str, Any] = dict(read_properties(Path(file))) if file else {}
    find_own_modules(settings)
    return with_servers(settings, said_servers(settings) or local_broker())


def said_servers(settings: dict[str, Any]) -> str | None:
    """Return Kafka's address from the settings or the environment variable, or None if neither names an address."""
    return settings.get(SERVERS) or settings.get(SERVERS_TOO) or os.environ.get(SERVERS_VARIABLE)


def with_servers(settings: dict[str, Any], servers: str | None) -> dict[str, Any]:
    """Return the settings with `bootstrap.servers` set to `servers`, or to localhost:9092 if `servers` is None."""
    return {key: value for key, value in settings.items() if key != SERVERS_TOO} | {SERVERS: servers or LAST_RESORT}


def find_own_modules(settings: dict[str, Any]) -> None:
    """Make the working directory importable, if the setting `oauth_cb` names a function that may be defined there."""
    # Python does not put the working directory on the `sys.path` of an installed command.
    if "oauth_cb" in settings and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def local_broker() -> str | None:
    """Return the address of the broker that `headway broker start` started, or None if that broker is not running."""
    from headway.broker import EXTRA  # noqa: PLC0415 - not needed if the user gives Kafka's address

    try:
        from headway.broker.data_dir import default_data_dir, running_servers  # noqa: PLC0415 - as above

        return running_servers(default_data_dir()) or running_servers(default_data_dir(ephemeral=True))
    except ModuleNotFoundError as error:  # without the extra `broker` no local broker can be running
        if error.name not in EXTRA:
            raise
    except LocalBrokerError:  # the file that describes the broker is damaged; the `headway broker` commands report this
        pass
    return None
