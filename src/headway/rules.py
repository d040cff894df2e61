"""Rules, with which operators hold, drop or limit the records of a running group.

    from headway.rules import Hold, Rule, Rules

    with Rules({"bootstrap.servers": "localhost:9092"}) as rules:
        rules.set(Rule("acme", "billing", Hold(), where="header.tenant = acme", why="their bank is down"))
        rules.end("billing", "acme")

The members of the group must run with `rules=True`. `headway rules` is the command for the same.
"""

from headway.core.rules.rule import Drop, Hold, LimitConcurrency, LimitRate, MakeDeadLetter, RetryAs, Rule
from headway.kafka.rules_topic import Rules

__all__ = ["Drop", "Hold", "LimitConcurrency", "LimitRate", "MakeDeadLetter", "RetryAs", "Rule", "Rules"]
