"""A rule: what the members of a group do with the records that a selector chooses.

Rules are stored as JSON in a topic. Members of several versions read them, so a member that does not know an action
ignores the rule and logs an error. The text of an action (`str`) is for lists of rules.
"""

from typing import Annotated

import msgspec

from headway.core.selectors.selector import Selector
from headway.core.untrusted import Text, Time, read_json
from headway.errors import ConfigError, UnreadableError

RULES_TOPIC = "headway-rules"
"""The compacted topic in which the rules of all groups are stored."""

LONGEST_SELECTOR = 4_000
"""The highest number of characters of a rule's selector."""

_LongText = Annotated[str, msgspec.Meta(max_length=LONGEST_SELECTOR)]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e12)]
_Whole = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class Hold(msgspec.Struct, frozen=True, tag="hold", tag_field="do", forbid_unknown_fields=True):
    """Records do not start, and stay incomplete in the offset map.

    A held record blocks the later records of its lane. If `lets_pass` is True, later records of the lane pass it.
    """

    lets_pass: bool = False

    def __str__(self) -> str:
        return "hold, others pass" if self.lets_pass else "hold"


class Drop(msgspec.Struct, frozen=True, tag="drop", tag_field="do", forbid_unknown_fields=True):
    """Records are done without a call of the handler."""

    def __str__(self) -> str:
        return "drop"


class MakeDeadLetter(msgspec.Struct, frozen=True, tag="dead-letter", tag_field="do", forbid_unknown_fields=True):
    """Records become dead letters without a call of the handler."""

    def __str__(self) -> str:
        return "dead letter"


class LimitRate(msgspec.Struct, frozen=True, tag="rate", tag_field="do", forbid_unknown_fields=True):
    """The whole group starts at most this many of the records per second."""

    per_second: _Positive

    def __str__(self) -> str:
        return f"{self.per_second:g}/s"


class LimitConcurrency(msgspec.Struct, frozen=True, tag="concurrency", tag_field="do", forbid_unknown_fields=True):
    """Each member runs at most this many of the records at a time."""

    most: _Whole

    def __str__(self) -> str:
        return f"{self.most} at a time"


class RetryAs(msgspec.Struct, frozen=True, tag="retry", tag_field="do", forbid_unknown_fields=True):
    """Failed attempts are retried after `delay` seconds, and at most `max_attempts` attempts are made."""

    delay: Annotated[float, msgspec.Meta(ge=0, le=86_400)]
    max_attempts: _Whole | None = None

    def __str__(self) -> str:
        attempts = f", {self.max_attempts} attempts" if self.max_attempts else ""
        return f"retry after {self.delay:g} s{attempts}"


class Release(msgspec.Struct, frozen=True, tag="release", tag_field="do", forbid_unknown_fields=True):
    """Records that have failed for good and are held in their place start again.

    Each member does this once, when it reads the rule. Records that are held afterwards are not released.
    """

    def __str__(self) -> str:
        return "release"


class Demote(msgspec.Struct, frozen=True, tag="demote", tag_field="do", forbid_unknown_fields=True):
    """Records of higher levels are moved to this level of their topic, in one transaction each."""

    level: Annotated[int, msgspec.Meta(ge=0, lt=1000)]

    def __str__(self) -> str:
        return f"move to level {self.level}"


class SetWeight(msgspec.Struct, frozen=True, tag="weight", tag_field="do", forbid_unknown_fields=True):
    """The tenants that the selector chooses have this weight."""

    weight: _Positive

    def __str__(self) -> str:
        return f"weight {self.weight:g}"


class ForceCircuit(msgspec.Struct, frozen=True, tag="circuit", tag_field="do", forbid_unknown_fields=True):
    """The circuit breaker of the handler stays open, so that one record at a time is tried, or stays closed."""

    is_open: bool

    def __str__(self) -> str:
        return f"circuit {'open' if self.is_open else 'closed'}"


Action = (
    Hold | Drop | MakeDeadLetter | LimitRate | LimitConcurrency | RetryAs | Release | Demote | SetWeight | ForceCircuit
)

OF_MEMBERS = (Release, SetWeight, ForceCircuit)
"""The actions that concern a member as a whole. They are not looked up for each record."""


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the members of a group do with the records that a selector chooses.

    Attributes:
        id: The name of the rule, which is unique in its group.
        group: The group of the handler, without the level.
        action: What to do.
        where: The text of the selector. An empty text chooses all records of the group.
        by: Who made the rule.
        why: The reason.
        since: When the rule was made, in milliseconds since the epoch.
        until: When the rule ends by itself, in milliseconds since the epoch, or None.
    """

    id: Text
    group: Text
    action: Action
    where: _LongText = ""
    by: Text = ""
    why: Text = ""
    since: Time = 0
    until: Time | None = None

    @property
    def key(self) -> str:
        """The key of the rule's record."""
        return rule_key(self.group, self.id)

    @property
    def selector(self) -> Selector | None:
        """The selector, or None if the rule applies to all records."""
        return Selector.parse(self.where) if self.where else None

    @property
    def does(self) -> str:
        """What the rule does, in a few words."""
        return str(self.action)

    def check(self) -> None:
        """Raise `ConfigError` if the selector is not valid, or cannot be used with this action."""
        fields = self.selector.fields if self.selector else frozenset[str]()
        if isinstance(self.action, SetWeight) and fields != {"tenant"}:
            raise ConfigError(
                f"The rule {self.id!r} sets a weight, so its selector must choose tenants, and by nothing else, as in: "
                "tenant = acme."
            )
        if isinstance(self.action, ForceCircuit) and fields:
            raise ConfigError(
                f"The rule {self.id!r} is for the circuit of the handler, which all records share, so it cannot have a "
                "selector."
            )

    def encode(self) -> bytes:
        """Encode the rule for its topic."""
        return msgspec.json.encode(self)

    def is_over(self, now: int) -> bool:
        """Return whether the rule has ended by this time, in milliseconds since the epoch."""
        return self.until is not None and self.until <= now


_decoder = msgspec.json.Decoder(Rule)


def rule_key(group: str, id_: str) -> str:
    """Return the key of a rule's record.

    >>> rule_key("billing", "r1")
    'billing/r1'
    """
    return f"{group}/{id_}"


def read_rule(key: str, value: bytes) -> Rule:
    """Decode a rule from its record.

    Raises:
        UnreadableError: The value is not a rule, is a rule of a later version, or is under the key of another rule.
    """
    rule = read_json(value, _decoder, f"The rule {key[:200]!r}")
    if rule.key != key:
        raise UnreadableError(f"The rule {key[:200]!r} cannot be used: its record has the key of another rule.")
    try:
        rule.check()
    except ConfigError as error:
        raise UnreadableError(f"The rule {key[:200]!r} cannot be used: {error}") from error
    return rule
