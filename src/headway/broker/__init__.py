"""A real Apache Kafka on this machine, for development and tests: `with LocalBroker() as broker: ...`.

A name's module is imported when the name is first used, as in `headway`: a command that only asks where a broker runs
needs a small part of this package.
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
"""The modules that `headway[broker]` installs and this package needs."""

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
