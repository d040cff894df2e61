"""A real Apache Kafka on this machine, for development and tests: `with LocalBroker() as broker: ...`.

A name's module is imported when the name is first used, as in `headway`, so that a command that only asks where a
broker is running loads little of this package.
"""

from typing import Any

from headway.errors import LocalBrokerError
from headway.runtime.extras import how_to_install
from headway.runtime.lazy_import import importer

_MODULES = {
    "LocalBroker": "headway.broker.local_broker",
    "Node": "headway.broker.node",
}

__all__ = list(_MODULES)

EXTRA = ("platformdirs", "psutil")
"""Modules that this package needs and that `headway[broker]` installs."""

_import = importer(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    try:
        return _import(name)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise LocalBrokerError(
            f"The local broker needs {error.name}, which is not installed: {how_to_install('broker')}."
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
