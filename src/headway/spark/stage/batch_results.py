"""The results of a handler of batches, one for each row."""

from collections.abc import Sequence
from typing import Any


def results_of_batch(result: Any, count: int) -> Sequence[Any]:
    """Return the result of each row of a batch: a list has one for each, and any other result is that of all rows.

    Raises `ValueError` for a list of another length than `count`.
    """
    if type(result) is not list:
        return [result] * count
    if len(result) != count:
        raise ValueError(
            f"The handler returned {len(result)} results for a batch of {count} rows. Return one for each."
        )
    return result
