"""`headway acls`: shows the commands that grant the permissions of a role, or checks which permissions are missing."""

import functools
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from headway.cli.commands.levels import LEVELS
from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.display.terminal import count
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.core.levels.naming import groups_of, is_topic_name, level_topic
from headway.core.permissions import Permission, check_principal, kafka_acls, least
from headway.core.rate_loans import rates_topic
from headway.core.roles import literal_beginning, permissions_of
from headway.delay.topic_names import DEFAULT_NAME
from headway.errors import ConfigError
from headway.kafka.own_permissions import Finding, OwnPermissions, Presence
from headway.workers.find_workers import find_workers
from headway.workers.worker import Worker

_MARKERS = "headway-markers"

PermissionsCommand = Callable[..., Iterable[Permission]]


@click.group()
def acls() -> None:
    """Show the permissions (ACLs) that a role needs, as commands that grant them.

    \b
      headway acls producer orders --levels 3 --principal User:shop
      headway acls worker billing:bill --principal User:billing
      headway acls relay orders-0 orders-1 orders-2 --principal User:relay

    With --check, the command instead checks which of these permissions the login in --config-file has, and lists the
    permissions that are missing or cannot be determined. The exit code is 1 if a permission is missing.

    \b
      headway acls worker billing:bill --check --config-file billing.properties
    """


def _role(command: PermissionsCommand) -> Callable[..., None]:
    """Turn a function that returns the permissions of a role into the command that shows or checks them."""

    @click.option("--principal", metavar="User:NAME", help="The principal that gets the permissions, such as User:app.")
    @click.option("--check", is_flag=True, help="List permissions that the login in --config-file lacks.")
    @json_option()
    @kafka_options
    @functools.wraps(command)
    def shown(
        *args: Any, principal: str | None, check: bool, as_json: bool, connection: ConnectionSettings, **kwargs: Any
    ) -> None:
        permissions = least(command(*args, **kwargs))
        if check:
            if principal is not None:
                raise click.UsageError(
                    "--check checks the permissions of the login in --config-file. Leave out --principal."
                )
            _show_findings(OwnPermissions(connection.config).check(permissions), as_json)
        elif principal is None:
            raise click.UsageError(
                "Add --principal User:NAME, which gets the permissions, or --check to check the login in --config-file."
            )
        else:
            _show_commands(
                permissions, check_principal(principal), str(connection.config["bootstrap.servers"]), as_json
            )

    return shown


_LEVELS = click.option("--levels", type=LEVELS, help="The number of levels of the topics. By default they have none.")
_GROUP = click.option(
    "--group", required=True, help="The group that reads. With --levels, there is one group per level."
)
_ONE_GROUP = click.option("--one-group", is_flag=True, help="One group reads all levels.")
_SCHEDULER = click.option("--scheduler", default=DEFAULT_NAME, show_default=True, help="The scheduler's name.")
_NAME = click.option("--name", "scheduler", default=DEFAULT_NAME, show_default=True, help="The scheduler's name.")
_DUE = click.option("--due", is_flag=True, help="Some records are sent with a delay.")
_RETRY_LATER = click.option("--retry-later", is_flag=True, help="The handlers raise RetryLater.")
_CREATE = click.option("--create", is_flag=True, help="Include permissions to create the topics on first use.")
_TOPICS = click.argument("topics", nargs=-1, required=True, metavar="TOPIC…")


@acls.command()
@_TOPICS
@_LEVELS
@click.option("--transactional-id", metavar="ID", help="The producer's transactional.id.")
@_DUE
@_SCHEDULER
@_role
def producer(
    topics: Sequence[str], levels: int | None, transactional_id: str | None, due: bool, scheduler: str
) -> Iterable[Permission]:
    """Show the permissions of a `Producer` and `headway produce`.

    \b
      headway acls producer orders --levels 3 --principal User:shop
    """
    names = {
        "topic": _kafka_topics(topics, levels),
        "transactional id": [transactional_id] if transactional_id else [],
        "scheduler": [_named(scheduler)],
    }
    return permissions_of("producer", _cases(transactional=transactional_id, due=due), names)


@acls.command()
@_TOPICS
@_LEVELS
@_GROUP
@_ONE_GROUP
@_role
def consumer(topics: Sequence[str], levels: int | None, group: str, one_group: bool) -> Iterable[Permission]:
    """Show the permissions of a `PriorityConsumer` and `headway consume`.

    \b
      headway acls consumer orders --levels 3 --group billing --principal User:billing
    """
    groups = groups_of(group, levels, per_level=not one_group)
    return permissions_of("consumer", [], {"topic": _kafka_topics(topics, levels), "group": groups})


@acls.command()
@_TOPICS
@_LEVELS
@_GROUP
@_ONE_GROUP
@click.option("--output", "outputs", multiple=True, metavar="TOPIC", help="A Kafka topic that outputs are sent to.")
@click.option("--dead-letters", metavar="TOPIC", help="The topic that dead letters are sent to (dead_letter_topic).")
@click.option(
    "--transactional", is_flag=True, help="The consumer commits in transactions (commit_mode='transactional')."
)
@click.option("--transactional-id", metavar="ID", help="The transactional.id, if producer_config has one.")
@click.option("--rate-limit", is_flag=True, help="The consumer has a rate_limit or tenant_rate_limit.")
@click.option("--steered", is_flag=True, help="The consumer has steered=True.")
@_RETRY_LATER
@_SCHEDULER
@_role
def parallel(
    topics: Sequence[str],
    levels: int | None,
    group: str,
    one_group: bool,
    outputs: Sequence[str],
    dead_letters: str | None,
    transactional: bool,
    transactional_id: str | None,
    rate_limit: bool,
    steered: bool,
    retry_later: bool,
    scheduler: str,
) -> Iterable[Permission]:
    """Show the permissions of a `ParallelConsumer`.

    \b
      headway acls parallel orders --group billing --output bills --transactional --principal User:billing
    """
    names = {
        "topic": _kafka_topics(topics, levels),
        "group": groups_of(group, levels, per_level=not one_group),
        "output": _kafka_topics(outputs, None),
        "dead letters": [dead_letters] if dead_letters else [],
        "transactional id": [transactional_id or f"{group}-*"],
        "rates": [rates_topic(group)],
        "scheduler": [_named(scheduler)],
    }
    cases = {"outputs": outputs, "dead letters": dead_letters, "transactional": transactional or transactional_id}
    return permissions_of("parallel", _cases(**cases, rates=rate_limit, steered=steered, due=retry_later), names)


@acls.command()
@click.argument("workers", nargs=-1, required=True, metavar="MODULE[:HANDLER]…")
@_RETRY_LATER
@_role
def worker(workers: Sequence[str], retry_later: bool) -> Iterable[Permission]:
    """Show the permissions of `headway worker` for these workers.

    \b
      headway acls worker billing:bill --principal User:billing
    """
    for found in find_workers(workers).values():
        yield from _of_worker("worker", found, _cases(due=retry_later))


@acls.command()
@_NAME
@click.option("--cancel", is_flag=True, help="The program also cancels or reschedules records, or chooses their ids.")
@_CREATE
@_role
def scheduler(scheduler: str, cancel: bool, create: bool) -> Iterable[Permission]:
    """Show the permissions of a `Scheduler` and `headway schedule add`.

    \b
      headway acls scheduler --cancel --principal User:shop
    """
    return permissions_of("scheduler", _cases(cancel=cancel, create=create), {"scheduler": [_named(scheduler)]})


@acls.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET…")
@_LEVELS
@_NAME
@click.option("--fit", is_flag=True, help="The relay adapts the delay topics (`headway relay --fit`).")
@_role
def relay(targets: Sequence[str], levels: int | None, scheduler: str, fit: bool) -> Iterable[Permission]:
    """Show the permissions of a `Relay` and `headway relay`.

    A relay needs the same permissions with --mode exactly-once and low-latency. TARGETS are the topics that the relay
    delivers to.

    \b
      headway acls relay orders --levels 3 --principal User:relay
    """
    names = {"scheduler": [_named(scheduler)], "topic": _kafka_topics(targets, levels)}
    return permissions_of("relay", _cases(fit=fit), names)


@acls.group()
def spark() -> None:
    """Show the permissions of sources, sinks and workers on Spark."""


@spark.command()
@_TOPICS
@_LEVELS
@click.option("--group", help="The option group.id, under which progress is committed.")
@_role
def source(topics: Sequence[str], levels: int | None, group: str | None) -> Iterable[Permission]:
    """Show the permissions to read with `spark.readStream.format("headway")`.

    \b
      headway acls spark source orders --levels 3 --principal User:spark
    """
    groups = groups_of(group, levels, per_level=True) if group else []
    return permissions_of(
        "spark source", _cases(group=group), {"topic": _kafka_topics(topics, levels), "group": groups}
    )


@spark.command()
@_TOPICS
@_LEVELS
@click.option(
    "--delivery", type=click.Choice(["exactly_once", "at_least_once"]), default="exactly_once", show_default=True
)
@click.option("--marker-topic", default=_MARKERS, show_default=True, help="The option markerTopic.")
@click.option("--unnamed", is_flag=True, help="For a df.write without txnAppId, which has a marker topic of its own.")
@_DUE
@click.option("--scheduler", default=DEFAULT_NAME, show_default=True, help="The option schedulerName.")
@_CREATE
@_role
def sink(
    topics: Sequence[str],
    levels: int | None,
    delivery: str,
    marker_topic: str,
    unnamed: bool,
    due: bool,
    scheduler: str,
    create: bool,
) -> Iterable[Permission]:
    """Show the permissions to write with `df.writeStream.format("headway")`.

    \b
      headway acls spark sink orders --levels 3 --create --principal User:spark
    """
    once = delivery == "exactly_once"
    names = {
        "topic": _kafka_topics(topics, levels),
        "markers": [f"{marker_topic}-unnamed" if unnamed else marker_topic],
        "scheduler": [_named(scheduler)],
    }
    return permissions_of("spark sink", _cases(**{"exactly-once": once}, due=due, create=create and once), names)


@spark.command(name="workers")
@click.argument("workers", nargs=-1, required=True, metavar="MODULE[:HANDLER]…")
@_RETRY_LATER
@_CREATE
@_role
def workers_(workers: Sequence[str], retry_later: bool, create: bool) -> Iterable[Permission]:
    """Show the permissions of `run_workers` for these workers.

    \b
      headway acls spark workers billing:bill --create --principal User:spark
    """
    for found in find_workers(workers).values():
        yield from _of_worker("spark workers", found, _cases(control=True, due=retry_later, create=create))


@acls.command()
@_NAME
@_role
def schedule(scheduler: str) -> Iterable[Permission]:
    """Show the permissions of `headway schedule list`, `stats`, `fit` and `report`.

    \b
      headway acls schedule --principal User:ops
    """
    return permissions_of("schedule", ["commands"], {"scheduler": [_named(scheduler)]})


@acls.command()
@_TOPICS
@_LEVELS
@_CREATE
@click.option("--delete", is_flag=True, help="Include permissions to delete the topics.")
@_role
def topics(topics: Sequence[str], levels: int | None, create: bool, delete: bool) -> Iterable[Permission]:
    """Show the permissions of `headway topics`.

    \b
      headway acls topics orders --levels 3 --create --principal User:ops
    """
    return permissions_of("topics", _cases(create=create, delete=delete), {"topic": _kafka_topics(topics, levels)})


@acls.command()
@click.argument("group")
@_TOPICS
@_LEVELS
@_ONE_GROUP
@click.option("--change", is_flag=True, help="Include permissions to copy and reset commits.")
@_role
def offsets(
    group: str, topics: Sequence[str], levels: int | None, one_group: bool, change: bool
) -> Iterable[Permission]:
    """Show the permissions of `headway offsets` for a group that reads TOPICS.

    \b
      headway acls offsets billing orders --levels 3 --principal User:ops
    """
    groups = groups_of(group, levels, per_level=not one_group)
    return permissions_of("offsets", _cases(change=change), {"topic": _kafka_topics(topics, levels), "group": groups})


@acls.command()
@click.argument("topic")
@click.option(
    "--send-again-to", "targets", multiple=True, metavar="TOPIC", help="A Kafka topic that letters are sent to."
)
@click.option("--settle", is_flag=True, help="Include permissions to settle letters without sending them.")
@_role
def dead(topic: str, targets: Sequence[str], settle: bool) -> Iterable[Permission]:
    """Show the permissions of `headway dead list` and `show`.

    --send-again-to and --settle add the permissions of `send-again` and `settle`.

    \b
      headway acls dead orders-dead --send-again-to orders-0 --principal User:ops
    """
    names = {"topic": _kafka_topics([topic], None), "target": _kafka_topics(targets, None)}
    return permissions_of("dead", _cases(**{"send again": targets}, settle=settle), names)


def _watching(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments and options of all commands that watch queues."""
    for option in (
        _TOPICS,
        _LEVELS,
        click.option(
            "--group", "groups", required=True, multiple=True, help="A group that reads TOPICS, without the level."
        ),
        _ONE_GROUP,
        click.option("--dead-letters", multiple=True, metavar="TOPIC", help="A dead-letter topic that is shown."),
        click.option("--scheduler", "schedulers", multiple=True, metavar="NAME", help="A scheduler that is shown."),
    ):
        command = option(command)
    return command


def _watched(
    topics: Sequence[str],
    levels: int | None,
    groups: Sequence[str],
    one_group: bool,
    dead_letters: Sequence[str],
    schedulers: Sequence[str],
) -> dict[str, Sequence[str]]:
    return {
        "topic": _kafka_topics(topics, levels),
        "group": [each for group in groups for each in groups_of(group, levels, per_level=not one_group)],
        "dead letters": _kafka_topics(dead_letters, None),
        "scheduler": [_named(each) for each in schedulers],
    }


@acls.command()
@_watching
@_role
def top(**watched: Any) -> Iterable[Permission]:
    """Show the permissions of `headway top`.

    \b
      headway acls top orders --levels 3 --group billing --dead-letters orders-dead --principal User:ops
    """
    return permissions_of("top", ["dead letters", "schedules"], _watched(**watched))


@acls.command()
@_watching
@click.option("--actions", is_flag=True, help="Include the permissions of --allow-actions.")
@click.option(
    "--send-again-to", "targets", multiple=True, metavar="TOPIC", help="A Kafka topic that letters are sent to."
)
@_role
def dashboard(actions: bool, targets: Sequence[str], **watched: Any) -> Iterable[Permission]:
    """Show the permissions of `headway dashboard`. Without --actions, it can change nothing.

    \b
      headway acls dashboard orders --levels 3 --group billing --dead-letters orders-dead --principal User:ops
    """
    names = {**_watched(**watched), "target": _kafka_topics(targets, None)}
    return permissions_of("dashboard", _cases(**{"dead letters": True, "schedules": True}, actions=actions), names)


@acls.command()
@_role
def marks() -> Iterable[Permission]:
    """Show the permissions of `headway dashboard mark`.

    \b
      headway acls marks --principal User:deployment
    """
    return permissions_of("marks", [], {})


@acls.command()
@click.option("--change", is_flag=True, help="Include permissions to make and end rules.")
@_role
def rules(change: bool) -> Iterable[Permission]:
    """Show the permissions of `headway rules list`, and with --change of all commands of `headway rules`.

    \b
      headway acls rules --change --principal User:ops
    """
    return permissions_of("rules", _cases(change=change), {})


def _of_worker(role: str, worker: Worker, cases: Sequence[str]) -> list[Permission]:
    transactional_id = (worker.options.producer_config or {}).get("transactional.id")
    names = {
        "topic": [*worker.kafka_topics(), *(literal_beginning(each) for each in worker.topics if each.startswith("^"))],
        "group": worker.groups,
        "output": worker.produces,
        "dead letters": [worker.options.dead_letter_topic] if worker.options.dead_letter_topic else [],
        # Each process has its own transactional id, which begins with this text.
        "transactional id": [f"{transactional_id or worker.group}-*"],
        "rates": [rates_topic(worker.group)],
        "scheduler": [str(worker.config.get("scheduler.name", DEFAULT_NAME))],
    }
    has_rates = worker.options.rate_limit is not None or worker.options.tenant_rate_limit is not None
    transactional = worker.options.commit_mode == "transactional"
    declared = _cases(transactional=transactional, rates=has_rates, steered=worker.options.steered)
    return permissions_of(role, [*cases, "outputs", "dead letters", *declared], names)


def _cases(**wanted: object) -> list[str]:
    return [case for case, is_wanted in wanted.items() if is_wanted]


def _kafka_topics(topics: Iterable[str], levels: int | None) -> list[str]:
    """Return the names of the Kafka topics. A name that ends with `*` stands for all topics with this prefix."""
    found = []
    for topic in topics:
        name = topic.removesuffix("*")
        if name and not is_topic_name(name):
            raise ConfigError(f"{topic!r} is not a valid name of a Kafka topic. Write it as orders, or orders-*.")
        found += [topic] if levels is None or topic.endswith("*") else [level_topic(topic, n) for n in range(levels)]
    return found


def _named(scheduler: str) -> str:
    if not is_topic_name(scheduler):
        raise ConfigError(
            f"{scheduler!r} is not a valid scheduler name, because the names of Kafka topics begin with it. Use "
            "letters, digits, dots, underscores and hyphens."
        )
    return scheduler


def _show_commands(permissions: Sequence[Permission], principal: str, servers: str, as_json: bool) -> None:
    before = ["kafka-acls", "--bootstrap-server", servers, "--command-config", "admin.properties"]
    commands = [shlex.join([*before, *arguments]) for arguments in kafka_acls(permissions, principal)]
    if as_json:
        echo_json(
            {
                "principal": principal,
                "permissions": [_described(permission) for permission in permissions],
                "commands": commands,
            }
        )
    else:
        click.echo("\n".join(commands))


def _show_findings(findings: Sequence[Finding], as_json: bool) -> None:
    missing = [finding for finding in findings if finding.held is Presence.NO]
    unknown = [finding for finding in findings if finding.held is Presence.UNKNOWN]
    if as_json:
        held = {Presence.YES: True, Presence.NO: False, Presence.UNKNOWN: None}
        permissions = [
            {**_described(each.permission), "held": held[each.held], "reason": each.reason} for each in findings
        ]
        echo_json({"permissions": permissions})
    else:
        for finding in (*missing, *unknown):
            reason = f" ({finding.reason})" if finding.reason else ""
            click.echo(f"{finding.held.value}: {finding.permission}{reason}")
        granted = len(findings) - len(missing) - len(unknown)
        rest = f", {len(unknown):,} cannot be determined" if unknown else ""
        required = count(len(findings), "permission")
        click.echo(f"{granted:,} of {required} granted, {len(missing):,} missing{rest}.", err=True)
    click.get_current_context().exit(1 if missing else 0)


def _described(permission: Permission) -> dict[str, object]:
    pattern = "prefixed" if permission.prefixed else "literal"
    return {
        "operation": permission.operation,
        "resource": permission.resource,
        "name": permission.name,
        "pattern": pattern,
    }
