"""Distributors, which divide a capacity among levels, and bursts, which lend unused capacity to another level.

Invariants: the shares of a distributor add up to exactly the capacity. Each share is at least 1. The shares are in the
order of the levels, lowest first. A burst uses only capacity that the other levels have not used during a whole window.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from headway.declarations import called, check_function, check_whole, shown
from headway.errors import ConfigError

Distributor = Callable[[int, int], Sequence[int]]
"""A function that takes (levels, capacity) and returns the share of each level, lowest level first."""


def exponential_shares(levels: int, capacity: int) -> list[int]:
    """Give each level twice the share of the level below it. The remainder goes to the highest level.

    >>> exponential_shares(3, 50)
    [7, 14, 29]

    Raises `ConfigError` if the capacity is below 2^levels - 1, because the lowest level would get nothing.
    """
    _check_sizes(levels, capacity)
    return _by_weights([2**level for level in range(levels)], capacity)


def linear_shares(levels: int, capacity: int) -> list[int]:
    """Give the levels shares in the proportion 1 : 2 : 3 and so on. The remainder goes to the highest level.

    >>> linear_shares(3, 50)
    [8, 16, 26]

    Raises `ConfigError` if the capacity is below levels·(levels + 1)/2, because the lowest level would get nothing.
    """
    _check_sizes(levels, capacity)
    return _by_weights([level + 1 for level in range(levels)], capacity)


def _check_sizes(levels: int, capacity: int) -> None:
    check_whole("levels", levels, 1)
    check_whole("capacity", capacity, 1)


def weighted_shares(*weights: int) -> Distributor:
    """Return a distributor that gives shares in the proportion of these weights, lowest level first.

    The remainder goes to the highest level.

    >>> weighted_shares(1, 1, 8)(3, 50)
    [5, 5, 40]

    Raises `ConfigError` for a weight below 1. The distributor raises `ConfigError` if the number of levels is not the
    number of weights, or if the capacity is so small that a level would get nothing.
    """
    if not weights:
        raise ConfigError("No weights were given. Give one weight per level, such as weighted_shares(1, 1, 8).")
    for weight in weights:
        if not isinstance(weight, int):
            raise ConfigError(
                f"The weight {shown(weight)} is not a whole number. Give one weight per level, at least 1."
            )
        if weight < 1:
            raise ConfigError(
                f"The weight {weight} of {weights} is below 1, so its level would never be served. Give whole numbers "
                "of at least 1."
            )

    def distribute(levels: int, capacity: int) -> list[int]:
        if levels != len(weights):
            raise ConfigError(f"{len(weights)} weights were given for {levels} levels. Give one weight per level.")
        return _by_weights(weights, capacity)

    return distribute


def strides(shares: Sequence[int]) -> list[int]:
    """Return how far one record advances the virtual time of each level: the scaled inverse of the level's share.

    The results are whole numbers, because whole numbers add up without rounding errors. The results are exact to one
    part in a million, however large the shares are.

    >>> strides([1, 4])
    [4294967296, 1073741824]
    """
    scale = max(2**32, max(shares, default=0) << 20)
    return [scale // share for share in shares]


def distribute(distributor: Distributor, levels: int, capacity: int) -> list[int]:
    """Return the shares that a distributor gives.

    Raises `ConfigError` unless there is one share for each level, each share is at least 1, and the shares add up to
    the capacity.
    """
    check_function("distributor", distributor, ("levels", "capacity"), "Give linear_shares or weighted_shares(1, 4).")
    try:
        given = distributor(levels, capacity)
    except TypeError as error:  # the function takes two arguments, but of other types
        raise ConfigError(
            f"The distributor {called(distributor)} does not take a number of levels and a capacity: {error}. Give "
            "linear_shares or weighted_shares(1, 4), for example."
        ) from error
    shares = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(share, int) for share in shares):
        raise ConfigError(f"The distributor returned {shown(given)}; it must return a whole number for each level.")
    if len(shares) != levels or sum(shares) != capacity or min(shares) < 1:
        raise ConfigError(
            f"The distributor divided the capacity {capacity} among {levels} levels as {shares}. It must return one "
            f"share per level, each at least 1, that sum to {capacity}."
        )
    return shares


def _by_weights(weights: Sequence[int], capacity: int) -> list[int]:
    total = sum(weights)
    shares = [capacity * weight // total for weight in weights]
    if min(shares) < 1:
        raise ConfigError(
            f"A capacity of {capacity} cannot be divided among {len(weights)} levels{_what_it_takes(weights)}. Raise "
            "the capacity (max.poll.records, max_concurrency or maxRecordsPerTrigger), or use fewer levels."
        )
    shares[-1] += capacity - sum(shares)
    return shares


def _what_it_takes(weights: Sequence[int]) -> str:
    least = -(-sum(weights) // min(weights))

    # A number with thousands of digits is left out, because it would not help users, and Python refuses to print it.
    return f" by the weights {list(weights)}: it must be at least {least}" if least < 10**18 else ""


class BurstWindow:
    """Remembers how many records each of the last polls found at one level.

    A level may burst if it reached its share in at least `threshold` of the last `size` polls, because such a level
    probably has more records than its share.
    """

    def __init__(self, size: int = 6, threshold: int = 4) -> None:
        self._counts: deque[int] = deque(maxlen=size)
        self._threshold = threshold

    def add(self, count: int) -> None:
        """Add the number of records that a poll has found."""
        self._counts.append(count)

    def may_burst(self, share: int) -> bool:
        """Return whether enough of the last polls have reached the share."""
        return sum(count >= share for count in self._counts) >= self._threshold

    def unused(self, share: int) -> int:
        """Return the part of the share that was unused in every poll of the window."""
        return max(0, share - max(self._counts, default=0))


def burst_shares(shares: Sequence[int], windows: Sequence[BurstWindow]) -> list[int]:
    """Return the shares for the next poll.

    The highest level that may burst also gets the capacity that all other levels leave unused.
    """
    bursting = next((level for level in _from_the_top(shares) if windows[level].may_burst(shares[level])), None)
    if bursting is None:
        return list(shares)
    lent = sum(
        window.unused(share)
        for level, (share, window) in enumerate(zip(shares, windows, strict=True))
        if level != bursting
    )
    return [share + lent * (level == bursting) for level, share in enumerate(shares)]


def _from_the_top(levels: Sequence[object]) -> range:
    return range(len(levels) - 1, -1, -1)
