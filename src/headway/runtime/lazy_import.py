"""Imports a package's names lazily, each when it is first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def importer(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) for a package whose names are the keys, each defined in the given module.

    No name may also be the name of a submodule, because importing the submodule would set the name.

    An `AttributeError` inside a module is turned into an `ImportError` with that cause. Otherwise Python would take it
    to mean that the package has no such name, and hide it.
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
