"""The conditions of a selector, which compare the fields of a record with constants.

A condition is true, false or unknown (None), as in SQL: a comparison with a field that a record does not have is
unknown, and so is its negation. A record is selected only if the condition is true.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

FieldValue = str | bytes | int | float | None
"""A field's value in a record. Keys and header values are bytes, and None means that the record has no such field."""

ValueOf = Callable[[str], FieldValue]
"""Returns a record's value of a field, or None if the record does not have the field."""

Constant = str | bytes | int | float

OPERATORS: Mapping[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}
"""For each operator, whether it holds for two values, of which the order is negative, zero or positive."""


class Condition(Protocol):
    """A condition on a record."""

    def holds(self, value_of: ValueOf) -> bool | None:
        """Return whether the condition is true for a record, or None if this is unknown."""

    def fields(self) -> Iterator[str]:
        """Yield the fields that the condition reads."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares a field with a constant."""

    field: str
    operator: str
    constant: Constant

    def holds(self, value_of: ValueOf) -> bool | None:
        order = _order(value_of(self.field), self.constant)
        return None if order is None else OPERATORS[self.operator](order)

    def fields(self) -> Iterator[str]:
        yield self.field


@dataclass(frozen=True, slots=True)
class OneOf:
    """Is true if a field has one of several values."""

    field: str
    constants: Sequence[Constant]

    def holds(self, value_of: ValueOf) -> bool | None:
        value = value_of(self.field)
        return None if value is None else any(_order(value, each) == 0 for each in self.constants)

    def fields(self) -> Iterator[str]:
        yield self.field


@dataclass(frozen=True, slots=True)
class Like:
    """Is true if a field matches a pattern, in which % stands for any text and _ for any character."""

    field: str
    pattern: str

    def holds(self, value_of: ValueOf) -> bool | None:
        value = value_of(self.field)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        return _is_like(value, self.pattern) if isinstance(value, str) else None

    def fields(self) -> Iterator[str]:
        yield self.field


@dataclass(frozen=True, slots=True)
class IsNull:
    """Is true if a record does not have a field."""

    field: str

    def holds(self, value_of: ValueOf) -> bool | None:
        return value_of(self.field) is None

    def fields(self) -> Iterator[str]:
        yield self.field


@dataclass(frozen=True, slots=True)
class Not:
    """Negates a condition. The negation of an unknown condition is unknown."""

    condition: Condition

    def holds(self, value_of: ValueOf) -> bool | None:
        found = self.condition.holds(value_of)
        return None if found is None else not found

    def fields(self) -> Iterator[str]:
        yield from self.condition.fields()


@dataclass(frozen=True, slots=True)
class All:
    """Is true if all conditions are true, and false if any condition is false."""

    conditions: Sequence[Condition]

    def holds(self, value_of: ValueOf) -> bool | None:
        unknown = False
        for condition in self.conditions:
            found = condition.holds(value_of)
            if found is False:
                return False
            unknown |= found is None
        return None if unknown else True

    def fields(self) -> Iterator[str]:
        for condition in self.conditions:
            yield from condition.fields()


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Is true if any condition is true, and false if all conditions are false."""

    conditions: Sequence[Condition]

    def holds(self, value_of: ValueOf) -> bool | None:
        unknown = False
        for condition in self.conditions:
            found = condition.holds(value_of)
            if found:
                return True
            unknown |= found is None
        return None if unknown else False

    def fields(self) -> Iterator[str]:
        for condition in self.conditions:
            yield from condition.fields()


def _order(value: FieldValue, constant: Constant) -> int | None:
    """Return a negative number, 0 or a positive number for the order of two values, or None if there is no order."""
    if isinstance(value, bytes) and isinstance(constant, str):
        constant = constant.encode()
    if isinstance(value, bytes) and isinstance(constant, bytes):
        return (value > constant) - (value < constant)
    if isinstance(value, str) and isinstance(constant, str):
        return (value > constant) - (value < constant)
    if isinstance(value, int | float) and isinstance(constant, int | float):
        return (value > constant) - (value < constant)
    return None


def _is_like(text: str, pattern: str) -> bool:
    """Match a pattern in time proportional to the product of the lengths, whatever the pattern is."""
    at = place = 0  # the next character of the text, and of the pattern
    after_any = resume = -1  # the place after the last %, and where in the text its next try begins
    while at < len(text):
        if place < len(pattern) and pattern[place] == "%":
            place += 1
            after_any, resume = place, at
        elif place < len(pattern) and pattern[place] in ("_", text[at]):
            place += 1
            at += 1
        elif after_any >= 0:
            resume += 1
            place, at = after_any, resume
        else:
            return False
    return not pattern[place:].strip("%")
