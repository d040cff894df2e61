"""Reads the rules of groups, whether or not this version knows what they do."""

from collections.abc import Collection, Iterator

from headway.core.rules.rule import RULES_TOPIC, read_rule
from headway.errors import UnreadableError
from headway.inspection.snapshot import RuleStatus
from headway.kafka.keyed.keyed_topic import KeyedTopic
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config

_LONGEST_NAME = 250
MOST_RULES = 1000


class RulesReader(Closable):
    """Reads the rules that have not ended. Not thread-safe.

    Args:
        config: The settings of librdkafka.
        groups: The groups whose rules are read, by their names without levels. By default all.
    """

    def __init__(self, config: Config, groups: Collection[str]) -> None:
        self._topic = KeyedTopic(config, RULES_TOPIC)
        self._groups = groups
        self.requests = 0

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()

    def read(self, now: float, existing: Collection[str], failures: list[str]) -> tuple[RuleStatus, ...]:
        """Return the rules, by group and age. `existing` has the names of all topics."""
        if RULES_TOPIC not in existing:
            return ()
        self.requests += 1
        found = [each for each in self._all() if each.until is None or each.until > now]
        if len(found) > MOST_RULES:
            failures.append(f"Only {MOST_RULES:,} of {len(found):,} rules are shown.")
        return tuple(sorted(found, key=lambda each: (each.group, each.since or 0.0, each.id))[:MOST_RULES])

    def _all(self) -> Iterator[RuleStatus]:
        for key, value in self._topic.read().values.items():
            status = rule_status(key, value)
            if not self._groups or status.group in self._groups:
                yield status


def rule_status(key: str, value: bytes) -> RuleStatus:
    """Return the state of a stored rule. A rule that cannot be read has a `problem`."""
    try:
        rule = read_rule(key, value)
    except UnreadableError as error:
        group, _, id_ = key.rpartition("/")
        return RuleStatus(group[:_LONGEST_NAME], id_[:_LONGEST_NAME], problem=str(error))
    return RuleStatus(
        rule.group,
        rule.id,
        does=rule.does,
        where=rule.where,
        by=rule.by,
        why=rule.why,
        since=rule.since / 1000,
        until=None if rule.until is None else rule.until / 1000,
    )
