"""A rule book against the rules tried one by one."""

import contextlib
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.rules.rule import Drop, Hold, LimitConcurrency, LimitRate, MakeDeadLetter, RetryAs, Rule, read_rule
from headway.core.rules.rule_book import RuleBook
from headway.errors import UnreadableError

CONDITIONS = st.sampled_from(
    [
        "key = a",
        "key = b",
        "tenant = a",
        "header.x = a",
        "level = 1",
        "offset > 2",
        "not key = a",
        "(topic = a or level = 1)",
    ]
)
ACTIONS = st.sampled_from(
    [Hold(), Hold(True), Drop(), MakeDeadLetter(), LimitRate(1.5), LimitConcurrency(2), RetryAs(1.0, 3)]
)
RULES = st.builds(
    Rule,
    id=st.uuids().map(str),
    group=st.just("g"),
    action=ACTIONS,
    where=st.lists(CONDITIONS, max_size=3).map(" and ".join),
    since=st.integers(0, 3),
    until=st.none() | st.integers(0, 10),
)
RECORDS = st.fixed_dictionaries(
    {"level": st.integers(0, 1), "offset": st.integers(0, 4), "topic": st.sampled_from("ab")},
    optional={
        "key": st.sampled_from([b"a", b"b", b"c"]),
        "tenant": st.sampled_from("ab"),
        "header.x": st.sampled_from([b"a", b"b"]),
    },
)


@given(st.lists(RULES, max_size=12), RECORDS)
def test_a_book_finds_the_rules_whose_selectors_choose_the_record(rules: list[Rule], record: dict[str, Any]) -> None:
    chosen = [rule for rule in rules if rule.selector is None or rule.selector.matches(record.get)]
    assert list(RuleBook(rules).find(record.get)) == sorted(chosen, key=lambda rule: (rule.since, rule.id))


@given(RULES)
def test_a_rule_is_read_as_it_was_written(rule: Rule) -> None:
    assert read_rule(rule.key, rule.encode()) == rule


PARTS = st.dictionaries(st.sampled_from(["id", "group", "action", "where", "do"]), st.text())


@given(st.binary(max_size=200) | PARTS.map(msgspec.json.encode))
def test_whatever_is_in_the_topic_is_a_rule_or_refused(value: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        read_rule("g/a", value)


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":"a","group":"g","action":{"do":"explode"}}',
        b'{"id":"a","group":"g","action":{"do":"rate","per_second":0}}',
        b'{"id":"a","group":"g","action":{"do":"drop"},"where":"colour = red"}',
        b'{"id":"b","group":"g","action":{"do":"drop"}}',
        b'{"id":"a","group":"g","action":{"do":"drop"},"more":1}',
    ],
)
def test_a_rule_that_this_version_does_not_know_is_refused_with_its_key(value: bytes) -> None:
    with pytest.raises(UnreadableError, match="'g/a'"):
        read_rule("g/a", value)


def test_a_thousand_rules_for_keys_cost_a_record_little_more_than_one() -> None:
    record: dict[str, Any] = {"key": b"none of them"}

    def seconds(book: RuleBook) -> float:
        def once() -> float:
            began = time.process_time()
            for _ in range(1000):
                book.find(record.get)
            return time.process_time() - began

        return min(once() for _ in range(5))

    one, many = (
        RuleBook([Rule(str(number), "g", Drop(), f"key = {number}") for number in range(count)]) for count in (1, 1000)
    )
    assert seconds(many) < 3 * seconds(one)
