"""`headway dead`: showing the letters of a dead letter topic, sending them again, and settling them."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar

import click

from headway.cli.dead_letters.choice import Choice, open_letters
from headway.cli.dead_letters.dead_topic import DeadTopic, dead_topic
from headway.cli.dead_letters.letters import Filter, Letter, Place, PlaceType, json_line, page, row
from headway.cli.dead_letters.sending_again import Plan, SendingAgain, goals, letters, make_plan, sent
from headway.cli.display.json_lines import json_option
from headway.cli.display.tables import Column, show_table
from headway.cli.display.terminal import Complaints, Progress, complaints, confirm, stderr_is_terminal
from headway.cli.display.texts import Moment
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.core.offsets.commit_metadata import Done
from headway.dead_letters import MOST_BYTES
from headway.delay.topic_names import TopicNames
from headway.errors import ConfigError
from headway.kafka.producer.client import ProducerClient
from headway.settings.config import OWN_KEYS

_ROWS = 100

F = TypeVar("F", bound=Callable[..., Any])


def _filters(command: F) -> F:
    """Give a command the options that choose letters; the command gets them as `filter`."""

    @click.option("--exception", metavar="NAME", help="That failed with it: ValueError, or with its module.")
    @click.option("--source-topic", metavar="TOPIC", help="That came from this topic, at any level.")
    @click.option("--since", type=Moment(), help="That failed then or later: 2026-05-01, '2026-05-01 12:30', 90m, 7d.")
    @click.option("--until", type=Moment(), help="That failed before.")
    @functools.wraps(command)
    def with_filter(
        *args: Any, exception: str | None, source_topic: str | None, since: int | None, until: int | None, **kwargs: Any
    ) -> Any:
        return command(*args, filter=Filter(exception, source_topic, since, until), **kwargs)

    return with_filter  # type: ignore[return-value]


_SETTLED_TOO = click.option("--settled-too", is_flag=True, help="Also those that were sent again, or settled, before.")
_PLACES = click.argument("places", nargs=-1, type=PlaceType(), metavar="[PARTITION:OFFSET]...")
_ALL = click.option("--all", "everything", is_flag=True, help="All that are open.")
_MAX = click.option(
    "--max", "limit", type=click.IntRange(min=1), help="So many at most, the first of each partition first."
)
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def dead() -> None:
    """List dead letters, look into them, and send them again.

    A dead letter is a record that is not tried again, in a topic of its own with what went wrong in its headers. It
    stays there when it is sent again, since Kafka deletes by age. Which ones are settled, because they were sent again
    or dealt with in another way, is remembered in the commits of a Kafka group, `headway-dead-TOPIC`. The others are
    open.

    \b
      headway dead list orders-dead
      headway dead show orders-dead 0:12
      headway dead send-again orders-dead 0:12
      headway dead send-again orders-dead --all
      headway dead settle orders-dead 0:13
    """


@dead.command(name="list")
@click.argument("topic")
@_filters
@_SETTLED_TOO
@click.option(
    "--max", "limit", type=click.IntRange(min=1), help=f"So many at most. [default: {_ROWS}; with --json all]"
)
@json_option("letter", ", with all of it")
@kafka_options
def list_(
    topic: str, filter: Filter, settled_too: bool, limit: int | None, as_json: bool, connection: ConnectionSettings
) -> None:
    """List what is open in a dead letter topic.

    It reads up to where the topic ends now; no group is joined, nothing is committed. `letter` is PARTITION:OFFSET, as
    `show` and `send-again` take it.

    \b
      headway dead list orders-dead
      headway dead list orders-dead --exception ValueError --since 12h
      headway dead list orders-dead --json | jq -r .failure.exception | sort | uniq -c
    """
    with complaints(), _opened(topic, connection) as (dead, _):
        found = _Found(dead, filter, settled_too)
        if as_json:
            for letter in islice(found, limit):
                click.echo(json_line(topic, letter))
        else:
            _show(found, topic, limit or _ROWS, settled_too, is_filtered=bool(filter))


@dead.command()
@click.argument("topic")
@click.argument("place", type=PlaceType(), metavar="PARTITION:OFFSET")
@json_option()
@kafka_options
def show(topic: str, place: Place, as_json: bool, connection: ConnectionSettings) -> None:
    """Show all of one dead letter.

    What is not UTF-8 is shown in hex, and with --json in Base64 under a name that says so.

    \b
      headway dead show orders-dead 0:12
      headway dead show orders-dead 0:12 --json | jq -r .value
    """
    with complaints(), _opened(topic, connection) as (dead, _):
        letter = dead.letter(place)
    click.echo(json_line(topic, letter) if as_json else "\n".join(page(topic, letter)))


@dead.command(name="send-again")
@click.argument("topic")
@_PLACES
@_ALL
@_filters
@_SETTLED_TOO
@_MAX
@click.option("--to", metavar="TOPIC", help="Another Kafka topic than each came from.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@_YES
@kafka_options
@click.pass_context
def send_again(
    context: click.Context,
    topic: str,
    places: Sequence[Place],
    everything: bool,
    filter: Filter,
    settled_too: bool,
    limit: int | None,
    to: str | None,
    dry_run: bool,
    yes: bool,
    connection: ConnectionSettings,
) -> None:
    """Send dead letters again, to the topics and partitions that they came from.

    Key, value and headers are the record's own, with one more header, headway.sent-again.from, that names the dead
    letter. Its timestamp is the time of sending. Each letter is sent once, unless --settled-too asks for it again: what
    Kafka has acknowledged is remembered every second, so only a crash, or a second send-again at the same time, can
    repeat some. Kafka forgets after offsets.retention.minutes, seven days by default.

    The exit code is 0 only if Kafka has acknowledged all.

    \b
      headway dead send-again orders-dead 0:12 0:15
      headway dead send-again orders-dead --exception TimeoutError --since 12h --dry-run
      headway dead send-again orders-dead --all --max 1
    """
    choice = Choice(frozenset(places), filter, settled_too, limit)
    choice.require_one_way(everything=everything)
    with complaints() as complaint, _opened(topic, connection) as (dead, kafka_topics):
        with Progress(dead.size, shown=stderr_is_terminal()) as progress:
            plan = make_plan(dead, choice, to, kafka_topics, progress)
        if plan.homeless:
            complaint.say(
                f"Left out, as nothing tells where they came from: {plan.homeless:,}. With --to they are sent."
            )
        if plan.shortened:
            complaint.say(f"Left out, as they have only the beginning of their records: {plan.shortened:,}.")
        if plan.own:
            complaint.say(f"Left out, as they came from {topic} itself: {plan.own:,}. With --to they are sent.")
        for gone, number in sorted(plan.gone.items()):
            complaint.say(
                f"Left out, as Kafka has no topic {gone} any more: {number:,}. Create it, or say where they go with "
                "--to."
            )
        if plan.empty:
            complaint.say(f"Left out, as their share groups do not copy records: {plan.empty:,}.")
        _tell_of_lines(topic, plan.topics)
        if not plan.size:
            left_out = plan.homeless or plan.shortened or plan.empty or plan.own or plan.gone
            what = _none(is_such=bool(filter or left_out), is_open=not settled_too)
            click.echo(f"Nothing to send: {topic} holds {what}.", err=True)
        elif dry_run:
            click.echo(f"{sent(plan.topics)} would be sent again{goals(plan.topics)}.")
        else:
            context.exit(_send(dead, plan, connection, complaint, ask=not yes, settled_too=settled_too))


@dead.command()
@click.argument("topic")
@_PLACES
@_ALL
@_filters
@_MAX
@click.option("--dry-run", is_flag=True, help="Say what would be settled, and settle nothing.")
@_YES
@kafka_options
def settle(
    topic: str,
    places: Sequence[Place],
    everything: bool,
    filter: Filter,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    connection: ConnectionSettings,
) -> None:
    """Take dead letters off the list without sending them.

    For those that were dealt with in another way: corrected and sent as new records, or not worth it. They stay in the
    topic, and `--settled-too` of `list` and `send-again` brings them back. A letter that is settled already is left as
    it is.

    \b
      headway dead settle orders-dead 0:13
      headway dead settle orders-dead --exception ValidationError --until 2026-05-01
    """
    choice = Choice(frozenset(places), filter, limit=limit)
    choice.require_one_way(everything=everything)
    with complaints(), _opened(topic, connection) as (dead, _):
        with Progress(dead.size, shown=stderr_is_terminal()) as progress:
            found = open_letters(dead, choice, progress)
        number = letters(found.size)
        if not found.size:
            none = f"{topic} holds {_none(is_such=bool(filter), is_open=True)}"
            click.echo(f"Nothing to settle: {'none of these letters is open' if places else none}.", err=True)
            return
        dead.memory_of(found.existing, found.offsets)  # raises if they are too scattered to be remembered
        if dry_run:
            click.echo(f"{number} would be settled.")
            return
        if not yes:
            confirm(f"Settle {number} without sending?")
        dead.remember(found.existing, found.offsets)
        click.echo(f"{number} settled.")


def _tell_of_lines(topic: str, targets: Mapping[str, int]) -> None:
    """Say where letters of a scheduler go on from its lines: a wrong topic makes the same letters again."""
    with suppress(ConfigError):  # of a topic that is no scheduler's
        if TopicNames(topic.removesuffix(".dead")).lines_of(targets):
            click.echo(
                "From delay lines a relay delivers them to the topics that they were scheduled for. If those are "
                "wrong, or do not exist, say --to.",
                err=True,
            )


def _send(
    dead: DeadTopic, plan: Plan, connection: ConnectionSettings, complaint: Complaints, *, ask: bool, settled_too: bool
) -> int:
    """Ask, and send; return the exit code. Letters that could not be remembered are not sent."""
    dead.memory_of(plan.existing, plan.destinations)
    if ask:
        confirm(f"Send {sent(plan.topics)} again{goals(plan.topics)}?")
    if not settled_too:  # somebody may have sent them while this waited for the answer
        plan.without({partition: Done(offset_map) for partition, offset_map in dead.settled().items()})
    dead.remember(plan.existing, dict.fromkeys(plan.destinations, ()))
    config = {key: value for key, value in connection.config.items() if key not in OWN_KEYS}
    own = {"enable.idempotence": True, "partitioner": "murmur2_random", "message.max.bytes": MOST_BYTES}
    client = ProducerClient(own | config)
    sending = SendingAgain(dead, plan, client, complaint)
    sending.run()
    return sending.report()


@contextmanager
def _opened(topic: str, connection: ConnectionSettings) -> Iterator[tuple[DeadTopic, Mapping[str, int]]]:
    """Open the dead letter topic; yield it, and all topics with their numbers of partitions."""
    admin = connection.admin()
    kafka_topics = admin.topics("Read")
    with dead_topic(topic, kafka_topics, connection.config, admin) as dead:
        yield dead, kafka_topics


class _Found:
    """The letters that a list shows, with a count of those left out since they are settled."""

    def __init__(self, dead: DeadTopic, filter: Filter, settled_too: bool) -> None:
        self._dead = dead
        self._filter = filter
        self._settled_too = settled_too
        self.hidden = 0

    def __iter__(self) -> Iterator[Letter]:
        with Progress(self._dead.size, shown=stderr_is_terminal()) as progress:
            for seen, letter in enumerate(self._dead.letters(), 1):
                progress.show(seen, seen)
                if self._filter.matches(letter):
                    if self._settled_too or not letter.settled:
                        yield letter
                    else:
                        self.hidden += 1


def _none(*, is_such: bool, is_open: bool) -> str:
    """Return what a topic holds when it holds none of what was asked for.

    >>> _none(is_such=False, is_open=True)
    'no dead letters that are open'
    """
    return f"no {'such ' if is_such else ''}dead letters{' that are open' if is_open else ''}"


def _show(found: _Found, topic: str, limit: int, settled_too: bool, *, is_filtered: bool) -> None:
    first = list(islice(found, limit + 1))
    shown = first[:limit]
    if shown:
        columns = [Column(name, no_wrap=True) for name in ("letter", "when")]
        columns += [Column("from", overflow="fold"), Column("attempts", justify="right", no_wrap=True)]
        columns += [Column(name, overflow="fold") for name in ("exception", "message", "key")]
        columns += [Column("settled")] if settled_too else []
        state = {True: ["yes"], False: ["no"]} if settled_too else {True: [], False: []}
        show_table(columns, [row(letter) + state[letter.settled] for letter in shown])
    if len(first) > limit:
        click.echo(f"{letters(limit)} shown, and there are more: --max shows so many.", err=True)
    elif not shown:
        is_open = not settled_too and (is_filtered or found.hidden > 0)  # without a filter all others are open
        click.echo(f"{topic} holds {_none(is_such=is_filtered, is_open=is_open)}.", err=True)
    if found.hidden:
        seen = " among those read so far" if len(first) > limit else ""
        click.echo(f"{letters(found.hidden)} settled before{seen}: --settled-too shows them as well.", err=True)
