"""The names by which Spark's plans, and the pages of its UI, show functions of ours."""

from collections.abc import Callable
from typing import Any


def shown_as(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the same function of batches, with the name that Spark shows where it runs it."""

    def run(batches: Any) -> Any:
        return function(batches)

    run.__name__ = name
    return run
