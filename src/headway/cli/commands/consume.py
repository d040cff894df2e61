"""`headway consume`: write the records of topics, highest level first."""

from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from headway.cli.commands.levels import LEVELS, DistributorType
from headway.cli.display.terminal import ProgressLine, complaints, stderr_is_terminal
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.options.topic_choice import TopicChoice, choose_topics
from headway.cli.records.consumption import Consumption, Start, writing
from headway.cli.records.one_partition import OnePartition
from headway.cli.records.record_lines import record_json, text_line
from headway.core.levels.capacity import Distributor
from headway.core.levels.naming import groups_of
from headway.core.levels.policies import PolicyName
from headway.core.permissions import Permission
from headway.priority.consumer import PriorityConsumer
from headway.settings.config import ConsumerSettings


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--group", help="The consumer group. The Kafka group GROUP-0 reads level 0, and so on.")
@click.option("--one-group", is_flag=True, help="One Kafka group, GROUP, reads all levels, with fewer connections.")
@click.option("--levels", type=LEVELS, help="The number of levels of the topics. By default, all levels that exist.")
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="The maximum number of records to read at once, shared among the levels.",
)
@click.option(
    "--policy",
    type=click.Choice(["fair", "strict", "capacity_burst"]),
    default="fair",
    show_default=True,
    help="How the levels share the capacity. strict always reads the highest level first.",
)
@click.option(
    "--distributor",
    type=DistributorType(),
    help="The share of each level; `headway levels` shows the shares.",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["beginning", "end", "committed"]),
    default="committed",
    show_default=True,
    help="Where to start. committed continues after the group's commits; a new group starts at the beginning.",
)
@click.option("--partition", type=click.IntRange(0, 2**31 - 1), help="Read this partition only, without a group.")
@click.option(
    "--level",
    type=click.IntRange(min=0),
    help="The level of the partition. Not needed if the topic has only one level.",
)
@click.option(
    "--offset",
    metavar="OFFSET",
    help="Where to start in the partition: an offset, a time, or how long ago, such as 90m.",
)
@click.option("--max", "limit", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop when no record has arrived for this long, including the time to join the group.",
)
@click.option(
    "--format",
    type=click.Choice(["text", "json-lines"]),
    default="text",
    show_default=True,
    help="Write only the values, or each whole record as JSON.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="A file to append to, or - for stdout.",
)
@kafka_options
@click.pass_context
def consume(
    context: click.Context,
    topics: Sequence[str],
    group: str | None,
    one_group: bool,
    partition: int | None,
    level: int | None,
    offset: str | None,
    levels: int | None,
    capacity: int,
    policy: PolicyName,
    distributor: Distributor | None,
    start: Start,
    limit: int | None,
    timeout: float | None,
    format: str,
    output: str,
    connection: ConnectionSettings,
) -> None:
    """Write the records of topics, highest level first, until Ctrl-C.

    Only records that were written are committed. To continue after them, start the command again with the same group.

    A topic without levels is given by its name. To read several such topics by priority, add a level to each name, such
    as payments=2.

    With --partition, the command writes the records of one partition, starting at an offset, and then ends. In this
    case, nothing is committed.

    \b
      headway consume orders --group billing
      headway consume orders --group billing --max 100 --timeout 5 --format json-lines | jq .value
      headway consume orders clicks --group archive --output archive.txt
      headway consume payments=2 clicks=0 --group billing
      headway consume orders --level 2 --partition 0 --offset 2300 --max 10
    """
    admin = connection.admin()
    encode = text_line if format == "text" else record_json
    choice = choose_topics(topics, admin.topics("Read"), levels)
    if partition is not None:
        _refuse_group_options(context)
        wanted = OnePartition(partition, level, offset, limit)
        with complaints(), writing(output, committed=False) as file:
            click.echo(wanted.write(connection.config, choice, file, encode), err=True)
        return
    if level is not None or offset is not None:
        raise click.UsageError("--level and --offset apply to a single partition. Add --partition.")
    if group is None:
        raise click.UsageError("Missing option '--group'. Only --partition reads without a group.")
    ours: dict[str, Any] = {"group.id": group, "levels": choice.levels, "max.poll.records": capacity}
    ours |= {"enable.auto.commit": False, **({"group.per.level": False} if one_group else {})}
    config = {"auto.offset.reset": "earliest"} | connection.config | ours
    admin.require(_permissions(choice, ConsumerSettings.parse(config)))
    with complaints() as complaint, writing(output) as file:
        consumer = PriorityConsumer(config, distributor=distributor, policy=policy)
        consumption = Consumption(consumer, file, encode, choice.levels, complaint)
        shown = stderr_is_terminal() and not (output == "-" and file.isatty())
        with consumer, ProgressLine(limit, shown=shown) as progress:
            consumption.run(choice.to_subscribe, start, limit, timeout, progress)
    context.exit(consumption.report())


def _refuse_group_options(context: click.Context) -> None:
    """Raise `click.UsageError` if an option was given that applies only to reading as a group."""
    for name in ("group", "one_group", "capacity", "policy", "distributor", "start", "timeout"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "from" if name == "start" else name.replace("_", "-")
            raise click.UsageError(f"--{option} applies to reading as a group, but --partition reads without one.")


def _permissions(choice: TopicChoice, settings: ConsumerSettings) -> list[Permission]:
    """Return the permissions that are needed to read the topics.

    Patterns are left out, because their topics are not known.

    The permissions are checked before the consumer starts, because a consumer without them would wait forever.
    """
    found = [Permission("Read", "Topic", name) for level in range(choice.levels) for name in choice.kafka_topics(level)]
    groups = groups_of(settings.group, settings.levels, per_level=settings.group_per_level)
    return found + [Permission("Read", "Group", group) for group in groups]
