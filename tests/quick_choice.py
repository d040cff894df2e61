"""Which variants of a test `make test` runs; the others are marked `slow`, and run in `make test-all`.

A test with the marker `quick("kip848")` runs in the variants of these ids. Any other test that has both clusters runs
on librdkafka's mock, and one that takes time and has several parameters runs so often that each value of each parameter
is there once, rather than in all combinations.
"""

from collections import defaultdict
from collections.abc import Iterable

import pytest

_IN_ALL_COMBINATIONS = ("tests/unit/", "tests/property/", "src/")  # they take milliseconds


def leave_the_rest_to_test_all(items: Iterable[pytest.Item]) -> None:
    """Mark the variants as slow that `make test` leaves out."""
    variants = defaultdict[str, list[pytest.Function]](list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not item.get_closest_marker("slow"):
            variants[item.nodeid.partition("[")[0]].append(item)
    for name, each in variants.items():
        if chosen := each[0].get_closest_marker("quick"):
            # Where the ids have changed since, all run: that costs time, and no test is lost.
            kept = [item for item in each if item.callspec.id in chosen.args] or each
        elif not name.startswith(_IN_ALL_COMBINATIONS):
            kept = _each_value_once([item for item in each if not _is_on_both(item)] or each)
        else:
            continue
        for item in each:
            if item not in kept:
                item.add_marker("slow")


def _is_on_both(item: pytest.Function) -> bool:
    """Return whether a variant runs on Kafka and has a twin on the mock, which costs a tenth and shows the same."""
    return item.callspec.params.get("cluster") == "kafka"


def _each_value_once(variants: list[pytest.Function]) -> list[pytest.Function]:
    """Return variants that have each value of each parameter, as (a, 1), (b, 2), (a, 3) of a and b with 1, 2 and 3."""
    values = [_values(item) for item in variants]
    kinds = [list(dict.fromkeys(column)) for column in zip(*values, strict=True)]
    most = max(len(kind) for kind in kinds)
    diagonal = {tuple(kind[turn % len(kind)] for kind in kinds) for turn in range(most)}
    return [item for item, each in zip(variants, values, strict=True) if each in diagonal] or variants[:1]


def _values(item: pytest.Function) -> tuple[str, ...]:
    """Return what a variant has of each `parametrize` and of each fixture with parameters."""
    left = dict(item.callspec.params)
    found = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].replace(",", " ").split() if isinstance(mark.args[0], str) else mark.args[0]
        found.append(repr([left.pop(name) for name in names]))
    return (*found, *map(repr, left.values()))
