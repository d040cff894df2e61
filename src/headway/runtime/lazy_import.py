"""Imports the names of a package lazily: each name is imported when it is first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def importer(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` (PEP 562) for a package, which imports each name of the package on first use.

    The keys of `modules` are the package's public names, and the values are the modules that define them. No submodule
    must have the same name as a public name, because importing that submodule would set the name.

    If a module raises `AttributeError` while it is imported, `ImportError` is raised instead, with the original error
    as its cause. Otherwise Python would conclude that the package has no such name, and hide the original error.
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
