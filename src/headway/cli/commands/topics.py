"""`headway topics`: create, list and delete topics and their levels."""

from collections.abc import Iterable
from datetime import timedelta

import click

from headway.cli.commands.levels import LEVELS
from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.display.tables import Column, show_table
from headway.cli.display.terminal import confirm, count
from headway.cli.options.due_times import Retention
from headway.cli.options.kafka_options import ConnectionSettings, KeyValue, kafka_options
from headway.cli.options.logical_topics import (
    LogicalTopic,
    headway_topics,
    logical_topics,
    require_levels,
    schedulers_of,
)
from headway.core.levels.naming import level_topic
from headway.kafka.topic_creation import KEPT_FOR, create_topic

_UNITS = {
    timedelta(days=1): "day",
    timedelta(hours=1): "hour",
    timedelta(minutes=1): "minute",
    timedelta(seconds=1): "second",
}


@click.group()
def topics() -> None:
    """Create, list and delete topics and their levels.

    Each level of a topic is a Kafka topic: `orders` with three levels is `orders-0`, `orders-1` and `orders-2`.

    \b
      headway topics create orders --levels 3 --partitions 6
      headway topics list
      headway topics delete orders
    """


@topics.command()
@click.argument("topic")
@click.option(
    "--levels", type=LEVELS, help="The number of levels; 0 is the lowest. By default the topic has no levels."
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Partitions per level. At most this many consumers can share a level.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 10_000),
    help="Copies of each record. By default the broker's setting.",
)
@click.option(
    "--retention",
    type=Retention(),
    help="How long Kafka keeps a record, handled or not: 12h, 30d, or forever.  [default: 30d]",
)
@click.option(
    "--config",
    "configs",
    type=KeyValue("segment.bytes=104857600"),
    multiple=True,
    help="A Kafka topic setting, as --config segment.bytes=104857600.",
)
@kafka_options
def create(
    topic: str,
    levels: int | None,
    partitions: int,
    replication_factor: int | None,
    retention: timedelta | None,
    configs: Iterable[tuple[str, str]],
    connection: ConnectionSettings,
) -> None:
    """Create a topic: one Kafka topic per level, or one Kafka topic of that name.

    Kafka deletes records by age, whether or not they have been handled. Choose a --retention that is longer than any
    record will wait. For dead letters, allow enough time to inspect them.

    \b
      headway topics create orders --levels 3 --partitions 6
      headway topics create audit --levels 2 --config cleanup.policy=compact
      headway topics create orders-dead --retention forever
    """
    config = dict(configs)
    if retention is not None and "retention.ms" in config:
        raise click.UsageError("Both --retention and --config retention.ms are given. Leave one of them out.")
    kept = KEPT_FOR if retention is None else retention
    names = create_topic(
        connection.config,
        topic,
        levels=levels,
        partitions=partitions,
        replication_factor=replication_factor,
        retention=None if kept == timedelta.max else kept,
        config=config,
    )
    each = "1 partition" if partitions == 1 else f"{partitions} partitions"
    click.echo(f"Created {', '.join(names)} with {each}{' each' if len(names) > 1 else ''}.")
    click.echo(_kept(config.get("retention.ms"), kept))


@topics.command(name="list")
@click.option("--all", "all_of_them", is_flag=True, help="Include the internal topics of Headway and Kafka.")
@json_option("topic")
@kafka_options
def list_(all_of_them: bool, as_json: bool, connection: ConnectionSettings) -> None:
    """List topics with their levels, and topics without levels by name.

    Topics that Headway uses internally are left out: those of schedulers, shared rate limits and Spark queries. Kafka's
    internal topics, whose names begin with two underscores, are left out too.

    \b
      headway topics list
      headway topics list --all
      headway topics list --json | jq -r .name
    """
    kafka_topics = connection.admin().topics()
    own = set() if all_of_them else headway_topics(kafka_topics)
    left_out = own | {name for name in kafka_topics if name.startswith("__") and not all_of_them}
    found = logical_topics({name: size for name, size in kafka_topics.items() if name not in left_out})
    if own and not as_json:
        schedulers = ", ".join(each.name for each in schedulers_of(kafka_topics))
        whose = f", among them those of the scheduler {schedulers}" if schedulers else ""
        click.echo(
            f"Left out {count(len(own), 'topic')} that Headway uses internally{whose}. Add --all to list them too.",
            err=True,
        )
    if as_json:
        for each in found:
            echo_json(_describe(each))
    elif found:
        columns = [
            Column("topic", overflow="fold"),
            Column("levels", justify="right"),
            Column("partitions", justify="right"),
        ]
        show_table(columns, map(_row, found))
    else:
        click.echo("There are no topics. Create one with `headway topics create orders --levels 3`.", err=True)


@topics.command()
@click.argument("topic")
@click.option("--levels", type=LEVELS, help="The number of levels. By default, all levels that exist.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@kafka_options
def delete(topic: str, levels: int | None, yes: bool, connection: ConnectionSettings) -> None:
    """Delete a topic with all its levels, or a topic without levels, and all its records.

    \b
      headway topics delete orders
      headway topics delete orders --levels 3 --yes
    """
    admin = connection.admin()
    kafka_topics = admin.topics("Delete")
    # The client might be permitted to describe the lowest level, but not a topic with the bare name.
    has_levels = levels is not None or (
        topic not in kafka_topics.seen and (level_topic(topic, 0) in kafka_topics.seen or topic not in kafka_topics)
    )
    found = require_levels(topic, kafka_topics, levels, may_create=False) if has_levels else 0
    names = [level_topic(topic, level) for level in range(found)] or [topic]
    if not yes:
        confirm(f"Delete {', '.join(names)} and all their records?")
    admin.delete(names)
    click.echo(f"Deleted {', '.join(names)}.")


def _describe(topic: LogicalTopic) -> dict[str, object]:
    levels = len(topic.partitions) if topic.has_levels else None
    return {"name": topic.name, "levels": levels, "partitions": topic.partitions}


def _row(topic: LogicalTopic) -> tuple[str, str, str]:
    levels = str(len(topic.partitions)) if topic.has_levels else "-"
    alike = len(set(topic.partitions)) == 1
    return topic.name, levels, str(topic.partitions[0]) if alike else ", ".join(map(str, topic.partitions))


def _kept(retention_ms: str | None, kept: timedelta) -> str:
    """Describe when the topic's records are deleted."""
    if retention_ms is not None:
        return f"Kafka deletes records by age, as set by retention.ms={retention_ms}."
    if kept == timedelta.max:
        return "Kafka keeps the records for as long as the topic exists."
    return f"Kafka deletes records after {_in_words(kept)}, handled or not. Change this with --retention."


def _in_words(time: timedelta) -> str:
    for unit, name in _UNITS.items():
        count, rest = divmod(time, unit)
        if count and not rest:
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{time.total_seconds():g} seconds"
