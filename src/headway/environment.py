"""The settings that the environment gives a client: where Kafka is, and how to log in."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from headway.errors import LocalBrokerError
from headway.settings.settings_file import read_properties

SERVERS: Final = "bootstrap.servers"
SERVERS_TOO: Final = "metadata.broker.list"
"""librdkafka's other name for it."""
SERVERS_VARIABLE: Final = "HEADWAY_BOOTSTRAP_SERVERS"
FILE_VARIABLE: Final = "HEADWAY_CONFIG_FILE"
LAST_RESORT: Final = "localhost:9092"


def settings_from_environment(config_file: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the settings that the `headway` command would use without options, for clients of a program.

    The file is the one that `HEADWAY_CONFIG_FILE` names, unless `config_file` is given. Kafka is where the file says,
    else where `HEADWAY_BOOTSTRAP_SERVERS` says, else where the broker of `headway broker start` runs, else at
    localhost:9092. Nothing is asked or connected to.

    Raises `ConfigError` for a file that cannot be read, or a line of it that is not key=value.
    """
    file = config_file or os.environ.get(FILE_VARIABLE)
    settings: dict[str, Any] = dict(read_properties(Path(file))) if file else {}
    find_own_modules(settings)
    return with_servers(settings, said_servers(settings) or local_broker())


def said_servers(settings: dict[str, Any]) -> str | None:
    """Return where Kafka is as settings or the environment say; None if neither does."""
    return settings.get(SERVERS) or settings.get(SERVERS_TOO) or os.environ.get(SERVERS_VARIABLE)


def with_servers(settings: dict[str, Any], servers: str | None) -> dict[str, Any]:
    """Return settings with these servers, by default those of a Kafka on this machine."""
    return {key: value for key, value in settings.items() if key != SERVERS_TOO} | {SERVERS: servers or LAST_RESORT}


def find_own_modules(settings: dict[str, Any]) -> None:
    """Have the function that `oauth_cb` names be looked for in the working directory, too."""
    if "oauth_cb" in settings and os.getcwd() not in sys.path:  # an installed command searches beside itself
        sys.path.insert(0, os.getcwd())


def local_broker() -> str | None:
    """Return the address of the broker that `headway broker start` has started, if it runs."""
    from headway.broker import EXTRA  # noqa: PLC0415 - not needed if the user says where Kafka is

    try:
        from headway.broker.data_dir import default_data_dir, running_servers  # noqa: PLC0415

        return running_servers(default_data_dir()) or running_servers(default_data_dir(ephemeral=True))
    except ModuleNotFoundError as error:  # without the extra there is no broker
        if error.name not in EXTRA:
            raise
    except LocalBrokerError:  # a damaged one is a matter for `headway broker`
        pass
    return None
