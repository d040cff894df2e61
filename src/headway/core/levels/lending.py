"""How many slots each level uses beyond its share, and how many of its share others use."""

from collections.abc import Sequence
from typing import NamedTuple, Self


class Lending(NamedTuple):
    """The shares of levels as fractions, and the slots that they have lent and borrowed, lowest level first.

    >>> Lending.of([1, 3], [5, 3], 8)
    Lending(ratios=[0.25, 0.75], lent=[0.0, 3.0], borrowed=[3.0, 0.0])
    """

    ratios: list[float]
    lent: list[float]
    borrowed: list[float]

    @classmethod
    def of(cls, shares: Sequence[int], taken: Sequence[int], slots: int) -> Self:
        """Compare the slots that levels have taken with their shares of all slots.

        A borrowed slot counts as lent by the levels that use less than their share, in proportion to what they leave.
        """
        total = sum(shares)
        ratios = [share / total for share in shares]
        over = [used - ratio * slots for used, ratio in zip(taken, ratios, strict=True)]
        borrowed = [max(0.0, each) for each in over]
        unused = [max(0.0, -each) for each in over]
        part = min(1.0, sum(borrowed) / sum(unused)) if sum(unused) else 0.0
        return cls(ratios, [each * part for each in unused], borrowed)
