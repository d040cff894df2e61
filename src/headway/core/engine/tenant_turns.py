"""The ready attempts of a level, whose tenants take turns. The topics and partitions of one tenant also take turns.

Invariants: the next attempt is for the tenant that has used the least handler time in proportion to its weight.
`PartitionTurns` and `TenantTurns` have the same methods.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, groupby
from operator import attrgetter
from typing import Generic, TypeVar

from headway.core.engine.assignment import Assignment
from headway.core.engine.attempt import Attempt
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.partition_states import PartitionState
from headway.core.engine.tenants import Account, Tenants
from headway.core.engine.turns import PartitionTurns

_MOST_OUTDATED = 100

R = TypeVar("R")

_tenant_of = attrgetter("tenant")


class _TenantEntry(Generic[R]):
    """The ready attempts of one tenant."""

    __slots__ = ("account", "turns")

    def __init__(self, account: Account, turns: PartitionTurns[R]) -> None:
        self.account = account
        self.turns = turns


class _ByTime(Generic[R]):
    """Tenants in the order of their virtual times.

    Virtual times only grow, so the time in an entry can be too early. Such an entry is moved when it becomes the first.

    Invariant: a tenant with ready attempts, as counted by `ready_of`, has one entry. The time of the entry is not later
    than the virtual time of the tenant.
    """

    __slots__ = ("_entries", "_left", "_members", "_orders", "_ready_of")

    def __init__(
        self,
        ready_of: Callable[[PartitionTurns[R]], int],
        left: Callable[[_TenantEntry[R]], object] = lambda tenant: None,
    ) -> None:
        self._ready_of = ready_of
        self._left = left  # called with each tenant that no longer has ready attempts
        self._entries: list[tuple[float, int, _TenantEntry[R]]] = []  # a heap, ordered by virtual time
        self._members: set[_TenantEntry[R]] = set()
        self._orders = count()  # tenants with equal times take turns

    def join(self, tenant: _TenantEntry[R]) -> None:
        """Add a tenant if it is not a member."""
        if tenant not in self._members:
            self._members.add(tenant)
            heappush(self._entries, (tenant.account.time, next(self._orders), tenant))

    def first(self) -> _TenantEntry[R] | None:
        """Return the tenant whose turn it is, or None if no tenant has ready attempts."""
        entries = self._entries
        while entries:
            time, _, tenant = entries[0]
            if not self._ready_of(tenant.turns):
                heappop(entries)
                self._members.remove(tenant)
                self._left(tenant)
            elif time < tenant.account.time:
                heapreplace(entries, (tenant.account.time, next(self._orders), tenant))
            else:
                return tenant
        return None


class TenantTurns(Generic[R]):
    """The ready attempts of one level, whose tenants take turns. `make_turns` creates the queue for one tenant."""

    __slots__ = ("_accounts", "_by_age", "_by_time", "_make_turns", "_of_assignment", "_tenants", "ready")

    def __init__(self, accounts: Tenants, make_turns: Callable[[], PartitionTurns[R]] = PartitionTurns) -> None:
        self._accounts = accounts
        self._make_turns = make_turns
        self._tenants: dict[str, _TenantEntry[R]] = {}  # the members of `_by_time`; some may have no ready attempts
        self._by_time: _ByTime[R] = _ByTime(_ready, lambda tenant: self._tenants.pop(tenant.account.name))
        # the tenants of an assignment, which are collected when `only_of` first names the assignment
        self._of_assignment: dict[Assignment[R], _ByTime[R]] = {}
        self._by_age: list[tuple[int, int, Attempt[R]]] | None = None  # a heap; created by the first call of `oldest`
        self.ready = 0

    def arrive(self, attempts: list[Attempt[R]]) -> None:
        """Add records of one partition that are ready on arrival, behind all earlier records of the partition."""
        for name, group in groupby(attempts, _tenant_of):
            of_one = list(group)
            self._join(name, of_one[0].assignment, len(of_one)).turns.arrive(of_one)
            self._note_age(of_one)

    def release(self, attempt: Attempt[R]) -> None:
        """Add a lane head that is ready to run."""
        self._join(attempt.tenant, attempt.assignment, 1).turns.release(attempt)
        self._note_age([attempt])

    def _join(self, name: str, assignment: Assignment[R], attempts: int) -> _TenantEntry[R]:
        account = self._accounts.join(name, attempts)
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _TenantEntry(account, self._make_turns())
        tenant.account = account  # a new account if the old one was forgotten
        self.ready += attempts
        self._by_time.join(tenant)
        if self._of_assignment and assignment in self._of_assignment:
            self._of_assignment[assignment].join(tenant)
        return tenant

    def first_time(self) -> float:
        """Return the virtual time of the tenant whose turn it is. At least one tenant must have ready attempts."""
        tenant = self._by_time.first()
        assert tenant is not None  # noqa: S101 - the callers make sure of it
        return tenant.account.time

    def first(self, only_of: Assignment[R] | None = None) -> Attempt[R] | None:
        """Return the attempt that `take` would return, or None if no attempt is ready."""
        tenant = self._first(only_of)
        return tenant.turns.first(only_of) if tenant else None

    def take(self, only_of: Assignment[R] | None = None) -> Attempt[R]:
        """Remove and return the first attempt of the tenant whose turn it is.

        With `only_of`, the call considers only attempts of this assignment.
        """
        tenant = self._first(only_of)
        assert tenant is not None  # noqa: S101 - the callers make sure of it
        attempt = tenant.turns.take(only_of)
        self.ready -= 1
        attempt.charged = self._accounts.start(tenant.account, in_turn=only_of is None)
        return attempt

    def take_many(self, limit: int) -> list[Attempt[R]]:
        """Remove and return up to `limit` attempts. The result is the same as that of repeated calls of `take`."""
        return [self.take() for _ in range(min(limit, self.ready))]

    def _first(self, only_of: Assignment[R] | None) -> _TenantEntry[R] | None:
        if only_of is None:
            return self._by_time.first()
        by_time = self._of_assignment.get(only_of)
        if by_time is None:
            by_time = self._of_assignment[only_of] = _ByTime(lambda turns: turns.ready_of(only_of))
            for tenant in self._tenants.values():
                by_time.join(tenant)
        return by_time.first()

    def oldest(self) -> Attempt[R] | None:
        """Return the ready attempt whose record arrived first, or None if no attempt is ready."""
        by_age = self._by_age
        if by_age is None or len(by_age) > 2 * self.ready + _MOST_OUTDATED:
            turns = [tenant.turns for tenant in self._tenants.values()]
            by_age = self._by_age = [_age(attempt) for each in turns for attempt in each]
            heapify(by_age)
        while by_age and not _is_ready(by_age[0][2]):
            heappop(by_age)
        return by_age[0][2] if by_age else None

    def _note_age(self, attempts: list[Attempt[R]]) -> None:
        if self._by_age is not None:
            for attempt in attempts:
                heappush(self._by_age, _age(attempt))

    def ready_of(self, assignment: Assignment[R]) -> int:
        """Return how many attempts of an assignment are ready."""
        return sum(tenant.turns.ready_of(assignment) for tenant in self._tenants.values())

    def drop(self, assignment: Assignment[R]) -> list[Attempt[R]]:
        """Remove and return the ready attempts of an assignment."""
        self._of_assignment.pop(assignment, None)
        attempts: list[Attempt[R]] = []
        for tenant in self._tenants.values():
            if dropped := tenant.turns.ready_of(assignment):
                attempts += tenant.turns.drop(assignment)
                self.ready -= dropped
                self._accounts.leave(tenant.account, dropped)
        return attempts


def _ready(turns: PartitionTurns[R]) -> int:
    return turns.ready


def _age(attempt: Attempt[R]) -> tuple[int, int, Attempt[R]]:
    # The id makes the entry unique, because an earlier attempt at the same record can still be in the heap with the
    # same `order`.
    return attempt.order, id(attempt), attempt


def _is_ready(attempt: Attempt[R]) -> bool:
    is_read = attempt.assignment.state not in (PartitionState.LEAVING, PartitionState.GONE)
    return attempt.state is AttemptState.READY and is_read
