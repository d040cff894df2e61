"""Applies an operator's rules to records that are about to start: holds, drops and limits them.

The dispatch has this gate only if the group has had a rule. Invariant: each parked record is listed under the rule that
made it wait, until it starts or its partition is revoked. When rules change, all parked records are let go, and each of
them meets the new rules before it starts.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from headway.core.engine.attempt import FinalOutcome
from headway.core.engine.engine import Engine
from headway.core.levels.naming import level_topic
from headway.core.retry import Again, GiveUp, Move, Verdict
from headway.core.rules.rule import (
    Action,
    Demote,
    Drop,
    Hold,
    LimitConcurrency,
    LimitRate,
    MakeDeadLetter,
    RetryAs,
    Rule,
)
from headway.core.rules.rule_book import RuleBook
from headway.core.rules.start_times import StartTimes
from headway.core.selectors.conditions import FieldValue
from headway.errors import RuleError
from headway.execution.gate import Gate
from headway.execution.gates.attempt_fields import AttemptFields, field_reader
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.member_rules import MemberRules
from headway.execution.jobs import Job, RecordAttempt
from headway.records.record_types import ConsumerRecord

log = logging.getLogger(__name__)

_LOG_EVERY = 10.0  # the minimum time between two log lines, in seconds
_RATE = "rule:"  # the prefix of the rules' rates among the names of shared rates
# Parked records of revoked partitions are forgotten when this number of records is parked, and again each time the
# number has doubled.
_PRUNE_AT = 1000


class RulesGate(Gate):
    """Holds records back, ends them without a call of the handler, or limits them, as the rules of the group say.

    If several rules hold, drop or end a record, the newest of them applies. Limits apply together.

    Args:
        engine: The engine, which parks the records that must wait.
        has_dead_letters: True if there is a topic for dead letters. Otherwise, records that a rule makes dead letters
            are held.
        circuit: The circuit breaker of the handler, if there is one.
    """

    def __init__(
        self, engine: Engine[ConsumerRecord], *, has_dead_letters: bool, circuit: CircuitGate | None = None
    ) -> None:
        self._engine = engine
        self._member = MemberRules(engine, circuit)
        self._has_dead_letters = has_dead_letters
        self._book = RuleBook()
        # How to read each field by which all rules are looked up, and the values that the rules require. None if some
        # rules are not looked up in this way.
        self._required: list[tuple[Callable[[RecordAttempt], FieldValue], Container[FieldValue]]] | None = []
        self._parked: dict[str, dict[RecordAttempt, None]] = {}  # by the rule's id, in the order of parking
        self._parked_under: dict[RecordAttempt, str] = {}  # the id of the rule that has parked each attempt
        self._prune_at = _PRUNE_AT
        self._rates: dict[str, StartTimes] = {}  # by the rule's id
        self._share = 0.0
        self._shares: Mapping[str, float] = {}
        self._running: Counter[str] = Counter()  # how many records run under each limit of concurrency
        self._limited: dict[RecordAttempt, Sequence[str]] = {}  # the running attempts that are counted there
        self._admitted: list[RecordAttempt] = []  # counted attempts of the job that was admitted last
        self._ended: Counter[str] = Counter()  # records that were ended by rules and not logged yet, by the rule's id
        self._dropped = 0
        self._log_at = -math.inf
        self._changes_wait = False

    def use(self, book: RuleBook, now: float) -> None:
        """Apply these rules from now on. The caller holds the lock of the dispatch."""
        self._book = book
        values = book.values
        self._required = None if values is None else [(field_reader(field), each) for field, each in values.items()]
        rates = {rule.id: rule.action.per_second for rule in book.rules if isinstance(rule.action, LimitRate)}
        self._rates = {
            id_: known if (known := self._rates.get(id_)) and known.limit == limit else StartTimes(limit)
            for id_, limit in rates.items()
        }
        self._apply_shares()
        self._let_go(list(self._parked), now)
        self._member.use(book, now)

    # Before a start

    def admit(self, job: Job, now: float) -> Job:
        """Return the attempts that the rules let start. The others are parked, or have an outcome."""
        if self._admitted:
            self._count_off(self._admitted)  # a later gate did not admit these
            self._admitted = []
        if self._parked_under:
            for attempt in job:
                self._forget_parked(attempt)  # its time has come
        if self._required is not None and not any(map(self._has_required_value, job)):
            return job  # most records take this path
        admitted = [attempt for attempt in job if attempt.outcome or self._may_start_now(attempt, now)]
        return job if len(admitted) == len(job) else admitted

    def started(self, job: Job, running: int, now: float) -> bool:
        """Count the attempts that run under a limit of concurrency."""
        if self._admitted:
            self._count_off([attempt for attempt in self._admitted if attempt not in job])
            self._admitted = []
        return False

    def changes_wait(self, now: float) -> bool:
        """Return whether a record now waits for a time that the control thread does not know."""
        changes, self._changes_wait = self._changes_wait, False
        return changes

    def _has_required_value(self, attempt: RecordAttempt) -> bool:
        """Return whether an attempt has a value that some rule requires."""
        for read, values in self._required or ():  # noqa: SIM110 - a generator takes twice the time
            if read(attempt) in values:
                return True
        return False

    def _may_start_now(self, attempt: RecordAttempt, now: float) -> bool:
        rules = self._book.find(AttemptFields(attempt, now).value_of)
        if not rules:
            return True
        for rule in reversed(rules):
            if isinstance(rule.action, Hold | Drop | MakeDeadLetter) or _demotes(rule.action, attempt):
                self._stop(attempt, rule, now)
                return False
        return self._is_within_limits(attempt, rules, now)

    def _stop(self, attempt: RecordAttempt, rule: Rule, now: float) -> None:
        action = rule.action
        if isinstance(action, Hold) or (isinstance(action, MakeDeadLetter) and not self._has_dead_letters):
            self._park(attempt, rule, now, lets_pass=isinstance(action, Hold) and action.lets_pass)
            return
        error = RuleError(
            f"The rule {rule.id} of the group {rule.group} ended the record before it was started{_why(rule)}."
        )
        reason = f"the rule {rule.id} applies to it"
        if isinstance(action, Drop):
            attempt.outcome = FinalOutcome(error, None)
            self._dropped += 1
        elif isinstance(action, Demote):
            attempt.outcome = FinalOutcome(error, Move(level_topic(attempt.partition.topic, action.level), reason))
        else:
            attempt.outcome = FinalOutcome(error, GiveUp(reason))
        self._ended[rule.id] += 1

    def _is_within_limits(self, attempt: RecordAttempt, rules: Sequence[Rule], now: float) -> bool:
        of_concurrency = [rule for rule in rules if isinstance(rule.action, LimitConcurrency)]
        for rule in of_concurrency:
            assert isinstance(rule.action, LimitConcurrency)  # noqa: S101 - for the type checker
            if self._running[rule.id] >= rule.action.most:
                self._park(attempt, rule, now)
                return False
        for rule in rules:
            if isinstance(rule.action, LimitRate):
                at = self._rates[rule.id].of(attempt.order, now)
                if at > now:
                    self._park(attempt, rule, now, at)
                    return False
        for rule in rules:
            if isinstance(rule.action, LimitRate):
                self._rates[rule.id].started(attempt.order)
        if of_concurrency:
            ids = [rule.id for rule in of_concurrency]
            self._running.update(ids)
            self._limited[attempt] = ids
            self._admitted.append(attempt)
        return True

    # Afterwards

    def judged(self, attempt: RecordAttempt, error: BaseException, verdict: Verdict, now: float) -> Verdict:
        """Replace the verdict on a failed attempt if a rule changes how its record is retried."""
        if not isinstance(verdict, Again) and not (isinstance(verdict, GiveUp) and verdict.tried_out):
            return verdict
        rules = self._book.find(AttemptFields(attempt, now, error).value_of)
        action = next((rule.action for rule in reversed(rules) if isinstance(rule.action, RetryAs)), None)
        if action is None or (isinstance(verdict, Again) and verdict.untried):
            return verdict
        tried = attempt.number - attempt.untried
        if self._has_dead_letters and action.max_attempts is not None and tried >= action.max_attempts:
            return GiveUp(f"attempt {tried} of {action.max_attempts} failed", tried_out=True)
        return Again(now + action.delay)

    def done(self, attempt: RecordAttempt, now: float) -> bool:
        """Forget a parked record that an operator has dropped or moved."""
        self._forget_parked(attempt)
        return False

    def ended(self, attempt: RecordAttempt, running: int, now: float) -> bool:
        """Let the next record start that waits for the limit under which this attempt was running."""
        for id_ in self._count_off([attempt]):
            self._let_one_go(id_, now)
        return False

    def _count_off(self, attempts: Sequence[RecordAttempt]) -> list[str]:
        ids = [id_ for attempt in attempts for id_ in self._limited.pop(attempt, ())]
        for id_ in ids:
            self._running[id_] -= 1
            if not self._running[id_]:
                del self._running[id_]
        return ids

    # Parked records

    def _park(
        self, attempt: RecordAttempt, rule: Rule, now: float, until: float = math.inf, *, lets_pass: bool = False
    ) -> None:
        parked = self._engine.park(attempt, now, until, lets_pass=lets_pass)
        if parked is not None:
            self._changes_wait |= until < math.inf
            self._parked.setdefault(rule.id, {})[parked] = None
            self._parked_under[parked] = rule.id
            if len(self._parked_under) > self._prune_at:
                self._prune()

    def _prune(self) -> None:
        """Forget the parked records of revoked partitions."""
        for attempt in [each for each in self._parked_under if not each.assignment.current]:
            self._forget_parked(attempt)
        self._prune_at = max(_PRUNE_AT, 2 * len(self._parked_under))

    def _forget_parked(self, attempt: RecordAttempt) -> None:
        id_ = self._parked_under.pop(attempt, None)
        if id_ is not None:
            del self._parked[id_][attempt]

    def _let_one_go(self, id_: str, now: float) -> None:
        waiting = self._parked.get(id_, {})
        while parked := next(iter(waiting), None):
            self._forget_parked(parked)
            if parked.assignment.current and parked.not_before > now:
                self._engine.unpark(parked, now)
                return

    def _let_go(self, ids: Sequence[str], now: float) -> None:
        for parked in [each for id_ in ids for each in self._parked.get(id_, ())]:
            self._forget_parked(parked)
            self._engine.unpark(parked, now)

    # The rates, which the members of the group share

    @property
    def is_shared(self) -> bool:
        """True, because the members of the group share the rates of rules."""
        return True

    def needs(self, ready: int, seconds: float, now: float) -> dict[str, tuple[float, float]]:
        """Return the used fraction of each rate, and its backlog in seconds at the full rate."""
        return {f"{_RATE}{id_}": need for id_, rate in self._rates.items() if (need := rate.needs(seconds, now))}

    def share(self, share: float, now: float, others: Mapping[str, float]) -> None:
        """Set the fraction of each rate that this member can use. `others` has the rates with other fractions."""
        self._share, self._shares = share, others
        self._let_go(self._apply_shares(), now)

    def _apply_shares(self) -> list[str]:
        """Set the parts of all rates, and return the ids of the rules whose part has changed."""
        shares = {id_: self._shares.get(f"{_RATE}{id_}", self._share) for id_ in self._rates}
        return [id_ for id_, rate in self._rates.items() if rate.share(shares[id_])]

    # Observations

    def log(self, now: float, *, at_end: bool = False) -> None:
        """Log how many records the rules have released, and at most every 10 seconds how many they have ended."""
        self._member.log()
        if self._ended and (at_end or now >= self._log_at):
            self._log_at = now + _LOG_EVERY
            ended, self._ended = self._ended, Counter()
            for id_, count in ended.items():
                log.info("The rule %s has ended %d records without a call of the handler.", id_, count)

    def metrics(self) -> Mapping[str, Any]:
        """Return the metrics `held`, `dropped` and `held_by_rule`."""
        held_by_rule = {rule.id: len(self._parked.get(rule.id, ())) for rule in self._book.rules}
        return {"held": len(self._parked_under), "dropped": self._dropped, "held_by_rule": held_by_rule}


def _demotes(action: Action, attempt: RecordAttempt) -> bool:
    """Return whether an action moves a record to a lower level.

    A topic without levels, or one that has its level from a mapping, has no lower level to which it could be moved.
    """
    if not isinstance(action, Demote):
        return False
    topic, level = attempt.partition.topic, attempt.level
    return level > action.level and attempt.record.kafka_topic == level_topic(topic, level)


def _why(rule: Rule) -> str:
    return f": {rule.why}" if rule.why else ""
