"""The value of the option `batches`: how large batches are, and how long a record waits for its batch to fill."""

from dataclasses import dataclass

from headway.declarations import check_number, check_whole
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Batches:
    """The sizes of batches for a handler that takes `(records)` or `(records, contexts)`.

    Args:
        max_size: The maximum number of records in a batch.
        linger: The longest time that a record waits for its batch to fill, in seconds.
        min_size: Once a batch has this many records, it starts without waiting any longer. By default `max_size`.

    Raises `ConfigError` if a value is outside its allowed range.

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
                f"min_size is {self.min_size}, which is more than max_size ({self.max_size}). Set it to max_size or "
                "less."
            )
        if not self.linger:
            raise ConfigError(
                f"min_size is {self.min_size}, but linger is 0, so no record waits for others. Set linger to the "
                "longest wait in seconds, or leave out min_size."
            )

    @property
    def least(self) -> int:
        """How many records a batch must have to start before the `linger` time is over."""
        return self.max_size if self.min_size is None else self.min_size
