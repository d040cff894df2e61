"""An importer for a package's names, each imported at its first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def importer(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of a package whose names are those of the mapping, each in its module.

    No name may be that of a submodule too: importing the submodule would set the name.

    An `AttributeError` within a module comes out as an `ImportError` with that cause: Python would take it for the
    answer that the package has no such name, and hide it.
    """

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except AttributeError as error:
            raise ImportError(f"{package}.{name} cannot be imported: {error}") from error
        setattr(sys.modules[package], name, value)
        return value

    return import_name
