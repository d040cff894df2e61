"""Sets the names under which Spark's plans and its UI show our functions."""

from collections.abc import Callable
from typing import Any


def shown_as(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a function for `mapInArrow` so that Spark shows it under this name."""

    def run(batches: Any) -> Any:
        return function(batches)

    run.__name__ = name
    return run
