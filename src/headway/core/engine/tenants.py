"""The tenants of one level, and the handler time that each has used: start-time fair queueing in seconds.

Each tenant has a *virtual time*: the seconds for which its works held slots, divided by its weight. The tenant with the
lowest goes first. When a work starts, its tenant is charged the average duration of its works. The difference is
charged when the work ends.

Invariants: a virtual time never goes back. A tenant that had no ready works resumes at the level's time or later, so it
cannot save up time while idle. The level's time advances with each start, so every waiting tenant gets its turn,
whichever tenants arrive. A tenant without ready or running works is forgotten once the level's time has passed its own,
or once no tenant has any.
"""

from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace, nlargest
from itertools import count
from operator import itemgetter

_LEAST = 1e-6  # seconds; the least charge for a start, so that tenants take turns while no duration is known
_NEWEST = 0.1  # the weight of the last duration in an average
# How fast the level's time advances, as a fraction of the time of the waiting tenants. It is below 1 so that a newcomer
# is ahead of tenants with a backlog.
_PACE = 0.5
_MOST_COUNTED = 1000  # tenants


class Account:
    """One tenant of a level, from its first work until it is forgotten."""

    __slots__ = ("average", "is_listed", "name", "owed", "ready", "running", "time", "weight")

    def __init__(self, name: str, weight: float, time: float, average: float) -> None:
        self.name = name
        self.weight = weight
        self.time = time  # virtual
        self.average = average  # seconds that a work takes
        self.owed = 0.0  # at most 0: minus the seconds of overcharge, which reduce its next charges
        self.ready = 0
        self.running = 0
        self.is_listed = False  # whether it is in the heap of tenants to forget


class Usage:
    """The seconds that tenants have used at all levels.

    Invariant: if more than `most` tenants are counted, only the `most // 2` that used the most are kept.
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
        """Return the tenants that used the most seconds, in descending order."""
        return dict(nlargest(number, self._seconds.items(), key=itemgetter(1)))


class Tenants:
    """The accounts of one level's tenants.

    Args:
        weights: The weights of tenants, by name. Other tenants have weight 1.
        usage: The seconds that tenants have used, which all levels count together.
    """

    __slots__ = ("_accounts", "_average", "_busy", "_idle", "_orders", "_time", "_usage", "_waiting", "_weights")

    def __init__(self, weights: Mapping[str, float], usage: Usage) -> None:
        self._weights = weights
        self._usage = usage
        self._accounts: dict[str, Account] = {}
        self._time = 0.0  # the level's, virtual
        self._average = 0.0  # seconds that a work takes, of any tenant
        self._waiting = 0.0  # the sum of the weights of the tenants with ready works
        self._busy = 0  # the number of tenants with ready or running works
        self._orders = count()
        # A heap by the virtual time at which a tenant can be forgotten.
        self._idle: list[tuple[float, int, Account]] = []

    @property
    def remembered(self) -> Mapping[str, Account]:
        """The tenants that are not forgotten, by name."""
        return self._accounts

    def join(self, name: str, works: int) -> Account:
        """Record that some of a tenant's records became ready, and return its account."""
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
        """Record that ready works of a tenant were removed."""
        account.ready -= works
        self._note_unready(account)

    def start(self, account: Account, in_turn: bool) -> float:
        """Record that a ready work starts, in its tenant's turn or out of turn, and return the charge for it."""
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
        """Record that a work has ended, its duration, and the charge when it started."""
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
        """Forget the tenants without works whose virtual time is behind the level's."""
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
