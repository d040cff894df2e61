"""The sizes of batches, and how long a record waits for one, as users declare them."""

from dataclasses import dataclass

from headway.declarations import check_number, check_whole
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Batches:
    """The sizes of batches, for a handler of `(records)` or `(records, contexts)`.

    Args:
        max_size: The most records of a batch.
        linger: The seconds that a record waits at most for its batch to fill.
        min_size: The records that begin without waiting any longer; by default only `max_size` of them do.

    Raises `ConfigError` for sizes out of bounds.

    >>> Batches(500, linger=0.2, min_size=100).least
    100
    """

    max_size: int
    linger: float = 0.0
    min_size: int | None = None

    def __post_init__(self) -> None:
        check_whole("max_size", self.max_size, 1)
        check_number("linger", self.linger, 0)
        if self.min_size is None:
            return
        check_whole("min_size", self.min_size, 1)
        if self.min_size > self.max_size:
            raise ConfigError(
                f"min_size is {self.min_size}, more than the max_size of {self.max_size}. Give at most as many."
            )
        if not self.linger:
            raise ConfigError(
                f"min_size is {self.min_size}, and without a linger no record waits for others. Give the linger too, "
                "the seconds that a record waits at most."
            )

    @property
    def least(self) -> int:
        """The number of records that need not wait for more."""
        return self.max_size if self.min_size is None else self.min_size
