"""Distributors, which split a capacity over levels, and bursts, which lend what a level leaves unused.

Invariants: the shares of a distributor sum to the capacity exactly, each is at least 1, and they are indexed by level,
0 lowest. A burst takes only what the other levels have not used over a whole window.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from headway.declarations import called, check_function, check_whole, shown
from headway.errors import ConfigError

Distributor = Callable[[int, int], Sequence[int]]
"""(levels, capacity) -> the share of each level, 0 lowest."""


def exponential_shares(levels: int, capacity: int) -> list[int]:
    """Return shares of which each is twice the one below; the remainder goes to the highest level.

    >>> exponential_shares(3, 50)
    [7, 14, 29]

    Raises `ConfigError` when the capacity is below 2^levels - 1, where the lowest level would get nothing.
    """
    _check_sizes(levels, capacity)
    return _by_weights([2**level for level in range(levels)], capacity)


def linear_shares(levels: int, capacity: int) -> list[int]:
    """Return shares of which each is one part more than the one below; the remainder goes to the highest level.

    >>> linear_shares(3, 50)
    [8, 16, 26]

    Raises `ConfigError` when the capacity is below levels·(levels + 1)/2, where the lowest level would get nothing.
    """
    _check_sizes(levels, capacity)
    return _by_weights([level + 1 for level in range(levels)], capacity)


def _check_sizes(levels: int, capacity: int) -> None:
    check_whole("levels", levels, 1)
    check_whole("capacity", capacity, 1)


def weighted_shares(*weights: int) -> Distributor:
    """Return a distributor with these weights, lowest level first; the remainder goes to the highest level.

    >>> weighted_shares(1, 1, 8)(3, 50)
    [5, 5, 40]

    Raises `ConfigError` for a weight below 1. The distributor raises it for another number of levels, and for a
    capacity at which a level would get nothing.
    """
    if not weights:
        raise ConfigError("No weights were given. Give one weight per level, as weighted_shares(1, 1, 8).")
    for weight in weights:
        if not isinstance(weight, int):
            raise ConfigError(f"The weight {shown(weight)} is no whole number. Give one weight per level, at least 1.")
        if weight < 1:
            raise ConfigError(f"The weight {weight} of {weights} is below 1: that level would never be served.")

    def distribute(levels: int, capacity: int) -> list[int]:
        if levels != len(weights):
            raise ConfigError(f"{len(weights)} weights were given for {levels} levels. Give one weight per level.")
        return _by_weights(weights, capacity)

    return distribute


def strides(shares: Sequence[int]) -> list[int]:
    """Return how far a level's virtual time moves with each record: the inverse of its share, as a whole number.

    Whole numbers add up without error. They are exact to one part in a million, however large the shares are.

    >>> strides([1, 4])
    [4294967296, 1073741824]
    """
    scale = max(2**32, max(shares, default=0) << 20)
    return [scale // share for share in shares]


def distribute(distributor: Distributor, levels: int, capacity: int) -> list[int]:
    """Return the shares that a distributor gives, checked: one per level, each at least 1, summing to the capacity.

    Raises `ConfigError` when they are not.
    """
    check_function("distributor", distributor, ("levels", "capacity"), "Give linear_shares or weighted_shares(1, 4).")
    try:
        given = distributor(levels, capacity)
    except TypeError as error:  # it takes two arguments, of another kind
        raise ConfigError(
            f"The distributor {called(distributor)} does not take a number of levels: {error}."
        ) from error
    shares = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(share, int) for share in shares):
        raise ConfigError(f"The distributor gave {shown(given)}; it must give a whole number for each level.")
    if len(shares) != levels or sum(shares) != capacity or min(shares) < 1:
        raise ConfigError(
            f"The distributor split the capacity {capacity} over {levels} levels into {shares}. It must give one "
            f"share per level, each at least 1, that sum to {capacity}."
        )
    return shares


def _by_weights(weights: Sequence[int], capacity: int) -> list[int]:
    total = sum(weights)
    shares = [capacity * weight // total for weight in weights]
    if min(shares) < 1:
        raise ConfigError(
            f"A capacity of {capacity} cannot be split over {len(weights)} levels{_what_it_takes(weights)}. Raise the "
            "capacity (max.poll.records, max_concurrency or maxRecordsPerTrigger), or use fewer levels."
        )
    shares[-1] += capacity - sum(shares)
    return shares


def _what_it_takes(weights: Sequence[int]) -> str:
    least = -(-sum(weights) // min(weights))
    # A number of thousands of digits helps nobody, and Python refuses to print it.
    return f" by the weights {list(weights)}: it must be at least {least}" if least < 10**18 else ""


class BurstWindow:
    """The number of records that one level had at each of its last polls.

    A level that reached its share at `threshold` of the last `size` polls has more records than it is served: it may
    burst.
    """

    def __init__(self, size: int = 6, threshold: int = 4) -> None:
        self._counts: deque[int] = deque(maxlen=size)
        self._threshold = threshold

    def add(self, count: int) -> None:
        """Note how many records one poll found."""
        self._counts.append(count)

    def may_burst(self, share: int) -> bool:
        """Return whether enough of the last polls reached the share."""
        return sum(count >= share for count in self._counts) >= self._threshold

    def unused(self, share: int) -> int:
        """Return how much of the share none of the last polls used."""
        return max(0, share - max(self._counts, default=0))


def burst_shares(shares: Sequence[int], windows: Sequence[BurstWindow]) -> list[int]:
    """Return the shares of the next poll: the highest level that may burst also gets what all others leave unused."""
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
