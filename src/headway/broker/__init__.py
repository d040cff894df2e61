"""A real Apache Kafka on this machine, for development and tests: `with LocalBroker() as broker: ...`.

As in `headway`, a public name is imported only when it is first used. So a command that only needs the address of a
running broker loads little of this package.
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
"""The modules of the extra `headway[broker]`, which this package needs."""

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
