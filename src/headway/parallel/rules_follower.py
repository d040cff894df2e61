"""Follows the rules of a group during a run, and applies each change at once.

A member that cannot read the rules logs that, and goes on with the rules that it knows.
"""

import logging
import threading
import time

from headway.core.rules.rule import (
    RULES_TOPIC,
    Action,
    ForceCircuit,
    LimitRate,
    MakeDeadLetter,
    Rule,
    SetWeight,
    read_rule,
)
from headway.core.rules.rule_book import RuleBook
from headway.errors import HeadwayError, UnreadableError
from headway.execution.dispatch import Dispatch
from headway.execution.gates.circuit_gate import CircuitGate
from headway.execution.gates.rules_gate import RulesGate
from headway.kafka.keyed.keyed_topic import KeyedTopic
from headway.kafka.reading.rule_changes import RuleChanges
from headway.parallel.group_rate import GroupRate
from headway.settings.config import Config

log = logging.getLogger(__name__)

_TRIES_AGAIN_AFTER = 10.0  # seconds
_CLOSES_WITHIN = 2.0  # how long the end of the run waits for the thread, in seconds


class RulesFollower:
    """Keeps the rules of one group up to date in a gate, which becomes part of the dispatch with the first rule.

    Args:
        config: The connection's settings.
        group: The group, without the level.
        circuit: The circuit breaker of the handler, if there is one.
        has_dead_letters: True if there is a topic for dead letters.
        has_tenants: True if records have tenants.
    """

    def __init__(
        self,
        config: Config,
        group: str,
        dispatch: Dispatch,
        rate: GroupRate,
        circuit: CircuitGate | None,
        *,
        has_dead_letters: bool,
        has_tenants: bool,
    ) -> None:
        self._config = config
        self._group = group
        self._dispatch = dispatch
        self._rate = rate
        self._has_dead_letters = has_dead_letters
        self._has_tenants = has_tenants
        self._circuit = circuit
        self._gate = RulesGate(dispatch.engine, has_dead_letters=has_dead_letters, circuit=circuit)
        self._rules: dict[str, Rule] = {}  # by the key of the record
        self._book = RuleBook()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the rules and apply them, and follow their changes in a thread from now on."""
        start: int | None = None
        try:
            start = self._read_all()
        except HeadwayError as error:
            self._log_failure(error)
        self._thread = threading.Thread(target=self._follow, args=(start,), name="headway-rules", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, if there is one."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_CLOSES_WITHIN)

    def _read_all(self) -> int:
        """Read and apply all rules, and return the offset of the next change."""
        with KeyedTopic(self._config, RULES_TOPIC) as topic:
            topic.create("Read")
            stored = topic.read(self._ended.is_set)
        self._rules.clear()
        for key, value in stored.values.items():
            self._learn(key, value)
        self._apply()
        return stored.end

    def _follow(self, start: int | None) -> None:
        while not self._ended.is_set():
            try:
                if start is None:
                    self._ended.wait(_TRIES_AGAIN_AFTER)
                    start = self._read_all()
                self._follow_from(start)
            except HeadwayError as error:
                self._log_failure(error)
            except Exception:  # without this thread, the member would apply outdated rules for the rest of the run
                log.exception("Following the rules raised an unexpected error, and starts again.")
            start = None

    def _follow_from(self, start: int) -> None:
        changes = RuleChanges(self._config, start)
        try:
            while not self._ended.is_set():
                if change := changes.take():
                    self._learn(*change)
                    self._apply()
                elif (end := self._book.next_end()) is not None and end <= time.time() * 1000:
                    self._apply()
        finally:
            changes.close()

    def _learn(self, key: str, value: bytes | None) -> None:
        if key.rpartition("/")[0] != self._group:
            return
        self._rules.pop(key, None)
        if value is not None:
            try:
                self._rules[key] = read_rule(key, value)
            except UnreadableError as error:
                log.error("%s This member ignores the rule. A later version of Headway may have made it.", error)

    def _apply(self) -> None:
        now_ms = int(time.time() * 1000)
        book = RuleBook(rule for rule in self._rules.values() if not rule.is_over(now_ms))
        if book.rules == self._book.rules:
            return
        self._log_changes(book)
        self._book = book
        if any(isinstance(rule.action, LimitRate) for rule in book.rules):
            self._rate.add(self._gate)
        with self._dispatch.lock:
            self._gate.use(book, time.monotonic())
            self._dispatch.add(self._gate)
        self._dispatch.feed()

    def _log_changes(self, book: RuleBook) -> None:
        before, after = set(self._book.rules), set(book.rules)
        for rule in before - after:
            log.info("The rule %s of the group %s no longer applies.", rule.id, rule.group)
        for rule in after - before:
            log.info("The rule %s of the group %s applies: %s", rule.id, rule.group, rule)
            if missing := self._missing_for(rule.action):
                log.error("The rule %s has no full effect on this member: %s", rule.id, missing)

    def _missing_for(self, action: Action) -> str | None:
        if isinstance(action, MakeDeadLetter) and not self._has_dead_letters:
            return "it has no dead_letter_topic, so it holds the records instead."
        if isinstance(action, SetWeight) and not self._has_tenants:
            return "it has no tenant."
        if isinstance(action, ForceCircuit) and not self._circuit:
            return "it has no circuit_breaker."
        return None

    def _log_failure(self, error: HeadwayError) -> None:
        log.warning(
            "The rules of the group %s cannot be read, so this member continues with the rules that it knows: %s",
            self._group,
            error,
        )
