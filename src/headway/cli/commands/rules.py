"""`headway rules`: hold, drop or limit the records of a running group."""

import platform
import time
from collections.abc import Callable
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
from headway.rules import Drop, Hold, LimitConcurrency, LimitRate, MakeDeadLetter, RetryAs, Rule, Rules, new_rule_id

F = TypeVar("F", bound=Callable[..., Any])


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


def _rule_options(function: F) -> F:
    """Add the argument and the options of all commands that make a rule."""
    for option in reversed(
        [
            click.argument("group"),
            click.option(
                "--where", default="", help="Which records, as in: key = 'cust 7' and age > 1h. All by default."
            ),
            click.option("--why", default="", help="The reason, for people who see the rule."),
            click.option(
                "--for", "lasts", type=DUE, metavar="DELAY", help="End the rule after this time, such as 30m."
            ),
            click.option("--id", "id_", help="The rule's name. An earlier rule of this name is replaced."),
        ]
    ):
        function = option(function)
    return kafka_options(function)


def _set(
    connection: ConnectionSettings,
    group: str,
    action: Action,
    where: str,
    why: str,
    lasts: float | None,
    id_: str | None,
) -> None:
    now = int(time.time() * 1000)
    until = None if lasts is None else now + int(lasts * 1000)
    by = f"{this_user() or 'unknown'}@{platform.node()}"
    rule = Rule(id_ or new_rule_id(), group, action, where, by, why, now, until)
    with Rules(connection.config) as stored:
        stored.set(rule)
    click.echo(f"The rule {rule.id} of the group {group} is stored. End it with: headway rules end {group} {rule.id}")


@rules.command()
@click.option("--lets-pass", is_flag=True, help="Let later records with the same key pass the held ones.")
@_rule_options
def hold(
    group: str,
    where: str,
    why: str,
    lasts: float | None,
    id_: str | None,
    lets_pass: bool,
    connection: ConnectionSettings,
) -> None:
    """Keep records from starting. Running records continue. Held records stay in Kafka, and are not done.

    A held record keeps later records of its key waiting, so their order is kept.
    """
    _set(connection, group, Hold(lets_pass), where, why, lasts, id_)


@rules.command()
@_rule_options
def drop(
    group: str, where: str, why: str, lasts: float | None, id_: str | None, connection: ConnectionSettings
) -> None:
    """Mark records as done without calling the handler. They are not handled later."""
    if not where:
        raise click.UsageError(
            "Without --where, this rule would drop all records of the group. Choose which, or use hold."
        )
    _set(connection, group, Drop(), where, why, lasts, id_)


@rules.command("dead-letter")
@_rule_options
def dead_letter(
    group: str, where: str, why: str, lasts: float | None, id_: str | None, connection: ConnectionSettings
) -> None:
    """Make records dead letters without calling the handler. Without a dead_letter_topic, a member holds them."""
    _set(connection, group, MakeDeadLetter(), where, why, lasts, id_)


@rules.command()
@_rule_options
@click.argument("per_second", type=click.FloatRange(min=0, min_open=True))
def rate(
    group: str,
    per_second: float,
    where: str,
    why: str,
    lasts: float | None,
    id_: str | None,
    connection: ConnectionSettings,
) -> None:
    """Let the whole group start at most PER_SECOND of the records per second."""
    _set(connection, group, LimitRate(per_second), where, why, lasts, id_)


@rules.command()
@_rule_options
@click.argument("most", type=click.IntRange(min=1))
def concurrency(
    group: str, most: int, where: str, why: str, lasts: float | None, id_: str | None, connection: ConnectionSettings
) -> None:
    """Let each member run at most MOST of the records at a time."""
    _set(connection, group, LimitConcurrency(most), where, why, lasts, id_)


@rules.command()
@click.option("--delay", type=DUE, metavar="DELAY", default="1s", show_default=True, help="The wait before each retry.")
@click.option(
    "--max-attempts", type=click.IntRange(min=1), help="Then the record becomes a dead letter. By default never."
)
@_rule_options
def retry(
    group: str,
    delay: float,
    max_attempts: int | None,
    where: str,
    why: str,
    lasts: float | None,
    id_: str | None,
    connection: ConnectionSettings,
) -> None:
    """Change how failed records are retried, as in: --where "error = TimeoutError" --delay 1m."""
    if delay > 86_400:
        raise click.UsageError(f"--delay is {delay:g} s; it can be at most 1d.")
    _set(connection, group, RetryAs(delay, max_attempts), where, why, lasts, id_)


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
