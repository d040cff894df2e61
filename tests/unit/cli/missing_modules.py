"""An installation without some modules, for one test."""

import sys

import pytest


def remove(monkeypatch: pytest.MonkeyPatch, missing: str, *importers: str) -> None:
    """Let a module be missing, and forget the modules that begin with these names, which would import it.

    Both are undone with the test, also in the packages: a module stays the attribute that it was of its package.
    """
    monkeypatch.setitem(sys.modules, missing, None)
    forgotten = [name for name in sys.modules if name.startswith(importers)]
    for name in forgotten:
        package, _, module = name.rpartition(".")
        monkeypatch.delattr(sys.modules[package], module, raising=False)
    for name in forgotten:
        monkeypatch.delitem(sys.modules, name)
