"""A selector: a condition that chooses records, as in `header.tenant = 'acme' and age > 1h`."""

from collections.abc import Iterator, Mapping
from typing import Self

from headway.core.selectors.conditions import All, Comparison, Condition, Constant, ValueOf
from headway.core.selectors.parser import parse_condition


class Selector:
    """Chooses records by a condition on their fields, in the syntax of JMS message selectors.

    The fields are `key`, `topic`, `level`, `partition`, `offset`, `tenant`, `attempts`, `error`, `age` and
    `header.NAME`. Text constants have single quotes, which can be left out if the text has no spaces and signs.
    A comparison with a field that a record does not have is never true.

    >>> selector = Selector.parse("header.tenant = acme and age > 1h")
    >>> selector.matches({"header.tenant": b"acme", "age": 4000.0}.get)
    True
    >>> selector.matches({"age": 4000.0}.get)
    False
    """

    def __init__(self, text: str, condition: Condition) -> None:
        self._condition = condition
        self.text = text
        """The text from which the selector was parsed."""
        self.fields = frozenset(condition.fields())
        """The names of the fields that the condition reads."""
        self.equalities: Mapping[str, Constant] = dict(_equalities(condition))
        """The fields that have a certain value in each record that matches, with that value."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a selector. Raises `ConfigError`, which says at which character the text is not valid."""
        return cls(text, parse_condition(text))

    def matches(self, value_of: ValueOf) -> bool:
        """Return whether the selector chooses a record. `value_of` returns the record's value of a field."""
        return self._condition.holds(value_of) is True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self._condition == other._condition

    def __hash__(self) -> int:
        return hash(self._condition)

    def __repr__(self) -> str:
        return f"Selector.parse({self.text!r})"


def equality(field: str, value: bytes | str) -> str:
    """Return the text of the condition that a field has a value.

    >>> equality("key", b"ann's"), equality("key", bytes([255]))
    ("key = 'ann''s'", "key = x'ff'")
    """
    try:
        text = value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as error:
        return f"{field} = x'{error.object.hex()}'"
    return f"{field} = '" + text.replace("'", "''") + "'"


def _equalities(condition: Condition) -> Iterator[tuple[str, Constant]]:
    if isinstance(condition, Comparison) and condition.operator == "=":
        yield condition.field, condition.constant
    elif isinstance(condition, All):
        for each in condition.conditions:
            yield from _equalities(each)
