"""One member's part of its group's rates: its base, minus what it lends to other members, plus what it borrows.

The base is the member's fraction of the group's partitions. All bases together are at most the whole rate, so a group
whose members cannot reach each other keeps its limit. A member that needs more asks all others in a message. Each of
them lends what it does not use, for `LEASE` seconds, and renews the loan as long as it is asked.

Invariant: at any moment all members together have at most the whole rate, whatever messages are lost, late, doubled or
out of order, and whoever dies, sleeps or joins. Three rules ensure it:
- For its lender, a loan begins when the lender answers; for its borrower, when the borrower asked, which was earlier.
  So it ends for the borrower first, without a common clock.
- A lender's later loan does not end its earlier one: the borrower uses the largest that has not ended, and the lender
  withholds the largest, since it cannot know which of them has arrived.
- A base that grows counts only after `LEASE` seconds: the member that had it before may have lent it until then.

A loan is tied to one name: the group's own rate, or that of a tenant. Bases and loans are fractions of a rate, so all
names have the same base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from headway.core.levels.naming import is_topic_name

LEASE: Final = 2.0
"""The seconds that a loan lasts, after which a lender has its whole base again."""

_KEEPS = 0.02  # of its base; a lender keeps this much, so that its first record needs no loan
_SMALLEST = 0.001  # of a rate; smaller loans are not worth a message
_MOST_ASKED = 200  # names in a message, those that need most; with thousands, each message would take megabytes

Fractions = Mapping[str, float]
"""Fractions of rates, by the names of the rates."""


def rates_topic(group: str) -> str:
    """Return the topic of a group's messages; it is hashed if no topic could have the group's name.

    >>> rates_topic("billing"), rates_topic("billing: EU")
    ('headway-rates-billing', 'headway-rates-6857ce9c52bb3574')
    """
    topic = f"headway-rates-{group}"
    return topic if is_topic_name(topic) else f"headway-rates-{sha256(group.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Need:
    """What a member needs of a rate, as fractions of it: what it uses now, and what it would use if it could."""

    used: float
    wanted: float


@dataclass(frozen=True, slots=True)
class LoanMessage:
    """What a member tells all others: what it asks for beyond its base, and what it lends, by the borrowers' names.

    A loan carries the number of the message that it answers.
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
    """The books of one member: `hear` takes in messages, and `turn` returns the next one. No I/O."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._number = 0
        # Each with the time when it became known: those within the last two LEASEs, and the one before them.
        self._bases: list[tuple[float, float]] = []
        self._asked_at: dict[int, float] = {}  # the member's own messages that can still be answered
        self._heard: dict[str, int] = {}  # the last message number of each member
        self._requests: dict[str, tuple[int, Fractions]] = {}  # requests that are not answered yet
        self._lent: dict[str, list[_Loan]] = {}  # to each member, loans that have not ended
        self._borrowed: dict[str, list[_Loan]] = {}  # from each member, loans that have not ended

    def rebase(self, base: float, now: float) -> None:
        """Note the fraction of the partitions that this member has from now on."""
        self._bases.append((now, base))

    def base(self, now: float) -> float:
        """Return the base that counts now: the least of the last `LEASE` seconds."""
        return self._least_since(now - LEASE)

    def _least_since(self, since: float) -> float:
        least = 0.0
        for at, base in self._bases:
            least = base if at <= since else min(least, base)
        return least

    def hear(self, message: LoanMessage, now: float) -> None:
        """Take in another member's message; one that is older than that member's last is ignored."""
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

    def turn(self, needs: Mapping[str, Need], now: float) -> LoanMessage | None:
        """Return the message to send now, None if there is nothing to say.

        `share` withholds what the message lends from now on, before anybody hears of it.
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
        """Return the fraction of a rate that this member has now."""
        lent = sum(_largest(loans, name, now) for loans in self._lent.values())
        borrowed = sum(_largest(loans, name, now) for loans in self._borrowed.values())
        return max(0.0, self.base(now) - lent) + borrowed

    def names(self, now: float) -> set[str]:
        """Return the names of the rates of which some part is lent or borrowed now."""
        return {name for loan in self._loans() if loan.until > now for name in loan.fractions}

    def next_change(self, now: float) -> float | None:
        """Return the time at which the next loan ends or a new base counts, if nothing else happens."""
        times = [loan.until for loan in self._loans()]
        times += [at + LEASE for at, _ in self._bases]
        return min((at for at in times if at > now), default=None)

    def _answer(self, needs: Mapping[str, Need], base: float, now: float) -> dict[str, tuple[int, Fractions]]:
        lends: dict[str, tuple[int, Fractions]] = {}
        lendable = self._least_since(
            now - 2 * LEASE
        )  # the least of a longer time, since what new partitions need is not known yet
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
