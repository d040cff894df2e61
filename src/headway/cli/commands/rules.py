"""`headway rules`: hold, drop or limit the records of a running group."""

import functools
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from headway.actions.marks import this_user
from headway.cli.display.json_lines import json_option
from headway.cli.display.tables import Column, show_table
from headway.cli.display.texts import local_time
from headway.cli.options.due_times import DUE
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.core.rules.rule import Action
from headway.errors import KafkaError
from headway.rules import (
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
    Rules,
    SetWeight,
    new_rule_id,
)

F = TypeVar("F", bound=Callable[..., Any])

# Members read the rule once, so this must only be longer than their clocks and their connections can be behind.
_RELEASE_LASTS = 600.0


@click.group()
def rules() -> None:
    """Hold, drop or limit the records of a running group, and end such rules.

    A rule applies to the members of a group that run with `steered=True`, within about a second, until it is ended.
    With --where, it chooses records by key, topic, level, partition, offset, tenant, attempts, error, age and
    header.NAME.

    \b
      headway rules hold billing --where "header.tenant = acme" --for 30m --why "their bank is down"
      headway rules rate billing 50 --where "topic = emails"
      headway rules list
      headway rules end billing r-3f2a
    """


@dataclass(frozen=True, slots=True)
class NewRule:
    """The argument and the options that all commands have which make a rule."""

    connection: ConnectionSettings
    group: str
    where: str
    why: str
    lasts: float | None
    id: str | None

    def require_selection(self, what: str) -> None:
        """Raise `UsageError` unless records are selected."""
        if not self.where:
            raise click.UsageError(f"Without --where, this rule would {what} all records of the group. Choose which.")

    def store(self, action: Action) -> Rule:
        """Store a rule with this action, and return it."""
        now = int(time.time() * 1000)
        until = None if self.lasts is None else now + int(self.lasts * 1000)
        by = f"{this_user() or 'unknown'}@{platform.node()}"
        id_ = self.id or new_rule_id()
        with Rules(self.connection.config) as stored:
            return stored.set(Rule(id_, self.group, action, self.where, by, self.why, now, until))

    def apply(self, action: Action) -> None:
        """Store a rule with this action, and show how to end it."""
        rule = self.store(action)
        click.echo(
            f"The rule {rule.id} of the group {rule.group} is stored. End it with: "
            f"headway rules end {rule.group} {rule.id}"
        )


def _makes_rule(command: F) -> F:
    """Add the argument and the options of all commands that make a rule. The command gets them as a `NewRule`."""

    @click.argument("group")
    @click.option("--where", default="", help="Which records, as in: key = 'cust 7' and age > 1h. All by default.")
    @click.option("--why", default="", help="The reason, for people who see the rule.")
    @click.option("--for", "lasts", type=DUE, metavar="DELAY", help="End the rule after this time, such as 30m.")
    @click.option("--id", help="The rule's name. An earlier rule of this name is replaced.")
    @kafka_options
    @functools.wraps(command)
    def with_rule(
        group: str,
        where: str,
        why: str,
        lasts: float | None,
        id: str | None,
        connection: ConnectionSettings,
        **own: Any,
    ) -> Any:
        return command(NewRule(connection, group, where, why, lasts, id), **own)

    return with_rule  # type: ignore[return-value]


@rules.command()
@_makes_rule
@click.option("--lets-pass", is_flag=True, help="Let later records with the same key pass the held ones.")
def hold(new: NewRule, lets_pass: bool) -> None:
    """Keep records from starting. Running records continue. Held records stay in Kafka, and are not done.

    A held record keeps later records of its key waiting, so their order is kept.
    """
    new.apply(Hold(lets_pass))


@rules.command()
@_makes_rule
def drop(new: NewRule) -> None:
    """Mark records as done without calling the handler. They are not handled later."""
    new.require_selection("drop")
    new.apply(Drop())


@rules.command("dead-letter")
@_makes_rule
def dead_letter(new: NewRule) -> None:
    """Make records dead letters without calling the handler. Without a dead_letter_topic, a member holds them."""
    new.apply(MakeDeadLetter())


@rules.command()
@_makes_rule
@click.option("--error", metavar="NAME", help="Only records that failed with this error, such as TimeoutError.")
def release(new: NewRule, error: str | None) -> None:
    """Let records start again that have failed for good and are held, because of `Retries(then="hold")`.

    Each record gets all its attempts again. The members do this once, so what fails again is held again.

    \b
      headway rules release billing --error TimeoutError --where "header.host = bank.example"
    """
    if error is not None:
        of_error = f"error = '{error}'"
        new = replace(new, where=f"{of_error} and ({new.where})" if new.where else of_error)
    # One id for all releases, because a release has no effect once the members have read it.
    rule = replace(new, lasts=new.lasts or _RELEASE_LASTS, id=new.id or "release").store(Release())
    chosen = f"{rule.where!r} chooses" if rule.where else "are held"
    click.echo(f"Each running member of the group {rule.group} lets the records start that {chosen}.")


@rules.command()
@_makes_rule
@click.argument("per_second", type=click.FloatRange(min=0, min_open=True))
def rate(new: NewRule, per_second: float) -> None:
    """Let the whole group start at most PER_SECOND of the records per second."""
    new.apply(LimitRate(per_second))


@rules.command()
@_makes_rule
@click.argument("most", type=click.IntRange(min=1))
def concurrency(new: NewRule, most: int) -> None:
    """Let each member run at most MOST of the records at a time."""
    new.apply(LimitConcurrency(most))


@rules.command()
@_makes_rule
@click.option("--delay", type=DUE, metavar="DELAY", default="1s", show_default=True, help="The wait before each retry.")
@click.option(
    "--max-attempts", type=click.IntRange(min=1), help="Then the record becomes a dead letter. By default never."
)
def retry(new: NewRule, delay: float, max_attempts: int | None) -> None:
    """Change how failed records are retried, as in: --where "error = TimeoutError" --delay 1m."""
    if delay > 86_400:
        raise click.UsageError(f"--delay is {delay:g} s; it can be at most 1d.")
    new.apply(RetryAs(delay, max_attempts))


@rules.command()
@_makes_rule
@click.argument("level", type=click.IntRange(min=0))
def demote(new: NewRule, level: int) -> None:
    """Move records of higher levels to this LEVEL of their topic, where they are handled as other records of it.

    Each record is moved when it would start, in a transaction that also marks it as done.

    \b
      headway rules demote billing 0 --where "tenant = acme" --for 2h
    """
    new.apply(Demote(level))


@rules.command()
@_makes_rule
@click.argument("weight", type=click.FloatRange(min=0, min_open=True))
def weight(new: NewRule, weight: float) -> None:
    """Give tenants a WEIGHT, as in: --where "tenant in (acme, umbrella)". For a rate of a tenant, see `rate`."""
    new.apply(SetWeight(weight))


@rules.command()
@_makes_rule
@click.argument("state", type=click.Choice(["open", "closed"]))
def circuit(new: NewRule, state: str) -> None:
    """Keep the circuit breaker of a handler open, so that one record at a time is tried, or keep it closed.

    When the rule ends, the circuit breaker decides again.
    """
    new.apply(ForceCircuit(state == "open"))


@rules.command("list")
@click.argument("group", required=False)
@json_option("rule")
@kafka_options
def list_(group: str | None, as_json: bool, connection: ConnectionSettings) -> None:
    """List the rules of a group, or of all groups."""
    with Rules(connection.config) as stored:
        found = stored.all(group)
    if as_json:
        for rule in found:
            click.echo(rule.encode().decode())
        return
    if not found:
        click.echo("There are no rules.", err=True)
        return
    titles = ("group", "rule", "does", "where", "since", "until", "by", "why")
    show_table([Column(title, overflow="fold") for title in titles], map(_row, found))


def _row(rule: Rule) -> list[str]:
    until = "it is ended" if rule.until is None else local_time(rule.until)
    return [
        rule.group,
        rule.id,
        rule.does,
        rule.where or "all",
        local_time(rule.since),
        until,
        rule.by,
        rule.why,
    ]


@rules.command()
@click.argument("group")
@click.argument("ids", nargs=-1, required=True, metavar="RULE…")
@kafka_options
def end(group: str, ids: tuple[str, ...], connection: ConnectionSettings) -> None:
    """End rules. Held records can start at once."""
    with Rules(connection.config) as stored:
        missing = [id_ for id_ in ids if not stored.end(group, id_)]
    if missing:
        raise KafkaError(
            f"The group {group} has no rule {', '.join(missing)}. `headway rules list {group}` shows its rules."
        )
    click.echo(f"Ended {', '.join(ids)}.")
