"""The settings that the environment gives a client: where Kafka is, and how to log in."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from headway.errors import LocalBrokerError
from headway.settings.settings_file import read_properties

SERVERS: Final = "bootstrap.servers"
SERVERS_TOO: Final = "metadata.broker.list"
"""librdkafka's other name for the same setting."""
SERVERS_VARIABLE: Final = "HEADWAY_BOOTSTRAP_SERVERS"
FILE_VARIABLE: Final = "HEADWAY_CONFIG_FILE"
LAST_RESORT: Final = "localhost:9092"


def settings_from_environment(config_file: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the settings that the `headway` command would use without options, for clients in a program.

    The file is `config_file`, or by default the one that `HEADWAY_CONFIG_FILE` names. Kafka's address comes from the
    first of these sources that has one: the file, `HEADWAY_BOOTSTRAP_SERVERS`, or a running broker of
    `headway broker start`. Otherwise it is localhost:9092. No connection is made.

    Raises `ConfigError` for a file that cannot be read, or for a line in it that is not key=value.
    """
    file = config_file or os.environ.get(FILE_VARIABLE)
    settings: dict[str, Any] = dict(read_properties(Path(file))) if file else {}
    find_own_modules(settings)
    return with_servers(settings, said_servers(settings) or local_broker())


def said_servers(settings: dict[str, Any]) -> str | None:
    """Return Kafka's address from the settings or the environment; None if neither gives it."""
    return settings.get(SERVERS) or settings.get(SERVERS_TOO) or os.environ.get(SERVERS_VARIABLE)


def with_servers(settings: dict[str, Any], servers: str | None) -> dict[str, Any]:
    """Return the settings with these servers, or with localhost:9092 if `servers` is None."""
    return {key: value for key, value in settings.items() if key != SERVERS_TOO} | {SERVERS: servers or LAST_RESORT}


def find_own_modules(settings: dict[str, Any]) -> None:
    """Let the function that `oauth_cb` names also be found in the working directory."""
    if "oauth_cb" in settings and os.getcwd() not in sys.path:  # an installed command only searches its own directory
        sys.path.insert(0, os.getcwd())


def local_broker() -> str | None:
    """Return the address of the broker that `headway broker start` started, if it still runs."""
    from headway.broker import EXTRA  # noqa: PLC0415 - not needed if the user says where Kafka is

    try:
        from headway.broker.data_dir import default_data_dir, running_servers  # noqa: PLC0415

        return running_servers(default_data_dir()) or running_servers(default_data_dir(ephemeral=True))
    except ModuleNotFoundError as error:  # without the extra there is no broker
        if error.name not in EXTRA:
            raise
    except LocalBrokerError:  # `headway broker` reports a damaged one
        pass
    return None
