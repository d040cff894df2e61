"""Parses the text of a selector: the syntax of JMS message selectors, which is the part of SQL-92 for conditions.

Grammar, in which keywords have any case:

    condition   = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = ["not"] ("(" condition ")" | comparison)
    comparison  = field (operator constant | "is" ["not"] "null"
                  | ["not"] ("like" text | "in" "(" constant {"," constant} ")" | "between" constant "and" constant))

Source: Jakarta Messaging 3.1, section 3.8.1, Message selector.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headway.core.duration import parse_duration
from headway.core.selectors.conditions import (
    OPERATORS,
    All,
    AnyOf,
    Comparison,
    Condition,
    Constant,
    IsNull,
    Like,
    Not,
    OneOf,
)
from headway.errors import ConfigError

LONGEST = 4_000
"""The maximum length of a selector in characters."""

TEXT_FIELDS = {"topic", "tenant", "error"}
BYTES_FIELDS = {"key"}
NUMBER_FIELDS = {"level", "partition", "offset", "attempts"}
TIME_FIELDS = {"age"}
HEADER = "header."
_FIELDS = TEXT_FIELDS | BYTES_FIELDS | NUMBER_FIELDS | TIME_FIELDS

_DEEPEST = 50  # parentheses and negations within each other
_KEYWORDS = {"and", "or", "not", "is", "null", "like", "in", "between"}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<header>header\.'(?:[^']|'')+')     # header.'its name', if the name has unusual characters
    | (?P<hex>[xX]'(?:[0-9a-fA-F]{2})*')   # x'00ff': bytes
    | (?P<text>'(?:[^']|'')*')
    | (?P<operator><>|!=|<=|>=|[=<>])
    | (?P<sign>[(),])
    | (?P<word>[^\s()=<>!,']+)
    )""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class _Lexeme(NamedTuple):
    kind: str
    text: str
    position: int


class _Lexemes:
    """The tokens of a selector, with the next one in sight."""

    def __init__(self, text: str) -> None:
        self.selector = text
        self._tokens = list(_scan(text))
        self._next = 0

    @property
    def next(self) -> _Lexeme:
        return self._tokens[self._next]

    def take(self) -> _Lexeme:
        token = self.next
        if token.kind != "end":
            self._next += 1
        return token

    def take_if(self, *words: str) -> bool:
        """Take the next token if it is one of these keywords or signs."""
        found = self.next.kind in ("word", "sign") and self.next.text.lower() in words
        if found:
            self.take()
        return found

    def expect(self, word: str) -> None:
        if not self.take_if(word):
            raise self.error(f"{word!r} is expected", self.next)

    def error(self, problem: str, token: _Lexeme) -> ConfigError:
        where = "at its end" if token.kind == "end" else f"at {token.text!r}, character {token.position + 1}"
        return ConfigError(
            f"The selector {self.selector!r} is not valid {where}: {problem}. An example of a selector is: "
            "header.tenant = 'acme' and age > 1h"
        )


def parse_condition(text: str) -> Condition:
    """Parse the text of a selector. Raises `ConfigError` if it is not valid."""
    if len(text) > LONGEST:
        raise ConfigError(f"The selector has {len(text)} characters; it can have at most {LONGEST}.")
    tokens = _Lexemes(text)
    condition = _condition(tokens, 0)
    if tokens.next.kind != "end":
        raise tokens.error("'and' or 'or' is expected", tokens.next)
    return condition


def _scan(text: str) -> Iterator[_Lexeme]:
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            rest = text[position:].lstrip()
            raise ConfigError(
                f"The selector {text!r} cannot be read from {rest[:20]!r} on, character "
                f"{len(text) - len(rest) + 1}. Is a quote missing?"
            )
        yield _Lexeme(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))
        position = found.end()
    yield _Lexeme("end", "", end)


def _condition(tokens: _Lexemes, depth: int) -> Condition:
    found = [_conjunction(tokens, depth)]
    while tokens.take_if("or"):
        found.append(_conjunction(tokens, depth))
    return found[0] if len(found) == 1 else AnyOf(tuple(found))


def _conjunction(tokens: _Lexemes, depth: int) -> Condition:
    found = [_negation(tokens, depth)]
    while tokens.take_if("and"):
        found.append(_negation(tokens, depth))
    return found[0] if len(found) == 1 else All(tuple(found))


def _negation(tokens: _Lexemes, depth: int) -> Condition:
    if depth > _DEEPEST:
        raise tokens.error(f"there are more than {_DEEPEST} parentheses and negations within each other", tokens.next)
    if tokens.take_if("not"):
        return Not(_negation(tokens, depth + 1))
    if tokens.take_if("("):
        condition = _condition(tokens, depth + 1)
        tokens.expect(")")
        return condition
    return _comparison(tokens)


def _comparison(tokens: _Lexemes) -> Condition:
    field = _field(tokens)
    operator = tokens.next
    if operator.kind == "operator":
        tokens.take()
        name = "<>" if operator.text == "!=" else operator.text
        return Comparison(field, name, _constant(tokens, field))
    if tokens.take_if("is"):
        return _negated(tokens.take_if("not"), _null(tokens, field))
    negated = tokens.take_if("not")
    for word, rest in _AFTER_NOT.items():
        if tokens.take_if(word):
            return _negated(negated, rest(tokens, field))
    wanted = ", ".join([*OPERATORS, "is null", *_AFTER_NOT])
    raise tokens.error(f"one of {wanted} is expected", tokens.next)


def _negated(negated: bool, condition: Condition) -> Condition:
    return Not(condition) if negated else condition


def _null(tokens: _Lexemes, field: str) -> Condition:
    tokens.expect("null")
    return IsNull(field)


def _like(tokens: _Lexemes, field: str) -> Condition:
    token = tokens.next
    pattern = _constant(tokens, field)
    if not isinstance(pattern, str):
        raise tokens.error(f"{field} has no text that a pattern could match", token)
    return Like(field, pattern)


def _one_of(tokens: _Lexemes, field: str) -> Condition:
    tokens.expect("(")
    constants = [_constant(tokens, field)]
    while tokens.take_if(","):
        constants.append(_constant(tokens, field))
    tokens.expect(")")
    return OneOf(field, tuple(constants))


def _between(tokens: _Lexemes, field: str) -> Condition:
    least = _constant(tokens, field)
    tokens.expect("and")
    return All((Comparison(field, ">=", least), Comparison(field, "<=", _constant(tokens, field))))


_AFTER_NOT: dict[str, Callable[[_Lexemes, str], Condition]] = {"like": _like, "in": _one_of, "between": _between}


def _field(tokens: _Lexemes) -> str:
    token = tokens.take()
    if token.kind == "header":
        return HEADER + _unquoted(token.text.removeprefix(HEADER))
    if token.kind == "word":
        name = token.text
        if name.lower() in _FIELDS:
            return name.lower()
        if name.lower().startswith(HEADER) and len(name) > len(HEADER):
            return HEADER + name[len(HEADER) :]
    known = ", ".join(sorted(_FIELDS))
    raise tokens.error(f"the name of a field is expected: {known}, or header.NAME", token)


def _constant(tokens: _Lexemes, field: str) -> Constant:
    """Take a constant that can be compared with the field. Text without spaces needs no quotes."""
    token = tokens.take()
    if token.kind not in ("word", "text", "hex") or (token.kind == "word" and token.text.lower() in _KEYWORDS):
        raise tokens.error("a value is expected. Text that contains a keyword or a sign needs quotes", token)
    if field in NUMBER_FIELDS:
        if not _NUMBER.fullmatch(token.text):
            raise tokens.error(f"{field} is compared with a number", token)
        return float(token.text) if "." in token.text else int(token.text)
    if field in TIME_FIELDS:
        if (seconds := parse_duration(token.text)) is None:
            raise tokens.error(f"{field} is compared with a time: a number and a unit, such as 90s, 5m or 2h", token)
        return seconds
    if token.kind == "hex":
        if field in TEXT_FIELDS:
            raise tokens.error(f"{field} is text, which has no bytes", token)
        return bytes.fromhex(token.text[2:-1])
    return _unquoted(token.text) if token.kind == "text" else token.text


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
