"""`headway schedule`: schedules records for later; lists, cancels, reschedules and counts them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import click

from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.display.tables import Column, show_table
from headway.cli.display.texts import printable, shown_bytes
from headway.cli.options.due_times import DUE, LADDER, TIME, describe_ms, show_due
from headway.cli.options.kafka_options import ConnectionSettings, KeyValue, kafka_options
from headway.cli.options.spark_session import master_option, on_spark
from headway.cli.records.lines import read_lines
from headway.core.delay.changes import IfPending, Settled
from headway.core.delay.ladder import Ladder, fit, rounded, writes_per_record
from headway.core.delay.schedule import CHOSEN, Schedule
from headway.core.levels.naming import is_topic_or_level
from headway.delay.due_time import When
from headway.delay.pending import Pending, PendingReader, layout_of, read_pending, soonest_of
from headway.delay.topic_names import DEFAULT_NAME
from headway.delay.topics import DEFAULT_PARTITIONS, MAX_MESSAGE_BYTES, create_topics, missing_topics
from headway.errors import AuthorizationError, ConfigError

_NAME = click.option("--name", default=DEFAULT_NAME, show_default=True, help="The scheduler's name.")
_IN = click.option("--in", "when", type=DUE, help="A delay, such as 90s, 5m, 2h or 30d.")
_AT = click.option("--at", type=TIME, help="A time with its zone, such as 2030-01-31T17:00:00+01:00.")
_TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(0, 86_400),
    default=30,
    show_default=True,
    help="How many seconds to wait for a relay's answer.",
)
_BAR = 40
MOST_COUNTED = 1_000
"""The number at which `list` stops counting commands, so that it stays fast."""


@click.group()
def schedule() -> None:
    """Schedule records for later; list, cancel or reschedule pending ones.

    A relay (`headway relay`) delivers records when they are due. Until then they wait in delay topics. All records in a
    delay topic wait equally long.

    \b
      echo 'are you still there?' | headway schedule add chats --in 5m
      headway schedule list
      headway schedule cancel 3.1763745120000.1763745060000.0ac5d81fe20
      headway schedule stats
    """


@schedule.command()
@click.option(
    "--partitions",
    type=click.IntRange(1, 1000),
    default=DEFAULT_PARTITIONS,
    show_default=True,
    help="Partitions per topic: at most this many relays can share the work. The number cannot be changed later.",
)
@click.option(
    "--replication-factor", type=click.IntRange(min=1), help="Copies of each record. By default the broker's setting."
)
@click.option(
    "--delays",
    type=LADDER,
    help="The delays of the delay topics, such as 1s,1m,1h,1d. By default, the delays in use, or 1s, 2s, 4s … 2 years.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be created.")
@_NAME
@kafka_options
def init(
    partitions: int,
    replication_factor: int | None,
    delays: Ladder | None,
    dry_run: bool,
    name: str,
    connection: ConnectionSettings,
) -> None:
    """Create the topics of a scheduler, or change its delay topics.

    A `Scheduler` creates its topics itself on first use, if it is permitted to. Pending schedules are not lost when the
    delay topics change: they move on through the new ones, and relays keep reading the old ones until they are empty.

    \b
      headway schedule init --partitions 8
      headway schedule init --dry-run
      headway schedule init --delays 1s,30s,15m,6h,7d
    """
    missing = missing_topics(connection.config, name, delays, partitions)
    if dry_run:
        for new in missing:
            settings = " ".join(f"{key}={value}" for key, value in sorted(new.config.items()))
            click.echo(f"{new.name}  partitions={new.partitions}  {settings}")
        return
    layout = create_topics(connection.config, name, delays, partitions, replication_factor)
    click.echo(
        f"Created {len(missing)} topics. {name} has {layout.partitions} partitions and the delays {layout.ladder}."
    )


@schedule.command()
@click.argument("topic")
@_IN
@_AT
@click.option("--every", "rule", help="A cron expression, such as '0 17 * * MON-FRI', or an interval, such as 10m.")
@click.option("--zone", default="UTC", show_default=True, help="The time zone of the cron expression.")
@click.option("--key", help="The key for all records.")
@click.option("--level", type=click.IntRange(min=0), help="The level, for a topic with levels; 0 is lowest.")
@click.option("--header", "headers", type=KeyValue("source=shop"), multiple=True, help="A header for every record.")
@click.option(
    "--id",
    "id_",
    help="An id that you choose, for a single record. A later record with this id replaces the pending schedule.",
)
@click.option(
    "--if-pending",
    type=click.Choice(get_args(IfPending)),
    default="replace",
    show_default=True,
    help="What to do if a schedule with that id is pending.",
)
@_NAME
@kafka_options
def add(
    topic: str,
    when: When | None,
    at: datetime | None,
    rule: str | None,
    zone: str,
    key: str | None,
    level: int | None,
    headers: Iterable[tuple[str, str]],
    id_: str | None,
    if_pending: Any,
    name: str,
    connection: ConnectionSettings,
) -> None:
    """Schedule each line of stdin as a record for TOPIC.

    The command prints the handle of each schedule, which `cancel` and `reschedule` accept.

    With --level 2, TOPIC is the name without the level: orders stands for the Kafka topic orders-2. Without --level,
    TOPIC is a Kafka topic. If orders does not exist but orders-0 does, the record is delivered to orders-0, the lowest
    level.

    A topic that does not exist must be created before the first record is due. Otherwise the record becomes a dead
    letter.

    \b
      echo 'ship it' | headway schedule add orders --in 5m
      echo 'good evening' | headway schedule add chats --every '0 17 * * *' --zone Europe/Berlin
      echo 'pay now' | headway schedule add chats --in 2d --id reminder-42
    """
    if sum(given is not None for given in (when, at, rule)) != 1:
        raise click.UsageError("Give exactly one of --in, --at and --every.")
    more: dict[str, Any] = {"headers": list(headers), "level": level, "id": id_, "if_pending": if_pending}
    lines: Iterable[Any] = read_lines(("-",), MAX_MESSAGE_BYTES)
    if id_ is not None:
        lines = few = list(islice(lines, 2))
        if len(few) > 1:
            raise ConfigError(f"The id {id_!r} can identify one record only, but stdin has more than one line.")
    from headway.cli.schedules.schedule_changes import schedule_lines  # noqa: PLC0415 - the reading commands need no producer

    schedule_lines(lines, topic, key, at if when is None else when, rule, zone, name, connection, more)


@schedule.command(name="list")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The maximum number of schedules to list.",
)
@click.option("--topic", help="Only schedules for this topic, at any level.")
@click.option("--id", "id_", help="Only the schedule that was added with this id.")
@json_option("schedule")
@_NAME
@kafka_options
def list_(
    limit: int, topic: str | None, id_: str | None, as_json: bool, name: str, connection: ConnectionSettings
) -> None:
    """List the schedules that are due next.

    Schedules with an id, cancellations and reschedules are commands for a relay. Commands that no relay has carried out
    yet are not listed; their number is shown on stderr.

    \b
      headway schedule list
      headway schedule list --topic orders --json | jq -r .handle
      headway schedule list --id reminder-42
    """
    with PendingReader(connection.config, name) as reader:
        found = (each for each in reader.schedules() if _is_chosen(each.schedule, topic, id_))
        soonest = soonest_of(found, limit)
        commands = count_commands(reader, MOST_COUNTED)
    if as_json:
        for each in soonest:
            echo_json(_describe(each))
    elif soonest:
        columns = [Column("due"), Column("topic"), Column("key"), Column("bytes", justify="right"), Column("handle")]
        show_table(columns, map(row_of, soonest))
    else:
        where = f"{f' for {topic}' if topic else ''}{f' with the id {id_}' if id_ else ''}"
        click.echo(f"Nothing is pending{where}{'' if commands == 0 else ' in the delay topics'}.", err=True)
    if commands != 0:
        click.echo(waiting(commands, name, MOST_COUNTED), err=True)


@schedule.command()
@click.argument("handles", nargs=-1, required=True)
@_TIMEOUT
@_NAME
@kafka_options
@click.pass_context
def cancel(
    context: click.Context, handles: Sequence[str], timeout: float, name: str, connection: ConnectionSettings
) -> None:
    """Cancel schedules.

    The exit code is 0 if all schedules are cancelled, and 1 if one was already delivered or no relay has answered.

    \b
      headway schedule cancel 3.1763745120000.1763745060000.0ac5d81fe20
      headway schedule cancel id:reminder-42
    """
    from headway.cli.schedules.schedule_changes import cancel_all  # noqa: PLC0415 - see `add`

    outcomes = cancel_all(handles, timeout, name, connection)
    context.exit(0 if all(outcome is Settled.CANCELLED for outcome in outcomes) else 1)


@schedule.command()
@click.argument("handles", nargs=-1, required=True)
@_IN
@_AT
@_TIMEOUT
@_NAME
@kafka_options
@click.pass_context
def reschedule(
    context: click.Context,
    handles: Sequence[str],
    when: When | None,
    at: datetime | None,
    timeout: float,
    name: str,
    connection: ConnectionSettings,
) -> None:
    """Change the due times of schedules.

    The exit code is 0 if all schedules have their new time, and 1 if one was already delivered or cancelled, or if no
    relay has answered. The handles stay valid.

    \b
      headway schedule reschedule 3.1763745120000.1763745060000.0ac5d81fe20 --in 2h
      headway schedule reschedule id:reminder-42 --at 2030-01-31T17:00:00+01:00
    """
    if (when is None) == (at is None):
        raise click.UsageError("Give exactly one of --in and --at.")
    due: When = at if when is None else when  # type: ignore[assignment]

    from headway.cli.schedules.schedule_changes import reschedule_all  # noqa: PLC0415 - see `add`

    outcomes = reschedule_all(handles, due, timeout, name, connection)
    context.exit(0 if all(outcome is Settled.RESCHEDULED for outcome in outcomes) else 1)


@schedule.command()
@json_option()
@_NAME
@kafka_options
def stats(as_json: bool, name: str, connection: ConnectionSettings) -> None:
    """Count pending schedules by delay topic and due hour.

    The command reads all schedules once. In addition, it shows how many commands are waiting for a relay
    (`commands_waiting` with --json).

    \b
      headway schedule stats
    """
    by_topic: Counter[int] = Counter()
    hours: Counter[int] = Counter()
    with PendingReader(connection.config, name) as reader:
        for each in reader.schedules():
            by_topic[each.delay_topic] += 1
            hours[each.due // 3_600_000 * 3_600_000] += 1
        commands = count_commands(reader)
    if as_json:
        by_hour = [{"hour": show_due(hour), "pending": count} for hour, count in sorted(hours.items())]
        topics = [{"topic_delay_ms": delay, "pending": count} for delay, count in sorted(by_topic.items())]
        echo_json({"pending": by_topic.total(), "delay_topics": topics, "hours": by_hour, "commands_waiting": commands})
        return
    click.echo(f"{by_topic.total()} pending")
    by_delay = {describe_ms(delay) if delay else "in memory": count for delay, count in sorted(by_topic.items())}
    _draw("delay topic", by_delay)
    _draw("due in the hour of", {show_due(hour)[:16]: count for hour, count in sorted(hours.items())[:48]})
    if commands != 0:
        click.echo(waiting(commands, name), err=True)


@schedule.command(name="fit")
@click.option(
    "--count", type=click.IntRange(1, 64), default=8, show_default=True, help="The maximum number of delays to propose."
)
@click.option("--apply", is_flag=True, help="Start using the proposed delay topics.")
@_NAME
@kafka_options
def fit_(count: int, apply: bool, name: str, connection: ConnectionSettings) -> None:
    """Propose delay topics that suit the pending records.

    With the proposed delay topics, records would be moved as rarely as possible. Each delay topic that a record passes
    through costs one more write.

    \b
      headway schedule fit --count 6
      headway schedule fit --count 6 --apply
    """
    delays: Counter[int] = Counter()
    for each in read_pending(connection.config, name):
        delays[rounded(max(0, each.due - each.schedule.at))] += 1
    if not delays:
        click.echo("No schedule is pending, so there is nothing to base a proposal on.", err=True)
        return
    before, proposed = layout_of(connection.config, name).ladder, fit(delays, count)
    for title, ladder in (("in use", before), ("proposed", proposed)):
        writes = writes_per_record(ladder, delays)
        click.echo(f"{title}: {ladder}  ({len(ladder.delays)} delay topics, {writes:.1f} writes per record)")
    if apply:
        create_topics(connection.config, name, proposed)
        click.echo("Relays use the proposed delay topics from now on. Schedulers use them after their next start.")


@schedule.command()
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="schedules.html",
    show_default=True,
    help="The page to write.",
)
@click.option(
    "--count", type=click.IntRange(1, 64), default=8, show_default=True, help="The maximum number of delays to propose."
)
@master_option
@_NAME
@kafka_options
def report(output: Path, count: int, master: str | None, name: str, connection: ConnectionSettings) -> None:
    """Write a page with plots of the pending schedules. The schedules are counted on Spark, which can handle millions.

    The page shows in which hours they are due, in which delay topics they wait, the seconds in which most of them are
    due, and which delay topics would suit them.

    \b
      headway schedule report --output schedules.html
    """

    def write(spark: Any) -> int:
        from headway.spark.delay import write_occupancy  # noqa: PLC0415 - needs PySpark

        return write_occupancy(spark, connection.config, output, name, count)

    pending = on_spark("headway schedule report", master, write)
    click.echo(f"Wrote {output}, a report on {pending:,} schedules.")


def _draw(title: str, counts: Mapping[str, int]) -> None:
    if counts:
        most = max(counts.values())
        columns = [Column(title), Column("pending", justify="right"), Column("")]
        show_table(columns, ((name, str(n), "█" * max(1, n * _BAR // most)) for name, n in counts.items()))


def _is_chosen(schedule: Schedule, topic: str | None, id_: str | None) -> bool:
    is_of_topic = topic is None or is_topic_or_level(schedule.topic, topic)
    return is_of_topic and (id_ is None or schedule.id.removeprefix(CHOSEN) == id_.removeprefix(CHOSEN))


def _describe(pending: Pending) -> dict[str, object]:
    schedule = pending.schedule
    return {
        "handle": pending.handle,
        "id": schedule.id.removeprefix(CHOSEN),
        "due": show_due(pending.due),
        "topic": schedule.topic,
        "recurs": schedule.recurrence is not None,
        "scheduled": show_due(schedule.at),
        "topic_delay_ms": pending.delay_topic,
    }


def row_of(pending: Pending) -> tuple[str, ...]:
    """Format a schedule as a row of the table."""
    key, size = shown_bytes(pending.message.key()), len(pending.message.value() or b"")
    return show_due(pending.due), pending.schedule.topic, key, str(size), printable(pending.handle)


def count_commands(reader: PendingReader, most: int | None = None) -> int | None:
    """Count the commands that wait for a relay, up to one more than `most`.

    Returns None if this client is not permitted to read the commands.
    """
    try:
        return sum(1 for _ in islice(reader.commands(), None if most is None else most + 1))
    except AuthorizationError:  # the schedules can still be shown
        return None


def waiting(commands: int | None, name: str, most: int | None = None) -> str:
    """Describe how many commands of a scheduler are waiting, and how to start a relay that carries them out.

    >>> waiting(None, "headway-delay")
    'Commands may be waiting for a relay, but this client can see only schedules. `headway relay` carries them out.'
    """
    relay = "`headway relay`" if name == DEFAULT_NAME else f"`headway relay --name {name}`"
    if commands is None:
        return f"Commands may be waiting for a relay, but this client can see only schedules. {relay} carries them out."
    if commands == 1:
        what = "a schedule with an id, a cancellation or a reschedule"
        return f"1 command waits for a relay: {what}. {relay} carries it out."
    number = f"{commands:,}" if most is None or commands <= most else f"More than {most:,}"
    what = "schedules with an id, cancellations, reschedules"
    return f"{number} commands wait for a relay: {what}. {relay} carries them out."
