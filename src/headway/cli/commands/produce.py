"""`headway produce`: send lines as records."""

from collections.abc import Sequence

import click

from headway.cli.commands.levels import LEVELS
from headway.cli.display.terminal import complaints
from headway.cli.options.due_times import DUE
from headway.cli.options.kafka_options import ConnectionSettings, KeyValue, kafka_options
from headway.cli.options.topic_choice import choose_topics
from headway.cli.records.lines import JsonLines, text_lines
from headway.cli.records.production import Production
from headway.priority.producer import Producer
from headway.settings.config import no_such_level

_LIMIT, _LIMIT_BY_DEFAULT = "message.max.bytes", 1_000_000


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True))
@click.option(
    "--format",
    type=click.Choice(["text", "json-lines"]),
    default="text",
    show_default=True,
    help="Each line is a record. json-lines checks that each line is JSON, and can take key and level from it.",
)
@click.option("--level", type=click.IntRange(min=0), default=0, show_default=True, help="The level; 0 is lowest.")
@click.option("--level-field", metavar="NAME", help="JSON: take the level from this field, if the line has it.")
@click.option(
    "--key-field", metavar="NAME", help="JSON: take the key from this field. Records of one key keep their order."
)
@click.option("--levels", type=LEVELS, help="The number of levels of the topic. By default, all levels that exist.")
@click.option("--header", "headers", type=KeyValue("source=shop"), multiple=True, help="A header for every record.")
@click.option(
    "--expires",
    type=DUE,
    help="A record expires if no handler starts it within this time after it was sent, such as 10m.",
)
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What to do if a line is not a valid record or is not delivered.",
)
@kafka_options
@click.pass_context
def produce(
    context: click.Context,
    topic: str,
    files: Sequence[str],
    format: str,
    level: int,
    level_field: str | None,
    key_field: str | None,
    levels: int | None,
    headers: Sequence[tuple[str, str]],
    expires: float | None,
    on_error: str,
    connection: ConnectionSettings,
) -> None:
    """Send the lines of files, or of stdin, to a topic, with a priority.

    A topic without levels is given by its name. If you give several, such as payments=2,clicks=0, the level of a line
    selects the topic.

    A line can be as long as the largest record: message.max.bytes, which is 1,000,000 bytes by default.

    The exit code is 0 only if every record was delivered. Lines that `--on-error skip` left out do not count.

    \b
      echo 'ship at once' | headway produce orders --level 2
      headway produce orders orders.txt
      headway produce payments=2,clicks=0 all.jsonl --format json-lines --level-field urgency
      headway produce orders orders.jsonl --format json-lines --key-field customer --level-field urgency
    """
    if format == "text" and (level_field or key_field):
        raise click.UsageError("--level-field and --key-field name JSON fields. Add --format json-lines.")
    choice = choose_topics(topic.split(","), connection.admin().topics("Write"), levels)
    if choice.priorities is None and len(choice.names) > 1:
        raise click.UsageError(
            "A line goes to one topic. To choose among several, give each a level, such as payments=2,clicks=0."
        )
    if level >= choice.levels:
        raise no_such_level(level, choice.levels)
    parse = text_lines(level) if format == "text" else JsonLines(level, choice.levels, level_field, key_field)
    with complaints() as complaint:
        levels_of_names = {"levels": choice.levels} if choice.priorities is None else {}
        producer = Producer(connection.config | levels_of_names)
        # The producer has already checked that this is a number.
        longest = int(connection.config.get(_LIMIT, _LIMIT_BY_DEFAULT))
        production = Production(
            producer,
            choice,
            parse,
            headers,
            complaint,
            expires=expires,
            stop_on_error=on_error == "stop",
            longest=longest,
        )
        production.run(files or ("-",))
    context.exit(production.report())
