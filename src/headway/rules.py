"""Rules, with which operators hold, drop or limit the records of a running group.

    from headway.rules import Hold, Rule, Rules

    with Rules({"bootstrap.servers": "localhost:9092"}) as rules:
        rules.set(Rule("acme", "billing", Hold(), where="header.tenant = acme", why="their bank is down"))
        rules.end("billing", "acme")

The members of the group must run with `steered=True`. `headway rules` is the command for the same.
"""

import time
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from headway.core.outgoing_record import OutgoingRecord
from headway.core.rules.rule import (
    RULES_TOPIC,
    Drop,
    Hold,
    LimitConcurrency,
    LimitRate,
    MakeDeadLetter,
    RetryAs,
    Rule,
    read_rule,
    rule_key,
)
from headway.errors import ConfigError, KafkaError, UnreadableError
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.kafka.reading.compacted import TopicReader
from headway.kafka.reading.rules_topic import create_rules_topic
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of

__all__ = ["Drop", "Hold", "LimitConcurrency", "LimitRate", "MakeDeadLetter", "RetryAs", "Rule", "Rules"]


class Rules(Closable):
    """Stores, lists and ends the rules of groups.

    The members of a group that run with `steered=True` apply each change within about a second.

        with Rules({"bootstrap.servers": "localhost:9092"}) as rules:
            rules.set(Rule("acme", "billing", Hold(), where="header.tenant = acme", why="their bank is down"))

    `config` has the connection's settings. Not thread-safe.
    """

    def __init__(self, config: Config) -> None:
        self._config = connection_of(config)
        self._reader = TopicReader(self._config)

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()

    def all(self, group: str | None = None) -> list[Rule]:
        """Return the rules of one group, or of all groups, that have not ended. Unreadable rules are left out.

        Raises `KafkaError` if the rules cannot be read.
        """
        now = int(time.time() * 1000)
        readable = [rule for key, value in self.stored().items() if (rule := _rule_or_none(key, value))]
        chosen = [rule for rule in readable if group in (None, rule.group) and not rule.is_over(now)]
        return sorted(chosen, key=lambda rule: (rule.group, rule.since, rule.id))

    def stored(self) -> Mapping[str, bytes]:
        """Return the stored value of each rule by its key, readable or not."""
        if RULES_TOPIC not in self._reader.admin.topics("Read"):
            return {}
        return self._reader.compacted(RULES_TOPIC, [0], BROKER_ANSWERS_WITHIN)[0]

    def set(self, rule: Rule) -> Rule:
        """Store a rule, in place of a rule with the same id in the same group. Returns the rule as it is stored.

        `since` becomes the current time if it is 0. Raises `ConfigError` if the selector is not valid, and `KafkaError`
        if Kafka does not store the rule.
        """
        if not rule.group or not rule.id or "/" in rule.id:
            raise ConfigError(
                f"The rule {rule.id!r} of the group {rule.group!r} needs a group, and an id without a '/'."
            )
        _ = rule.selector
        rule = rule if rule.since else replace(rule, since=int(time.time() * 1000))
        create_rules_topic(self._reader.admin)
        self._store(rule.key, rule.encode())
        return rule

    def end(self, group: str, id_: str) -> bool:
        """End a rule. Returns False if there is no such rule."""
        key = rule_key(group, id_)
        if key not in self.stored():
            return False
        self._store(key, None)
        return True

    def _store(self, key: str, value: bytes | None) -> None:
        refused: list[Any] = []
        client = ProducerClient({**self._config, "enable.idempotence": True})
        try:
            record = OutgoingRecord(RULES_TOPIC, value, key, 0)
            client.produce(record, lambda error, _: refused.append(error))
        finally:
            left = client.close(BROKER_ANSWERS_WITHIN)
        if left or any(refused):
            reason = next(filter(None, refused), "Kafka did not answer")
            raise KafkaError(f"The rule {key} was not stored in {RULES_TOPIC}: {reason}.")


def _rule_or_none(key: str, value: bytes) -> Rule | None:
    try:
        return read_rule(key, value)
    except UnreadableError:
        return None
