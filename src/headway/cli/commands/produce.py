"""`headway produce`: lines in, records out."""

from collections.abc import Sequence

import click

from headway.cli.commands.levels import LEVELS
from headway.cli.display.terminal import complaints
from headway.cli.options.due_times import DUE
from headway.cli.options.kafka_options import ConnectionSettings, KeyValue, kafka_options
from headway.cli.options.topic_choice import choose_topics
from headway.cli.records.lines import JsonLines, text_lines
from headway.cli.records.production import Production
from headway.priority.producer import PriorityProducer, Producer
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
    help="Each line is a record; json-lines checks that it is JSON and can take key and level from it.",
)
@click.option("--level", type=click.IntRange(min=0), default=0, show_default=True, help="The level; 0 is lowest.")
@click.option("--level-field", metavar="NAME", help="JSON: take the level from this field, where there is one.")
@click.option("--key-field", metavar="NAME", help="JSON: take the key from this field; one key keeps its order.")
@click.option("--levels", type=LEVELS, help="How many the topic has. By default as many as are found.")
@click.option("--header", "headers", type=KeyValue("source=shop"), multiple=True, help="A header of every record.")
@click.option("--expires", type=DUE, help="How long from its sending a record may be started, as 10m.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What to do at a line that is not a record, or is not delivered.",
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
    """Send the lines of FILES, or of stdin, to a topic by priority.

    A topic without levels is named as it is. With several, as payments=2,clicks=0, the level of a line chooses one.

    A line has at most as many bytes as a record, message.max.bytes: 1,000,000 by default.

    The exit code is 0 only if every record was delivered, leaving out the lines that --on-error skip skips.

    \b
      echo 'ship at once' | headway produce orders --level 2
      headway produce orders orders.txt
      headway produce payments=2,clicks=0 all.jsonl --format json-lines --level-field urgency
      headway produce orders orders.jsonl --format json-lines --key-field customer --level-field urgency
    """
    if format == "text" and (level_field or key_field):
        raise click.UsageError("--level-field and --key-field name fields of JSON. Add --format json-lines.")
    choice = choose_topics(topic.split(","), connection.admin().topics("Write"), levels)
    if choice.priorities is None and len(choice.names) > 1:
        raise click.UsageError("A line goes to one topic. Several need a level each, as payments=2,clicks=0.")
    if level >= choice.levels:
        raise no_such_level(level, choice.levels)
    parse = text_lines(level) if format == "text" else JsonLines(level, choice.levels, level_field, key_field)
    with complaints() as complaint:
        if choice.priorities is None:
            producer: PriorityProducer | Producer = PriorityProducer(connection.config | {"levels": choice.levels})
        else:
            producer = Producer(connection.config)
        longest = int(connection.config.get(_LIMIT, _LIMIT_BY_DEFAULT))  # a number: the producer has taken it
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
