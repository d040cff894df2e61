"""The metrics of a parallel consumer."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ParallelMetrics:
    """Totals since the consumer started, and the current numbers of its records.

    Attributes:
        done: Records that are done, including dead letters, and records that expired or were skipped or dropped.
        failed: Attempts that failed.
        dead_letters: Dead letters that were stored and, with transactions, committed.
        running: Records that occupy a slot.
        ready: Records that could start if a slot were free.
        remaining: Records that were fetched and are not done.
        abandoned: Records that were still running when the run ended. The next run handles them again.
        expired: Records that expired before they could be started.
        late: Records that waited longer than the `queue_time_warning` before they started.
        circuit_open: True while the circuit breaker lets only one attempt run at a time.
        refused: If records are waiting because a permission is missing, a sentence that names the permission, otherwise
            None.
        busiest_tenants: The few tenants that used the most handler time, each with its handler time in seconds, in
            descending order.
        deleted_unread: Offsets that were deleted before this consumer read them, by retention or by a user.
        held: Records that were fetched and that a rule keeps from starting now.
        held_failures: Records that have failed for good and are held in their place, because of `Retries(then="hold")`.
        dropped: Records that a rule or an operator has dropped.
        moved: Records that were moved to other topics, without a call of the handler.
        skipped: Records that were skipped for a newer record of their key, because of `latest_only`.
        held_by_rule: For each rule in force, by its id, how many records it keeps from starting now.
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
    held: int = 0
    dropped: int = 0
    moved: int = 0
    skipped: int = 0
    held_by_rule: Mapping[str, int] = field(default_factory=dict)
    held_failures: int = 0
