"""Selectors against a model, and against text that nobody means."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.selectors.selector import Selector
from headway.errors import ConfigError

Record = dict[str, Any]
Holds = Callable[[Record], bool | None]
Pair = tuple[tuple[str, Holds], tuple[str, Holds]]

TEXTS = st.text(st.sampled_from("ab %_'="), max_size=5)
NUMBERS = st.integers(-5, 5)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[str, Holds]:
    """A comparison as text, and as a Python function of a record that returns True, False or None."""
    value: Any
    if draw(st.booleans()):
        field, value = draw(st.sampled_from(["level", "offset", "attempts"])), draw(NUMBERS)
        constant = str(value)
    else:
        field, value = draw(st.sampled_from(["topic", "tenant", "header.a", "key"])), draw(TEXTS)
        constant = quoted(value)
    of: dict[str, Callable[[Any, Any], bool]] = {
        "=": lambda a, b: a == b,
        "<>": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        ">=": lambda a, b: a >= b,
    }
    kind = draw(st.sampled_from([*of, "null", "in"]))
    if kind == "null":
        return f"{field} is null", lambda record: record.get(field) is None
    if kind == "in":
        return (
            f"{field} not in ({constant})",
            lambda record: None if record.get(field) is None else text_of(record[field]) != value,
        )
    return (
        f"{field} {kind} {constant}",
        lambda record: None if record.get(field) is None else of[kind](text_of(record[field]), value),
    )


def text_of(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def combined(inner: st.SearchStrategy[tuple[str, Holds]]) -> st.SearchStrategy[tuple[str, Holds]]:
    def both(pair: Pair) -> tuple[str, Holds]:
        (a, of_a), (b, of_b) = pair

        def holds(record: Record) -> bool | None:
            found = of_a(record), of_b(record)
            return False if False in found else None if None in found else True

        return f"({a}) AND ({b})", holds

    def either(pair: Pair) -> tuple[str, Holds]:
        (a, of_a), (b, of_b) = pair

        def holds(record: Record) -> bool | None:
            found = of_a(record), of_b(record)
            return True if True in found else None if None in found else False

        return f"{a} or {b}", holds

    def negated(one: tuple[str, Holds]) -> tuple[str, Holds]:
        text, of = one
        return f"not ({text})", lambda record: None if of(record) is None else not of(record)

    pairs = st.tuples(inner, inner)
    return st.one_of(pairs.map(both), pairs.map(either), inner.map(negated))


RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "level": NUMBERS,
        "offset": NUMBERS,
        "attempts": NUMBERS,
        "topic": TEXTS,
        "tenant": TEXTS,
        "key": TEXTS.map(str.encode),
        "header.a": TEXTS.map(str.encode),
    },
)


@given(st.recursive(comparisons(), combined, max_leaves=6), RECORDS)
def test_a_selector_chooses_what_its_meaning_in_python_chooses(condition: tuple[str, Holds], record: Record) -> None:
    text, holds = condition
    assert Selector.parse(text).matches(record.get) is (holds(record) is True)


SCRAPS = ["key", "and", "or", "not", "(", ")", "=", "<", "'a", "'b'", "in", ",", "is", "null", "1h", "x'0"]


@given(st.text(max_size=40) | st.lists(st.sampled_from(SCRAPS)).map(" ".join))
def test_whatever_the_text_is_a_selector_is_parsed_or_refused_with_a_sentence(text: str) -> None:
    with contextlib.suppress(ConfigError):
        Selector.parse(text).matches(lambda field: None)


@given(st.text("ab%_", max_size=8), st.text("ab", max_size=8))
def test_like_means_what_it_means_in_sql(pattern: str, text: str) -> None:
    meaning = "".join({"%": ".*", "_": "."}.get(each, each) for each in pattern)
    matches = re.fullmatch(meaning, text, re.DOTALL) is not None
    assert Selector.parse(f"topic like {quoted(pattern)}").matches({"topic": text}.get) is matches


def test_a_pattern_of_many_wildcards_is_matched_at_once() -> None:
    assert not Selector.parse(f"key like '{'%a' * 900}b'").matches({"key": b"a" * 100_000}.get)


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("header.tenant=acme", {"header.tenant": b"acme"}),
        ("key = 'cust 7'", {"key": b"cust 7"}),
        ("key = x'00ff'", {"key": b"\x00\xff"}),
        ("age > 1.5h", {"age": 5401.0}),
        ("age <= 250ms", {"age": 0.25}),
        ("offset between 5 and 7", {"offset": 7}),
        ("header.'my header' like 'a%'", {"header.my header": b"abc"}),
        ("KEY IS NOT NULL AND NOT LEVEL = 0", {"key": b"", "level": 1}),
        ("topic in (orders, 'to pay')", {"topic": "to pay"}),
        ("tenant != acme", {"tenant": "other"}),
        ("header.x = ''", {"header.x": b""}),
        ("header.url = https://a/b?c", {"header.url": b"https://a/b?c"}),
    ],
)
def test_a_selector_can_be_written_as_in_the_documentation(text: str, record: Record) -> None:
    assert Selector.parse(text).matches(record.get)
    assert not Selector.parse(text).matches(lambda field: None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at its end"),
        ("colour = red", "attempts, error, key"),
        ("level = high", "compared with a number"),
        ("age > 5", "such as 90s"),
        ("key = 'open", "quote"),
        ("key = a key = b", "'and' or 'or'"),
        ("key is", "'null' is expected"),
        ("(key = a", "')' is expected"),
        ("key not = a", "like, in, between"),
        ("topic = x'00'", "is text"),
        ("key = and", "needs quotes"),
        ("offset like '1%'", "number"),
        ("key = a and " * 500 + "key = b", "at most 4000"),
        ("not " * 60 + "key = a", "more than 50"),
    ],
)
def test_a_selector_that_is_not_valid_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        Selector.parse(text)


def test_the_fields_that_must_have_a_value_are_known() -> None:
    selector = Selector.parse("tenant = acme and (key = a or key = b) and not level = 0 and age > 1s")
    assert selector.equalities == {"tenant": "acme"}
    assert selector.fields == {"tenant", "key", "level", "age"}
