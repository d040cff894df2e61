"""Finds workers by name: `package.module:handler`, or `package.module` for all workers defined in it."""

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from types import ModuleType

import headway
from headway.errors import ConfigError
from headway.workers.worker import Worker, worker_of

_OURS = os.path.dirname(str(headway.__file__)) + os.sep
_EXAMPLE = '@worker("orders", group="billing")'


def find_workers(names: Iterable[str]) -> dict[str, Worker]:
    """Return the named workers, each as `module:handler`. Raises `ConfigError` for a name that cannot be found."""
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
        raise ConfigError(f"{module.__name__}:{handler} is not a worker. Decorate the function, as with {_EXAMPLE}.")
    return found


def _all_of(module: ModuleType) -> dict[str, Worker]:
    found = _own(module)
    if not found:
        raise ConfigError(
            f"{module.__name__} has no worker of its own. Decorate a handler, as with {_EXAMPLE}; name one that is "
            f"imported from elsewhere as module:handler. The module is {getattr(module, '__file__', 'in Python')}."
        )
    return found


def _own(module: ModuleType) -> dict[str, Worker]:
    """Return the workers that are defined in a module, without imported ones."""
    return {
        f"{module.__name__}:{name}": found
        for name, value in vars(module).items()
        if (found := worker_of(value)) and value.__module__ == module.__name__
    }


def import_module(name: str, command: str = "headway worker") -> ModuleType:
    """Import a module that a user names. Raises `ConfigError` with the place of the error if that fails."""
    here = os.getcwd()
    # An installed command searches only its own directory, but users expect the working directory too.
    if here not in sys.path:
        sys.path.insert(0, here)
    if "/" in name or name.endswith(".py"):
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{name} is a file; give the module's name, as Python imports it: `{command} {module}`.")
    try:
        return importlib.import_module(name)
    except ConfigError as error:
        raise ConfigError(f"{name} cannot be imported{_place(error)}: {error}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"There is no module {error.name}, neither in {here} nor installed. Name it as Python imports it: "
                "package.module, or package.module:name."
            ) from error
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(
            f"{name} cannot be imported{_place(error)}: {type(error).__name__}: {why}. Correct it, and start again."
        ) from error


def _place(error: BaseException) -> str:
    """Return the place of an error in the user's code, in parentheses; empty if there is none."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _is_machinery(filename: str) -> bool:
    return filename.startswith(("<", _OURS)) or filename == importlib.__file__
