"""Rules, with which operators hold, drop or limit the records of a running group.

    from headway.rules import Hold, Rule, Rules

    with Rules({"bootstrap.servers": "localhost:9092"}) as rules:
        rules.set(Rule("acme", "billing", Hold(), where="header.tenant = acme", why="their bank is down"))
        rules.end("billing", "acme")

The members of the group must run with `steered=True`. `headway rules` is the command for the same.
"""

import secrets
import time
from collections.abc import Mapping

from msgspec.structs import replace

from headway.core.rules.rule import (
    RULES_TOPIC,
    Demote,
    Drop,
    ForceCircuit,
    Hold,
    LimitConcurrency,
    LimitRate,
    MakeDeadLetter,
    Release,
    RetryAs,
    Rule,
    SetWeight,
    read_rule,
    rule_key,
)
from headway.errors import ConfigError, UnreadableError
from headway.kafka.keyed.keyed_topic import KeyedTopic
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of

__all__ = [
    "Demote",
    "Drop",
    "ForceCircuit",
    "Hold",
    "LimitConcurrency",
    "LimitRate",
    "MakeDeadLetter",
    "Release",
    "RetryAs",
    "Rule",
    "Rules",
    "SetWeight",
]


class Rules(Closable):
    """Stores, lists and ends the rules of groups.

    The members of a group that run with `steered=True` apply each change within about a second.

        with Rules({"bootstrap.servers": "localhost:9092"}) as rules:
            rules.set(Rule("acme", "billing", Hold(), where="header.tenant = acme", why="their bank is down"))

    `config` has the connection's settings. Not thread-safe.
    """

    def __init__(self, config: Config) -> None:
        self._topic = KeyedTopic(connection_of(config), RULES_TOPIC)

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()

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
        return self._topic.read().values

    def set(self, rule: Rule) -> Rule:
        """Store a rule, in place of a rule with the same id in the same group. Returns the rule as it is stored.

        `since` becomes the current time if it is 0. Raises `ConfigError` if the selector is not valid, or cannot be
        used with the action, and `KafkaError` if Kafka does not store the rule.
        """
        if not rule.group or not rule.id or "/" in rule.id:
            raise ConfigError(
                f"The rule {rule.id!r} of the group {rule.group!r} needs a group, and an id without a '/'."
            )
        rule.check()
        rule = rule if rule.since else replace(rule, since=int(time.time() * 1000))
        self._topic.put(rule.key, rule.encode())
        return rule

    def end(self, group: str, id_: str) -> bool:
        """End a rule. Returns False if there is no such rule."""
        key = rule_key(group, id_)
        if key not in self.stored():
            return False
        self._topic.remove(key)
        return True


def new_rule_id() -> str:
    """Return a short name for a rule for which nobody has chosen one."""
    return f"r-{secrets.token_hex(2)}"


def _rule_or_none(key: str, value: bytes) -> Rule | None:
    try:
        return read_rule(key, value)
    except UnreadableError:
        return None
