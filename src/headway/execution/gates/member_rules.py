"""Applies the rules that concern a member as a whole: its circuit breaker, its tenants, and its held records."""

import logging
from collections import Counter
from collections.abc import Sequence

from headway.core.engine.engine import Engine
from headway.core.rules.rule import ForceCircuit, Release, Rule, SetWeight
from headway.core.rules.rule_book import RuleBook
from headway.core.selectors.selector import Selector
from headway.execution.gates.attempt_fields import AttemptFields
from headway.execution.gates.circuit_gate import CircuitGate
from headway.records.record_types import ConsumerRecord

log = logging.getLogger(__name__)


class MemberRules:
    """Applies each change of such rules once. The caller holds the lock of the dispatch, except for `log`.

    Args:
        engine: The engine, which has the tenants and the held records.
        circuit: The circuit breaker of the handler, if there is one.
    """

    def __init__(self, engine: Engine[ConsumerRecord], circuit: CircuitGate | None) -> None:
        self._engine = engine
        self._circuit = circuit
        self._releases: Sequence[Rule] = []  # the rules that have released records already
        self._released: Counter[str] = Counter()  # records that were released and not logged yet, by the rule's id

    def use(self, book: RuleBook, now: float) -> None:
        """Apply these rules from now on."""
        if self._circuit:
            forced = [rule.action.is_open for rule in book.rules if isinstance(rule.action, ForceCircuit)]
            self._circuit.force(forced[-1] if forced else None, now)
        self._engine.weigh_tenants(_Weights(book).of)
        releases = [rule for rule in book.rules if isinstance(rule.action, Release)]
        for rule in releases:
            if rule not in self._releases:
                self._release(rule, now)
        self._releases = releases

    def _release(self, rule: Rule, now: float) -> None:
        selector = rule.selector
        chosen = [
            attempt
            for attempt in self._engine.kept()
            if selector is None or selector.matches(AttemptFields(attempt, now).value_of)
        ]
        if released := self._engine.release_kept(chosen, now):
            self._released[rule.id] += released

    def log(self) -> None:
        """Log how many records were released since the last call."""
        if self._released:
            released, self._released = self._released, Counter()
            for id_, count in released.items():
                log.info("The rule %s lets %d held records start again.", id_, count)


class _Weights:
    """The weights that rules give to tenants. The newest rule that chooses a tenant decides."""

    def __init__(self, book: RuleBook) -> None:
        self._weights: list[tuple[Selector, float]] = [
            (rule.selector, rule.action.weight)
            for rule in reversed(book.rules)
            if isinstance(rule.action, SetWeight) and rule.selector
        ]

    def of(self, tenant: str) -> float | None:
        """Return the weight of a tenant, or None if no rule gives it one."""
        fields = {"tenant": tenant}
        return next((weight for selector, weight in self._weights if selector.matches(fields.get)), None)
