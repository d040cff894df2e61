"""Finds the rules that apply to a record. The time does not depend on the number of rules for keys and tenants."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headway.core.rules.rule import OF_MEMBERS, Rule
from headway.core.selectors.conditions import Constant, FieldValue, ValueOf
from headway.core.selectors.parser import TIME_FIELDS
from headway.core.selectors.selector import Selector

# The fields by which rules are looked up, most selective first. A header is as selective as a tenant.
_KEY, _TENANT, _HEADER = 0, 1, 2
_OTHERS = {"partition": 3, "offset": 3, "topic": 4, "level": 5}


class _ParsedRule(NamedTuple):
    """A rule with its parsed selector."""

    rule: Rule
    selector: Selector | None


class RuleBook:
    """The rules of one group, in the order in which they were made.

    A rule whose selector requires a certain value of a field is found by this value. So a record costs one look-up for
    each field that is used in this way, and only rules without such a field are tried one by one.

    >>> from headway.core.rules.rule import Drop
    >>> book = RuleBook([Rule("r1", "billing", Drop(), "key = a"), Rule("r2", "billing", Drop(), "key = b")])
    >>> [rule.id for rule in book.find({"key": b"b"}.get)]
    ['r2']
    """

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules: Sequence[Rule] = sorted(rules, key=lambda rule: (rule.since, rule.id))
        self._by_value: dict[str, dict[FieldValue, list[_ParsedRule]]] = {}
        self._others: list[_ParsedRule] = []
        fields = set[str]()
        for rule in self.rules:
            if isinstance(rule.action, OF_MEMBERS):
                continue
            selector = rule.selector
            fields.update(selector.fields if selector else ())
            self._add(_ParsedRule(rule, selector))
        self.fields = frozenset(fields)
        """The fields that the selectors read."""

    def __bool__(self) -> bool:
        """Return whether there are any rules."""
        return bool(self.rules)

    @property
    def values(self) -> Mapping[str, Mapping[FieldValue, object]] | None:
        """For each field by which all rules are looked up, the values that they require. None if others exist.

        A rule can only apply to a record that has one of these values.
        """
        return None if self._others else self._by_value

    def find(self, value_of: ValueOf) -> Sequence[Rule]:
        """Return the rules that apply to a record, in the order in which they were made.

        Rules for members, such as those for circuits, apply to no record.
        """
        candidates = list(self._others)
        for field, by_value in self._by_value.items():
            candidates += by_value.get(value_of(field), ())
        found = [parsed for parsed in candidates if parsed.selector is None or parsed.selector.matches(value_of)]
        if len(found) > 1:
            found.sort(key=lambda parsed: (parsed.rule.since, parsed.rule.id))
        return [parsed.rule for parsed in found]

    def next_end(self) -> int | None:
        """Return when the first rule ends by itself, in milliseconds since the epoch, or None."""
        return min((rule.until for rule in self.rules if rule.until is not None), default=None)

    def _add(self, parsed: _ParsedRule) -> None:
        equalities: Mapping[str, Constant] = parsed.selector.equalities if parsed.selector else {}
        # A record's age changes while it waits, so it is compared and not looked up.
        field = min(equalities.keys() - TIME_FIELDS, key=_selectivity, default=None)
        if field is None:
            self._others.append(parsed)
            return
        constant = equalities[field]
        is_bytes = _selectivity(field) in (_KEY, _HEADER)
        value = constant.encode() if is_bytes and isinstance(constant, str) else constant
        self._by_value.setdefault(field, {}).setdefault(value, []).append(parsed)


def _selectivity(field: str) -> int:
    if field == "key":
        return _KEY
    if field == "tenant":
        return _TENANT
    return _HEADER if field.startswith("header.") else _OTHERS.get(field, 6)
