"""`headway top`: watches queues in a terminal."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.top.view_state import VIEWS, ViewState
from headway.inspection.inspector import EVERY, Inspector
from headway.inspection.snapshot import Snapshot

_UNBOUNDED = 10_000  # columns, if stdout is not a terminal
# A member commits every five seconds by default. After seven, rates are known, and whether a record stands still.
_ONCE_EVERY = 1.0
_ONCE_AFTER = 7.0


F = TypeVar("F", bound=Callable[..., Any])


def _names(option: str, metavar: str, help: str) -> Callable[[F], F]:
    name = option.removeprefix("--").replace("-", "_") + "s"
    return click.option(option, name, metavar=metavar, multiple=True, help=f"{help} Can be given several times.")


@click.command()
@_names("--group", "GROUP", "Watch only this group, or the groups GROUP-0, GROUP-1 … of its levels.")
@_names("--topic", "TOPIC", "Watch only this topic, at all its levels.")
@_names("--dead-letter", "TOPIC", "Read this dead-letter topic, not those with a usual name, such as orders-dead.")
@_names("--scheduler", "NAME", "Read only this scheduler.")
@click.option(
    "--metrics",
    metavar="URL",
    multiple=True,
    help="The metrics of a member, such as http://10.0.0.7:8080/metrics, for tenants and work. Can be given several "
    "times.",
)
@click.option(
    "--refresh",
    type=click.FloatRange(0.2, 3600),
    help=f"How many seconds pass between two readings. [default: {EVERY:g}; with --once {_ONCE_EVERY:g}]",
)
@click.option("--view", type=click.Choice(VIEWS), default=VIEWS[0], show_default=True, help="The view to begin with.")
@click.option("--filter", "wanted", default="", metavar="TEXT", help="Show only rows that contain this text.")
@click.option("--once", is_flag=True, help=f"Watch for {_ONCE_AFTER:g} seconds, print all views once, and exit.")
@json_option(more=f", after {_ONCE_AFTER:g} seconds")
@kafka_options
def top(
    groups: Sequence[str],
    topics: Sequence[str],
    dead_letters: Sequence[str],
    schedulers: Sequence[str],
    metrics: Sequence[str],
    refresh: float | None,
    view: str,
    wanted: str,
    once: bool,
    as_json: bool,
    connection: ConnectionSettings,
) -> None:
    """Watch queues: what waits, what is stuck, what failed, and what is due.

    Everything comes from Kafka: commits, offset maps, members, dead letters and schedules. The command joins no group,
    commits nothing, and sends three requests for each group and reading. Without --group, it watches all groups
    that have levels or an offset map. A group is named without its level: billing for billing-0 to billing-2.

    `not done` counts records by the offset maps. The lag that other tools show counts from the commit, so one stuck
    record of 5,000 looks like 5,000. `work` is how long the level needs at the rate of the last half minute. `stuck`
    counts the records that hold back a commit for longer than the time between two commits: the view `stuck` (key 3)
    shows each one, and how many records behind it have the same key and wait.

    Keys: 1 to 9 switch the view, s sorts by the next column, r reverses, / filters, p pauses, ? explains, q quits.
    Without a terminal, the command prints once, without colours.

    \b
      headway top
      headway top --group billing --view stuck
      headway top --once --group billing
      headway top --json | jq '.queues[].levels[] | {kafka_topic, not_done, seconds_of_work}'
    """
    watched: dict[str, Sequence[str]] = {"groups": groups, "topics": topics, "dead_letters": dead_letters}
    watched |= {"schedulers": schedulers, "metrics": metrics}

    from headway.cli.top.screen import TopScreen, can_be_live, console_of  # noqa: PLC0415 - Rich is slow to import

    console = console_of()
    is_live = not once and not as_json and can_be_live(console)
    with Inspector(connection.config, **watched, every=refresh or (EVERY if is_live else _ONCE_EVERY)) as inspector:
        if is_live:
            TopScreen(inspector, console, ViewState(view, filter=wanted)).run()
        elif as_json:
            from headway.cli.top.snapshot_json import describe_snapshot  # noqa: PLC0415 - needed only here

            echo_json(describe_snapshot(_watched(inspector)))
        else:
            from headway.cli.top.pages import print_once  # noqa: PLC0415 - Rich is slow to import

            print_once(_watched(inspector), console if console.is_terminal else console_of(width=_UNBOUNDED), wanted)


def _watched(inspector: Inspector) -> Snapshot:
    """Return a snapshot after some readings, because the first ones have no rates yet."""
    first = latest = inspector.snapshot()
    while latest.taken_at - first.taken_at < _ONCE_AFTER:
        latest = inspector.newer(latest)
    return latest
