"""The discovery of pipelines by name: `flights`, or a function of the user's own as `package.module:pipeline`."""

import difflib
from typing import TYPE_CHECKING

from headway.errors import ConfigError
from headway.workers.find_workers import import_module

if TYPE_CHECKING:  # a name that is wrong is told before PySpark is imported
    from headway.pipelines.pipeline_run import Pipeline

FLIGHTS = "flights"


def find_pipeline(name: str) -> "Pipeline":
    """Return the pipeline of this name; raise `ConfigError` if there is none."""
    if name == FLIGHTS:
        name = "headway.pipelines.flights:pipeline"
    module_name, colon, function = name.partition(":")
    if not colon:
        raise ConfigError(f"There is no pipeline {name}. Use {FLIGHTS}, or name yours as package.module:pipeline.")
    module = import_module(module_name, "headway pipeline run")
    found = getattr(module, function, None)
    if found is None:
        own = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        near = difflib.get_close_matches(function, own, n=1)
        hint = f"Did you mean {module_name}:{near[0]}?" if near else "Name a function of it."
        raise ConfigError(f"{module_name} has no {function!r}. {hint}")
    if not callable(found):
        raise ConfigError(f"{name} is no function, but {type(found).__name__}. A pipeline is a function of a run.")
    return found  # type: ignore[no-any-return]
