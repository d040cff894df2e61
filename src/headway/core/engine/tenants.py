"""Tenants of one level, and the handler time that each has used: start-time fair queueing, in seconds, not bytes.

Each tenant has a *virtual time*: the seconds in which its works held slots, divided by its weight. The tenant with the
least goes first. When a work starts it is charged what its tenant's works take on average, and the difference when it
ends.

Invariants: a virtual time never goes back. A tenant that had nothing ready starts at the level's time at the earliest,
so nobody saves up. The level's time goes on with each start, so a tenant that waits is reached whoever else comes. A
tenant is forgotten when nothing of it is ready or runs, and the level's time has passed its own; or when nothing of any
tenant is ready or runs.
"""

from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace, nlargest
from itertools import count
from operator import itemgetter

_LEAST = 1e-6  # seconds charged for a start: where no duration is known, tenants take turns by starts
_NEWEST = 0.1  # the part of the last duration in an average
_PACE = 0.5  # of the level's time, beside what each waiting tenant gets: below 1, so that who comes is ahead of a flood
_MOST_COUNTED = 1000


class Account:
    """One tenant of a level, from its first work until it is forgotten."""

    __slots__ = ("average", "is_listed", "name", "owed", "ready", "running", "time", "weight")

    def __init__(self, name: str, weight: float, time: float, average: float) -> None:
        self.name = name
        self.weight = weight
        self.time = time  # virtual
        self.average = average  # seconds that a work takes
        self.owed = 0.0  # minus the seconds that it was charged too much; they are taken off its next charges
        self.ready = 0
        self.running = 0
        self.is_listed = False  # among those that may be forgotten


class Usage:
    """The seconds that tenants have used, over all levels.

    Invariant: when more than `most` tenants are counted, the half that used the least is forgotten.
    """

    def __init__(self, most: int = _MOST_COUNTED) -> None:
        self._most = most
        self._seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """Count seconds that a tenant has used."""
        known = self._seconds
        known[name] = known.get(name, 0.0) + seconds
        if len(known) > self._most:
            self._seconds = self.busiest(self._most // 2)

    def busiest(self, number: int) -> dict[str, float]:
        """Return the tenants that used the most, the first of all first, with their seconds."""
        return dict(nlargest(number, self._seconds.items(), key=itemgetter(1)))


class Tenants:
    """The accounts of one level's tenants.

    Args:
        weights: The weights of tenants, by name; of all others 1.
        usage: What the levels count together.
    """

    __slots__ = ("_accounts", "_average", "_busy", "_idle", "_orders", "_time", "_usage", "_waiting", "_weights")

    def __init__(self, weights: Mapping[str, float], usage: Usage) -> None:
        self._weights = weights
        self._usage = usage
        self._accounts: dict[str, Account] = {}
        self._time = 0.0  # the level's, virtual
        self._average = 0.0  # seconds that a work takes, of any tenant
        self._waiting = 0.0  # the weights of the tenants that have something ready
        self._busy = 0  # tenants of which something is ready or runs
        self._orders = count()
        self._idle: list[tuple[float, int, Account]] = []  # a heap: who may be forgotten, and at what virtual time

    @property
    def remembered(self) -> Mapping[str, Account]:
        """The tenants that are not forgotten, by name."""
        return self._accounts

    def join(self, name: str, works: int) -> Account:
        """Note that works of a tenant became ready, and return its account."""
        account = self._accounts.get(name)
        if account is None:
            account = Account(name, self._weights.get(name, 1.0), self._time, self._average)
            self._accounts[name] = account
        if not account.ready:
            self._busy += not account.running
            self._waiting += account.weight
            account.time = max(account.time, self._time)
        account.ready += works
        return account

    def leave(self, account: Account, works: int) -> None:
        """Note that ready works are gone."""
        account.ready -= works
        self._note_unready(account)

    def start(self, account: Account, in_turn: bool) -> float:
        """Note that a ready work runs from now on, which may be another's turn; return its charge."""
        charged = account.average or _LEAST
        paid = charged
        if account.owed:
            paid = max(charged + account.owed, _LEAST)
            account.owed = min(0.0, account.owed + charged - paid)  # rounding leaves a trace above zero
        if in_turn and account.time > self._time:
            self._time = account.time
        self._time += _PACE * paid / max(self._waiting, account.weight)
        account.time += paid / account.weight
        account.running += 1
        account.ready -= 1
        self._note_unready(account)
        if self._idle and self._idle[0][0] <= self._time:
            self._forget()
        return charged

    def end(self, name: str, seconds: float, charged: float) -> None:
        """Note that a work has ended, what it took, and what it was charged when it started."""
        account = self._accounts[name]
        seconds = max(seconds, _LEAST)
        account.owed += seconds - charged
        if account.owed > 0:
            account.time += account.owed / account.weight
            account.owed = 0.0
        account.average = _next_average(account.average, seconds)
        self._average = _next_average(self._average, seconds)
        self._usage.add(name, seconds)
        account.running -= 1
        if not account.ready and not account.running:
            self._note_idle(account)

    def _note_unready(self, account: Account) -> None:
        if not account.ready:
            self._waiting -= account.weight
            if not account.running:
                self._note_idle(account)

    def _note_idle(self, account: Account) -> None:
        self._busy -= 1
        if not self._busy:
            self._time = max(self._time, *(each.time for each in self._accounts.values()))
            self._accounts.clear()
            self._idle.clear()
            self._waiting = 0.0  # exactly
        elif not account.is_listed:
            account.is_listed = True
            heappush(self._idle, (account.time, next(self._orders), account))

    def _forget(self) -> None:
        """Forget the tenants without works whose time the level's has passed."""
        idle = self._idle
        while idle and idle[0][0] <= self._time:
            account = idle[0][2]
            if not account.ready and not account.running and account.time > self._time:  # it had works meanwhile
                heapreplace(idle, (account.time, next(self._orders), account))
                continue
            heappop(idle)
            account.is_listed = False
            if not account.ready and not account.running:
                del self._accounts[account.name]


def _next_average(average: float, seconds: float) -> float:
    return average + _NEWEST * (seconds - average) if average else seconds
