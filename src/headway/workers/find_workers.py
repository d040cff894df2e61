"""Finds workers by name: `package.module:handler`, or `package.module` for all workers that the module defines."""

import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType

from headway.errors import ConfigError
from headway.execution.tracebacks import place_in_user_code
from headway.workers.worker import Worker, worker_of

_EXAMPLE = '@worker("orders", group="billing")'


def find_workers(names: Iterable[str]) -> dict[str, Worker]:
    """Import the named workers, and return a dict from their full names (`module:handler`) to the workers.

    Raises `ConfigError` for a name that cannot be found.
    """
    found: dict[str, Worker] = {}
    for name in names:
        module_name, colon, handler = name.partition(":")
        module = import_module(module_name)
        found |= {name: _one(module, handler)} if colon else _all_of(module)
    return found


def _one(module: ModuleType, handler: str) -> Worker:
    """Return the worker of this name in a module."""
    if not hasattr(module, handler):
        names = [each.partition(":")[2] for each in _own(module)]
        near = difflib.get_close_matches(handler, names, n=1)
        there = f"Its workers are {', '.join(names)}." if names else "It has no worker."
        raise ConfigError(
            f"{module.__name__} has no {handler!r}. {f'Did you mean {module.__name__}:{near[0]}?' if near else there}"
        )
    found = worker_of(getattr(module, handler))
    if found is None:
        raise ConfigError(
            f"{module.__name__}:{handler} is not a worker. Decorate the function, for example with {_EXAMPLE}."
        )
    return found


def _all_of(module: ModuleType) -> dict[str, Worker]:
    found = _own(module)
    if not found:
        raise ConfigError(
            f"{module.__name__} ({getattr(module, '__file__', 'a builtin module')}) defines no worker. Decorate a "
            f"handler, for example with {_EXAMPLE}. To run a worker that the module imports, name it as module:handler."
        )
    return found


def _own(module: ModuleType) -> dict[str, Worker]:
    """Return the workers that a module defines. Workers that the module imports are left out."""
    return {
        f"{module.__name__}:{name}": found
        for name, value in vars(module).items()
        if (found := worker_of(value)) and value.__module__ == module.__name__
    }


def import_module(name: str, command: str = "headway worker") -> ModuleType:
    """Import a module by the name that a user gave.

    Raises `ConfigError` with the file and line of the error on failure.
    """
    here = os.getcwd()
    # Users expect Python to search the working directory, but an installed command makes Python search the command's
    # directory instead.
    if here not in sys.path:
        sys.path.insert(0, here)
    if "/" in name or name.endswith(".py"):
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{name} is a file. Give the name of the module, as Python imports it: `{command} {module}`.")
    try:
        return importlib.import_module(name)
    except ConfigError as error:
        raise ConfigError(f"{name} cannot be imported{place_in_user_code(error)}: {error}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"There is no module {error.name}, because it is neither in {here} nor installed. Give its name as "
                "Python imports it: package.module, or package.module:name."
            ) from error
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(
            f"{name} cannot be imported{place_in_user_code(error)}: {type(error).__name__}: {why}. Correct "
            "the error, and start again."
        ) from error
