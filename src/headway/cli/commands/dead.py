"""`headway dead`: shows the letters of a dead letter topic, sends them again, and settles them."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import click

from headway.actions.choice import Choice, open_letters
from headway.actions.sending_again import Plan, goals, letters, make_plan, sent, start_sending
from headway.cli.dead_letters.letter_texts import PlaceType, letter_json, letter_page, letter_row
from headway.cli.display.json_lines import json_option
from headway.cli.display.tables import Column, show_table
from headway.cli.display.terminal import Complaints, ProgressLine, complaints, confirm, stderr_is_terminal
from headway.cli.options.due_times import Moment
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.options.selectors import WHERE
from headway.core.selectors.selector import Selector
from headway.delay.topic_names import TopicNames
from headway.errors import ConfigError
from headway.inspection.dead_topic import DeadTopic, opened
from headway.inspection.letters import Filter, Letter, LetterPosition
from headway.runtime.interrupt import INTERRUPTED, Interrupt

_ROWS = 100

F = TypeVar("F", bound=Callable[..., Any])


def _filters(command: F) -> F:
    """Add the options that select letters. The command gets them in the argument `filter`."""

    @click.option(
        "--exception",
        metavar="NAME",
        help="Only letters that failed with this exception: ValueError, or module.ValueError.",
    )
    @click.option("--source-topic", metavar="TOPIC", help="Only letters from this topic, at any level.")
    @click.option(
        "--since",
        type=Moment(),
        help="Only letters that failed at or after this time: 2026-05-01, '2026-05-01 12:30', 90m, 7d.",
    )
    @click.option("--until", type=Moment(), help="Only letters that failed before this time.")
    @click.option(
        "--where", type=WHERE, help="Only letters that this selector chooses, as in: key = 'cust 7' and attempts > 3."
    )
    @functools.wraps(command)
    def with_filter(
        *args: Any,
        exception: str | None,
        source_topic: str | None,
        since: int | None,
        until: int | None,
        where: Selector | None,
        **kwargs: Any,
    ) -> Any:
        return command(*args, filter=Filter(exception, source_topic, since, until, where), **kwargs)

    return with_filter  # type: ignore[return-value]


_SETTLED_TOO = click.option(
    "--settled-too", is_flag=True, help="Include letters that were sent again or settled before."
)
_PLACES = click.argument("places", nargs=-1, type=PlaceType(), metavar="[PARTITION:OFFSET]...")
_ALL = click.option("--all", "everything", is_flag=True, help="All open letters.")
_MAX = click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1),
    help="Select at most this many letters, the oldest of each partition first.",
)
_YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.group()
def dead() -> None:
    """List dead letters, inspect them, and send them again.

    A dead letter is a record that failed permanently. It is kept in a separate topic, with the reason in its headers.
    The dead letter stays there even when it is sent again, because Kafka deletes records only by age. The commits of a
    Kafka group, `headway-dead-TOPIC`, record which letters are settled, that is, were sent again or handled in another
    way. All other letters are open.

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
    "--max",
    "limit",
    type=click.IntRange(min=1),
    help=f"Show at most this many letters. [default: {_ROWS}; with --json all]",
)
@json_option("letter", ", with all its content")
@kafka_options
def list_(
    topic: str, filter: Filter, settled_too: bool, limit: int | None, as_json: bool, connection: ConnectionSettings
) -> None:
    """List the open letters of a dead letter topic.

    The command reads the topic up to its current end, joins no group and commits nothing. The column `letter` has the
    PARTITION:OFFSET that `show`, `send-again` and `settle` accept.

    \b
      headway dead list orders-dead
      headway dead list orders-dead --exception ValueError --since 12h
      headway dead list orders-dead --where "header.tenant = acme and attempts > 3"
      headway dead list orders-dead --json | jq -r .failure.exception | sort | uniq -c
    """
    with complaints(), opened(topic, connection.config) as (dead, _):
        found = _Found(dead, filter, settled_too)
        if as_json:
            for letter in islice(found, limit):
                click.echo(letter_json(topic, letter))
        else:
            _show(found, topic, limit or _ROWS, settled_too, is_filtered=bool(filter))


@dead.command()
@click.argument("topic")
@click.argument("place", type=PlaceType(), metavar="PARTITION:OFFSET")
@json_option()
@kafka_options
def show(topic: str, place: LetterPosition, as_json: bool, connection: ConnectionSettings) -> None:
    """Show all details of one dead letter.

    Bytes that are not UTF-8 are shown in hex. With --json they are in Base64, in a field such as value_base64.

    \b
      headway dead show orders-dead 0:12
      headway dead show orders-dead 0:12 --json | jq -r .value
    """
    with complaints(), opened(topic, connection.config) as (dead, _):
        letter = dead.letter(place)
    click.echo(letter_json(topic, letter) if as_json else "\n".join(letter_page(topic, letter)))


@dead.command(name="send-again")
@click.argument("topic")
@_PLACES
@_ALL
@_filters
@_SETTLED_TOO
@_MAX
@click.option("--to", metavar="TOPIC", help="Send the letters to this Kafka topic, not to where they came from.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@_YES
@kafka_options
@click.pass_context
def send_again(
    context: click.Context,
    topic: str,
    places: Sequence[LetterPosition],
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

    The sent record has the key, value and headers of the original record, and the header headway.sent-again.from, which
    names the dead letter. Its timestamp is the time of sending. Each letter is sent only once, unless --settled-too is
    given. Letters whose records Kafka has acknowledged are committed every second, so only a crash, or another
    send-again at the same time, can repeat letters. Kafka deletes these commits after offsets.retention.minutes, seven
    days by default.

    The exit code is 0 only if Kafka has acknowledged all letters.

    \b
      headway dead send-again orders-dead 0:12 0:15
      headway dead send-again orders-dead --exception TimeoutError --since 12h --dry-run
      headway dead send-again orders-dead --where "key like 'cust-%' and error = TimeoutError"
      headway dead send-again orders-dead --all --max 1
    """
    choice = Choice(frozenset(places), filter, settled_too, limit)
    _require_one_way(choice, everything=everything)
    with complaints() as complaint, opened(topic, connection.config) as (dead, kafka_topics):
        with ProgressLine(dead.size, shown=stderr_is_terminal()) as progress:
            plan = make_plan(dead, choice, to, kafka_topics, progress.show)
        for sentence in plan.left_out(topic):
            complaint.say(sentence)
        _warn_of_delay_topics(topic, plan.topics)
        if not plan.size:
            left_out = plan.without_topic or plan.shortened or plan.empty or plan.own or plan.gone
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
@click.option("--dry-run", is_flag=True, help="Show what would be settled, and settle nothing.")
@_YES
@kafka_options
def settle(
    topic: str,
    places: Sequence[LetterPosition],
    everything: bool,
    filter: Filter,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    connection: ConnectionSettings,
) -> None:
    """Mark dead letters as settled without sending them.

    Use this command for letters that need not be sent, for example because you have sent corrected records. Settled
    letters stay in the topic, and `list` and `send-again` include them with `--settled-too`. A letter that is already
    settled is not changed.

    \b
      headway dead settle orders-dead 0:13
      headway dead settle orders-dead --exception ValidationError --until 2026-05-01
    """
    choice = Choice(frozenset(places), filter, limit=limit)
    _require_one_way(choice, everything=everything)
    with complaints(), opened(topic, connection.config) as (dead, _):
        with ProgressLine(dead.size, shown=stderr_is_terminal()) as progress:
            found = open_letters(dead, choice, progress.show)
        number = letters(found.size)
        if not found.size:
            none = f"{topic} holds {_none(is_such=bool(filter), is_open=True)}"
            click.echo(f"Nothing to settle: {'none of these letters is open' if places else none}.", err=True)
            return
        dead.memory_of(found.existing, found.offsets)  # raises an error if the letters are too scattered to remember
        if dry_run:
            click.echo(f"{number} would be settled.")
            return
        if not yes:
            confirm(f"Settle {number} without sending?")
        dead.remember(found.existing, found.offsets)
        click.echo(f"{number} settled.")


def _require_one_way(choice: Choice, *, everything: bool) -> None:
    """Raise `UsageError` unless letters are named, selected by a filter, or all selected with --all."""
    if choice.places and (everything or choice.filter or choice.limit):
        raise click.UsageError(
            "PARTITION:OFFSET selects individual dead letters. Do not combine it with --all, --max or a filter."
        )
    if not (choice.places or everything or choice.filter):
        raise click.UsageError(
            "Select the letters with PARTITION:OFFSET, --all (every open letter), or a filter such as --exception."
        )


def _warn_of_delay_topics(topic: str, targets: Mapping[str, int]) -> None:
    """Warn that a relay will deliver letters from delay topics to their old targets, where they might fail again."""
    with suppress(ConfigError):  # the topic does not belong to a scheduler
        if TopicNames(topic.removesuffix(".dead")).delay_topics_of(targets):
            click.echo(
                "Some letters go back to delay topics. From there, a relay delivers each of them to the topic that it "
                "was scheduled for. If that topic is wrong or does not exist, name another topic with --to.",
                err=True,
            )


def _send(
    dead: DeadTopic, plan: Plan, connection: ConnectionSettings, complaint: Complaints, *, ask: bool, settled_too: bool
) -> int:
    """Ask for confirmation, send, and return the exit code."""
    dead.memory_of(plan.existing, plan.destinations)  # raises an error if the letters are too scattered to remember
    if ask:
        confirm(f"Send {sent(plan.topics)} again{goals(plan.topics)}?")
    sending = start_sending(dead, plan, connection.config, complaint.say, settled_too=settled_too)
    with ProgressLine(plan.size, shown=stderr_is_terminal()) as progress, Interrupt() as interrupt:
        sending.run(interrupt, progress.show)
    click.echo(f"{sent(sending.stored)} sent again{goals(sending.stored)}.")
    if sending.missing:
        click.echo(f"{letters(sending.missing)} not sent", err=True)
    if sending.interrupted:
        return INTERRUPTED
    return 1 if sending.missing or sending.is_unmarked else 0


class _Found:
    """The letters that `list` shows, and how many others it leaves out because they are settled."""

    def __init__(self, dead: DeadTopic, filter: Filter, settled_too: bool) -> None:
        self._dead = dead
        self._filter = filter
        self._settled_too = settled_too
        self.hidden = 0

    def __iter__(self) -> Iterator[Letter]:
        with ProgressLine(self._dead.size, shown=stderr_is_terminal()) as progress:
            for seen, letter in enumerate(self._dead.letters(), 1):
                progress.show(seen, seen)
                if self._filter.matches(letter):
                    if self._settled_too or not letter.settled:
                        yield letter
                    else:
                        self.hidden += 1


def _none(*, is_such: bool, is_open: bool) -> str:
    """Describe an empty result, depending on how the letters were selected.

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
        show_table(columns, [letter_row(letter) + state[letter.settled] for letter in shown])
    if len(first) > limit:
        click.echo(f"{letters(limit)} shown, and there are more. Raise --max to see them.", err=True)
    elif not shown:
        # "open" distinguishes letters only if there may be others: the filter left some out, or they are settled
        is_open = not settled_too and (is_filtered or found.hidden > 0)
        click.echo(f"{topic} holds {_none(is_such=is_filtered, is_open=is_open)}.", err=True)
    if found.hidden:
        seen = " among those read so far" if len(first) > limit else ""
        click.echo(f"{letters(found.hidden)} settled before{seen}. Add --settled-too to see them.", err=True)
