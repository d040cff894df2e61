"""`headway consume`: records out, highest level first."""

from collections.abc import Sequence

import click

from headway.cli.commands.levels import LEVELS, DistributorType
from headway.cli.display.terminal import Progress, complaints, stderr_is_terminal
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.options.logical_topics import require_common_levels
from headway.cli.records.consumption import Consumption, Start, writing
from headway.cli.records.record_lines import json_line, text_line
from headway.core.levels.capacity import Distributor
from headway.core.levels.naming import level_group, level_topic
from headway.core.levels.policies import PolicyName
from headway.core.rights import Right
from headway.priority.consumer import PriorityConsumer


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--group", required=True, help="Who reads: level i of a topic is read by the Kafka group GROUP-i.")
@click.option("--levels", type=LEVELS, help="How many the topics have. By default as are found.")
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="What the levels share: the most records that are read at once.",
)
@click.option(
    "--policy",
    type=click.Choice(["fair", "strict", "capacity_burst"]),
    default="fair",
    show_default=True,
    help="How they share it; strict is highest first.",
)
@click.option("--distributor", type=DistributorType(), help="The shares, as `headway levels` shows them.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["beginning", "end", "committed"]),
    default="committed",
    show_default=True,
    help="Where to start; committed is where the group left off, for a new group the beginning.",
)
@click.option("--max", "limit", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop when nothing came for so long; joining the group counts.",
)
@click.option(
    "--format",
    type=click.Choice(["text", "json-lines"]),
    default="text",
    show_default=True,
    help="The values, or all of each record as JSON.",
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
    group: str,
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
    """Write the records of TOPICS, highest level first, until Ctrl-C.

    What is written is committed, and nothing else: who starts again with the same group goes on behind it.

    \b
      headway consume orders --group billing
      headway consume orders --group billing --max 100 --timeout 5 --format json-lines | jq .value
      headway consume orders clicks --group archive --output archive.txt
    """
    admin = connection.admin()
    levels = require_common_levels(topics, admin.topics("Read"), levels)
    admin.require(_rights(topics, group, levels))
    ours = {"group.id": group, "levels": levels, "max.poll.records": capacity, "enable.auto.commit": False}
    config = {"auto.offset.reset": "earliest"} | connection.config | ours
    encode = text_line if format == "text" else json_line
    with complaints() as complaint, writing(output) as file:
        consumer = PriorityConsumer(config, distributor=distributor, policy=policy)
        consumption = Consumption(consumer, file, encode, levels, complaint)
        shown = stderr_is_terminal() and not (output == "-" and file.isatty())
        with consumer, Progress(limit, shown=shown) as progress:
            consumption.run(topics, start, limit, timeout, progress)
    context.exit(consumption.report())


def _rights(topics: Sequence[str], group: str, levels: int) -> list[Right]:
    """Return the rights to read, except for patterns; without them the command would wait for ever."""
    names = [topic for topic in topics if not topic.startswith("^")]
    found: list[Right] = []
    for level in range(levels):
        found += [Right("Read", "Topic", level_topic(topic, level)) for topic in names]
        found.append(Right("Read", "Group", level_group(group, level)))
    return found
