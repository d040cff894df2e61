"""The tenants of one level, and the handler time that each has used: start-time fair queueing, measured in seconds.

Each tenant has a *virtual time*: the seconds for which its attempts held slots, divided by its weight. The tenant with
the lowest virtual time goes first. When an attempt starts, its tenant is charged the average duration of the tenant's
attempts. The difference from the real duration is charged when the attempt ends. The level has a virtual time, too.

Invariants: a virtual time never goes back. A tenant that had no ready attempts resumes at the level's virtual time or
later, so it cannot save up time while it is idle. The level's virtual time advances with each start, so every waiting
tenant gets its turn, however many new tenants arrive. A tenant without ready or running attempts is forgotten when the
level's virtual time has passed the tenant's, or when no tenant has ready or running attempts.
"""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush, heapreplace, nlargest
from itertools import count
from operator import itemgetter

_LEAST = 1e-6  # the smallest charge for a start, in seconds; it makes tenants take turns while no duration is known
_NEWEST = 0.1  # the weight of the last duration in an average
# How fast the level's virtual time advances, as a fraction of the speed of the waiting tenants' virtual times. The
# fraction is below 1 so that a new tenant is ahead of tenants with a backlog.
_PACE = 0.5
_MOST_COUNTED = 1000  # the maximum number of tenants whose handler time is counted


class Account:
    """The account of one tenant of a level, from the tenant's first record until it is forgotten."""

    __slots__ = ("average", "is_listed", "name", "owed", "ready", "running", "time", "weight")

    def __init__(self, name: str, weight: float, time: float, average: float) -> None:
        self.name = name
        self.weight = weight
        self.time = time  # the virtual time
        self.average = average  # the average duration of an attempt in seconds
        self.owed = 0.0  # zero or negative: the seconds that were charged too much, which reduce the next charges
        self.ready = 0  # the number of ready attempts
        self.running = 0  # the number of running attempts
        self.is_listed = False  # whether the account is in the heap of accounts to forget


class Usage:
    """Counts the seconds of handler time that each tenant has used at all levels.

    Invariant: if more than `most` tenants are counted, only the `most // 2` tenants that used the most time are kept.
    """

    def __init__(self, most: int = _MOST_COUNTED) -> None:
        self._most = most
        self._seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """Add the seconds of handler time that a tenant has used."""
        known = self._seconds
        known[name] = known.get(name, 0.0) + seconds
        if len(known) > self._most:
            self._seconds = self.busiest(self._most // 2)

    def busiest(self, number: int) -> dict[str, float]:
        """Return the tenants that used the most handler time, and their seconds, in descending order."""
        return dict(nlargest(number, self._seconds.items(), key=itemgetter(1)))


class Tenants:
    """The accounts of one level's tenants.

    Args:
        weights: The weights of tenants, by name. Other tenants have the weight 1.
        usage: The handler time of tenants, to which all levels add.
    """

    __slots__ = (
        "_accounts",
        "_average",
        "_busy",
        "_idle",
        "_orders",
        "_override",
        "_time",
        "_usage",
        "_waiting",
        "_weights",
    )

    def __init__(self, weights: Mapping[str, float], usage: Usage) -> None:
        self._weights = weights
        self._override: Callable[[str], float | None] | None = None  # gives weights that are used instead
        self._usage = usage
        self._accounts: dict[str, Account] = {}
        self._time = 0.0  # the level's virtual time
        self._average = 0.0  # the average duration in seconds of an attempt of any tenant
        self._waiting = 0.0  # the sum of the weights of the tenants with ready attempts
        self._busy = 0  # the number of tenants with ready or running attempts
        self._orders = count()
        # A heap of the accounts without ready or running attempts. The accounts are ordered by the virtual time of the
        # level at which each of them can be forgotten.
        self._idle: list[tuple[float, int, Account]] = []

    @property
    def remembered(self) -> Mapping[str, Account]:
        """The tenants that are not forgotten, by name."""
        return self._accounts

    def override(self, weight_of: Callable[[str], float | None]) -> None:
        """Use other weights from now on for the tenants for which this function returns one."""
        self._override = weight_of
        for account in self._accounts.values():
            weight = self._weight_of(account.name)
            if account.ready:
                self._waiting += weight - account.weight
            account.weight = weight

    def _weight_of(self, name: str) -> float:
        weight = self._override(name) if self._override else None
        return self._weights.get(name, 1.0) if weight is None else weight

    def join(self, name: str, attempts: int) -> Account:
        """Record that this many attempts of a tenant became ready, and return the tenant's account."""
        account = self._accounts.get(name)
        if account is None:
            account = Account(name, self._weight_of(name), self._time, self._average)
            self._accounts[name] = account
        if not account.ready:
            self._busy += not account.running
            self._waiting += account.weight
            account.time = max(account.time, self._time)
        account.ready += attempts
        return account

    def leave(self, account: Account, attempts: int) -> None:
        """Record that this many ready attempts of a tenant were removed without being started."""
        account.ready -= attempts
        self._note_unready(account)

    def start(self, account: Account, in_turn: bool) -> float:
        """Record that a ready attempt starts, and return the seconds that its tenant is charged.

        `in_turn` is False if the attempt starts although it is not the tenant's turn.
        """
        charged = account.average or _LEAST
        paid = charged
        if account.owed:
            paid = max(charged + account.owed, _LEAST)
            account.owed = min(0.0, account.owed + charged - paid)  # rounding can make the sum slightly positive
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
        """Record that an attempt has ended after this many seconds. `charged` is what `start` returned for it."""
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
            self._waiting = 0.0  # set to 0, because the computed sum can have a rounding error
        elif not account.is_listed:
            account.is_listed = True
            heappush(self._idle, (account.time, next(self._orders), account))

    def _forget(self) -> None:
        """Forget tenants that have no ready or running attempts and are behind the level's virtual time."""
        idle = self._idle
        while idle and idle[0][0] <= self._time:
            account = idle[0][2]
            if not account.ready and not account.running and account.time > self._time:
                # The tenant's virtual time has grown, because attempts have run in the meantime.
                heapreplace(idle, (account.time, next(self._orders), account))
                continue
            heappop(idle)
            account.is_listed = False
            if not account.ready and not account.running:
                del self._accounts[account.name]


def _next_average(average: float, seconds: float) -> float:
    return average + _NEWEST * (seconds - average) if average else seconds
