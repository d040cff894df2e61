"""What is shown of stored rules, whoever has written them."""

import pytest

from headway.inspection.rules_reader import rule_status
from headway.rules import Hold, Rule


def test_a_rule_is_shown_with_who_why_and_until_when() -> None:
    rule = Rule("r-1", "billing", Hold(), "key = a", "ann", "their bank is down", 1_000, 61_000)
    status = rule_status(rule.key, rule.encode())
    assert (status.group, status.id, status.does, status.where) == ("billing", "r-1", "hold", "key = a")
    assert (status.by, status.why, status.since, status.until) == ("ann", "their bank is down", 1.0, 61.0)
    assert status.problem is None


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b'{"id":"r-1","group":"billing","action":{"do":"teleport"}}', b'{"id":"other","group":"billing"}'],
)
def test_a_rule_that_this_version_does_not_know_is_shown_with_its_name_and_the_reason(value: bytes) -> None:
    status = rule_status("billing/r-1", value)
    assert (status.group, status.id, status.does) == ("billing", "r-1", "")
    assert status.problem is not None
    assert "billing/r-1" in status.problem
