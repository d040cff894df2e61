"""What the experiments with levels have in common: the load, the consumers, and the ways that are compared."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from headway.core.levels.policies import PolicyName

ConsumerName = Literal["parallel", "priority"]
"""`ParallelConsumer`, whose slots are filled one by one, or `PriorityConsumer`, each poll of which is waited for."""

LEVELS = 3
WEIGHTS = [2**level for level in range(LEVELS)]
"""The shares of the levels, lowest first: each level has twice the share of the level below it."""


class RecordWave(NamedTuple):
    """Records that come at one time: when, in seconds since the start, and how many at each level."""

    at: float
    records: int


class Way(NamedTuple):
    """A way to consume the load. Without a policy, the records of all levels are in one topic."""

    name: str
    policy: PolicyName | None


WAYS = (Way("no priority", None), Way("capacity_burst", "capacity_burst"), Way("fair", "fair"))


@dataclass(frozen=True, slots=True)
class LevelSetup:
    """The set-up of the Java priority client's experiments, whose numbers are the defaults.

    Args:
        waves: The records that come.
        seconds: How long a handler takes for a record.
        members: The number of consumers in the group.
        slots: How many records one consumer can handle at a time.
        poll_records: The most records that a poll returns if a consumer waits for all records of a poll.
    """

    waves: tuple[RecordWave, ...]
    seconds: float = 1.0
    members: int = 5
    slots: int = 55
    poll_records: int = 50

    @property
    def records(self) -> int:
        """The number of records of each level."""
        return sum(wave.records for wave in self.waves)

    @property
    def total(self) -> int:
        """The number of records of all levels."""
        return LEVELS * self.records

    @property
    def all_slots(self) -> int:
        """The number of slots of all consumers."""
        return self.members * self.slots

    @property
    def capacity(self) -> float:
        """How many records all slots can handle in a second."""
        return self.all_slots / self.seconds

    def limit(self, consumer: ConsumerName) -> int:
        """Return how many records all consumers together may handle at a time."""
        return self.members * (self.slots if consumer == "parallel" else self.poll_records)


def all_at_once(records: int) -> LevelSetup:
    """Return the set-up of the first two experiments: all records are there at the start."""
    return LevelSetup((RecordWave(0.0, records),))


# When the waves come in the picture of the Java client's third experiment, as fractions of the time that its consumers
# needed for one wave: the second comes before the first is worked off, the third when the second is.
_WAVES_AT = (0.0, 0.85, 2.0)


def in_waves(records: int) -> LevelSetup:
    """Return the set-up of the third experiment: the same number of records in three waves."""
    part = records // len(_WAVES_AT)
    counts = [records - part * (len(_WAVES_AT) - 1), *[part] * (len(_WAVES_AT) - 1)]
    time_of_a_wave = LEVELS * part / all_at_once(records).capacity
    waves = (RecordWave(at * time_of_a_wave, count) for at, count in zip(_WAVES_AT, counts, strict=True))
    return LevelSetup(tuple(waves))
