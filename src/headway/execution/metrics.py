"""The counts that a parallel consumer tells of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ParallelMetrics:
    """The counts since the start, and of the records here now.

    `done` counts records, those that are dead letters or expired among them; `failed` counts attempts. `dead_letters`
    are stored, in transactions committed. `expired` records could not be started in time, and `late` ones waited for
    more than the `queue_time_warning` before they started. `running` records have a slot, `ready` ones could have one,
    and `remaining` are all that were fetched and are not done. `abandoned` ones still ran when the run ended, and come
    again. `refused` names the missing right, if one is missing: records that need it wait. `busiest_tenants` are the
    few that used the most seconds of handlers, the first of all first. `circuit_open` says whether the circuit breaker
    lets one attempt at a time through. `deleted_unread` counts offsets that were deleted before
    this consumer read them, by retention or by hand.
    """

    done: int
    failed: int
    dead_letters: int
    running: int
    ready: int
    remaining: int
    abandoned: int
    expired: int = 0
    late: int = 0
    circuit_open: bool = False
    refused: str | None = None
    busiest_tenants: Mapping[str, float] = field(default_factory=dict)
    deleted_unread: int = 0
