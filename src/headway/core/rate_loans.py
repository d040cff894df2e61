"""Computes the fraction of a group's rate limits that one member may use.

The fraction is the member's base, minus its loans to other members, plus its loans from other members. The base is the
member's fraction of the group's partitions. All bases together are at most the whole rate, so the group keeps its limit
even if its members cannot reach each other. A member that needs more sends a request to all other members. Each other
member lends its unused fraction for `LEASE` seconds, and renews the loan while requests for it arrive.

Invariant: at any moment, all members together have at most the whole rate, even if messages are lost, late, repeated or
out of order, and if members die, sleep or join. Three rules ensure this:
- For the lender, a loan begins when the lender answers the request. For the borrower, the loan begins when the borrower
  sends the request, which is earlier. So the loan ends first for the borrower, and no common clock is needed.
- A later loan does not end an earlier loan of the same lender. The borrower uses the largest loan that has not ended.
  The lender withholds the largest loan that has not ended, because it cannot tell which loans have arrived.
- If a base grows, the higher base counts only after `LEASE` seconds, because until then the fraction may still be lent
  by the member that had it before.

Each loan is for one named rate: the rate of the group, or the rate of a tenant. Bases and loans are fractions of a
rate, so a member has the same base for all names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from headway.core.levels.naming import is_topic_name

LEASE: Final = 2.0
"""How long a loan lasts, in seconds. After that, the lender can use its whole base again."""

_KEEPS = 0.02  # the fraction of its base that a lender always keeps, so that its next record does not need a loan
_SMALLEST = 0.001  # the smallest fraction of a rate that is requested or lent
# the maximum number of rates requested in one message; a message with thousands would take megabytes
_MOST_ASKED = 200

Fractions = Mapping[str, float]
"""Maps the names of rates to fractions of these rates."""


def rates_topic(group: str) -> str:
    """Return the topic for the messages of a group. If the group's name cannot be part of a topic's name, it is hashed.

    >>> rates_topic("billing"), rates_topic("billing: EU")
    ('headway-rates-billing', 'headway-rates-6857ce9c52bb3574')
    """
    topic = f"headway-rates-{group}"
    return topic if is_topic_name(topic) else f"headway-rates-{sha256(group.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Need:
    """The fraction of a rate that a member uses now, and the fraction that it would use without a limit."""

    used: float
    wanted: float


@dataclass(frozen=True, slots=True)
class LoanMessage:
    """A member's message to all other members: its requests and its loans.

    `asks` has the fractions that the member needs in addition to its base. `lends` maps each borrower to the number of
    its request and to the fractions that are lent to it.
    """

    member: str
    number: int
    asks: Fractions = field(default_factory=dict)
    lends: Mapping[str, tuple[int, Fractions]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Loan:
    until: float
    fractions: Fractions


class Loans:
    """The loans of one member. `receive` processes messages, and `next_message` returns the message to send.

    This class does no I/O.
    """

    def __init__(self, member: str) -> None:
        self._member = member
        self._number = 0
        # Pairs of a time and the base from that time on. The list has the pairs of the last `2 * LEASE` seconds, and
        # the last pair before these.
        self._bases: list[tuple[float, float]] = []
        self._asked_at: dict[int, float] = {}  # when requests of this member that can still be answered were sent
        self._heard: dict[str, int] = {}  # the number of the last message from each member
        self._requests: dict[str, tuple[int, Fractions]] = {}  # requests that are not answered yet
        self._lent: dict[str, list[_Loan]] = {}  # the loans to each member that have not ended
        self._borrowed: dict[str, list[_Loan]] = {}  # the loans from each member that have not ended

    def rebase(self, base: float, now: float) -> None:
        """Set this member's base from now on: its fraction of the group's partitions."""
        self._bases.append((now, base))

    def base(self, now: float) -> float:
        """Return the base that currently counts, which is the lowest base of the last `LEASE` seconds."""
        return self._least_since(now - LEASE)

    def _least_since(self, since: float) -> float:
        least = 0.0
        for at, base in self._bases:
            least = base if at <= since else min(least, base)
        return least

    def receive(self, message: LoanMessage, now: float) -> None:
        """Process a message from another member. A message that is older than the sender's last message is ignored."""
        sender = message.member
        if sender == self._member or message.number <= self._heard.get(sender, -1):
            return
        self._heard[sender] = message.number
        if message.asks:
            self._requests[sender] = message.number, message.asks
        if self._member not in message.lends:
            return
        number, fractions = message.lends[self._member]
        asked_at = self._asked_at.get(number)
        if asked_at is not None:
            self._borrowed.setdefault(sender, []).append(_Loan(asked_at + LEASE, fractions))

    def next_message(self, needs: Mapping[str, Need], now: float) -> LoanMessage | None:
        """Return the message to send now, or None if it would have no requests and no loans.

        From now on, `share` withholds the loans in the message, even before the message is sent.
        """
        self._expire(now)
        base = self.base(now)
        asks = {name: need.wanted - base for name, need in needs.items() if need.wanted - base >= _SMALLEST}
        if len(asks) > _MOST_ASKED:
            asks = {name: asks[name] for name in sorted(asks, key=asks.__getitem__)[-_MOST_ASKED:]}
        lends = self._answer(needs, base, now)
        if not asks and not lends:
            return None
        self._number += 1
        if asks:
            self._asked_at[self._number] = now
        return LoanMessage(self._member, self._number, asks, lends)

    def share(self, name: str, now: float) -> float:
        """Return the fraction of a rate that this member may use now."""
        lent = sum(_largest(loans, name, now) for loans in self._lent.values())
        borrowed = sum(_largest(loans, name, now) for loans in self._borrowed.values())
        return max(0.0, self.base(now) - lent) + borrowed

    def names(self, now: float) -> set[str]:
        """Return the names of the rates that this member is lending or borrowing a fraction of."""
        return {name for loan in self._loans() if loan.until > now for name in loan.fractions}

    def next_change(self, now: float) -> float | None:
        """Return when the next loan ends or a new base begins to count, or None if neither will happen."""
        times = [loan.until for loan in self._loans()]
        times += [at + LEASE for at, _ in self._bases]
        return min((at for at in times if at > now), default=None)

    def _answer(self, needs: Mapping[str, Need], base: float, now: float) -> dict[str, tuple[int, Fractions]]:
        lends: dict[str, tuple[int, Fractions]] = {}
        # Lend only from the lowest base of a longer period, because the needs of new partitions are not known yet.
        lendable = self._least_since(now - 2 * LEASE)
        requests, self._requests = self._requests, {}
        sharing = {name: sum(name in asks for _, asks in requests.values()) for _, a in requests.values() for name in a}
        for member, (number, asks) in sorted(requests.items()):
            fractions = {}
            for name, asked in asks.items():
                needed = min(base, max(need.used, need.wanted)) if (need := needs.get(name)) else 0.0
                spare = lendable - max(needed, _KEEPS * base)
                others = sum(_largest(loans, name, now) for other, loans in self._lent.items() if other != member)
                part = min(asked, spare / sharing[name], spare - others)
                if part >= _SMALLEST:
                    fractions[name] = part
            if fractions:
                lends[member] = number, fractions
                self._lent.setdefault(member, []).append(_Loan(now + LEASE, fractions))
        return lends

    def _loans(self) -> list[_Loan]:
        return [loan for books in (self._lent, self._borrowed) for loans in books.values() for loan in loans]

    def _expire(self, now: float) -> None:
        self._lent = _left(self._lent, now)
        self._borrowed = _left(self._borrowed, now)
        while len(self._bases) > 1 and self._bases[1][0] <= now - 2 * LEASE:
            self._bases.pop(0)
        self._asked_at = {number: at for number, at in self._asked_at.items() if at + LEASE > now}


def _largest(loans: Sequence[_Loan], name: str, now: float) -> float:
    """Return the largest fraction of a rate among the loans that have not ended."""
    return max((loan.fractions.get(name, 0.0) for loan in loans if loan.until > now), default=0.0)


def _left(loans: Mapping[str, list[_Loan]], now: float) -> dict[str, list[_Loan]]:
    left = {member: [loan for loan in each if loan.until > now] for member, each in loans.items()}
    return {member: each for member, each in left.items() if each}
