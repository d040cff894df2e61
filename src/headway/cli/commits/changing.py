"""`headway offsets copy` and `headway offsets reset`: change the commits of groups without members."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import click

from headway.cli.commits.plans import OffsetChange, chosen_commits, copies, level_groups, level_of, refuse_to_replace
from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.display.tables import Column, show_table
from headway.cli.display.terminal import count
from headway.cli.options.due_times import Moment
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.core.levels.naming import MOST_LEVELS, groups_of, how_to_create, level_group, level_topic
from headway.errors import ConfigError, KafkaError
from headway.kafka.binding.capi import CommittedOffsets, Partition
from headway.kafka.reading.group_inspector import GroupInspector

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would be committed.")


class TopicOfLevel(click.ParamType[tuple[str, int | None]]):
    """A topic, optionally with its level after a `=`."""

    name = "TOPIC[=LEVEL]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int | None]:
        topic, equals, level = str(value).partition("=")
        if not topic or (equals and not level.isdecimal()):
            self.fail(f"{value!r} is neither a topic nor a topic with its level, such as emails=2.", param, ctx)
        return topic, int(level) if equals else None


class Inspectors:
    """Opens one `GroupInspector` per group on first use, and closes all of them at the end of the block."""

    def __init__(self, connection: ConnectionSettings) -> None:
        self._config = connection.config
        self._open: dict[str, GroupInspector] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Inspectors":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, group: str) -> GroupInspector:
        if group not in self._open:
            self._open[group] = self._stack.enter_context(GroupInspector(self._config, group))
        return self._open[group]

    def committed(self, group: str, partitions: Collection[Partition] | None = None) -> CommittedOffsets:
        """Return the commits of a group for these partitions, or for all partitions."""
        inspector = self[group]
        return inspector.committed(inspector.partitions() if partitions is None else partitions)

    def require_empty(self, groups: Iterable[str]) -> None:
        """Raise `KafkaError` if a group has members, because they would commit their own positions later."""
        for group in groups:
            if members := self[group].member_count():
                raise KafkaError(
                    f"The group {group} has {count(members, 'member')}, which would overwrite the new commits. Stop "
                    f"{'it' if members == 1 else 'them'} first; nothing was changed."
                )


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--from-levels", is_flag=True, help="SOURCE has a group for each level: SOURCE-0, SOURCE-1, …")
@click.option(
    "--to-levels",
    is_flag=True,
    help="TARGET has a group for each level. Each topic's commits go to its level.",
)
@click.option(
    "--topic",
    "topics",
    type=TopicOfLevel(),
    multiple=True,
    help="Copy only the commits of this Kafka topic; emails=2 also gives its level.",
)
@click.option("--overwrite", is_flag=True, help="Replace commits that TARGET already has.")
@_DRY_RUN
@json_option("partition")
@kafka_options
def copy(
    source: str,
    target: str,
    from_levels: bool,
    to_levels: bool,
    topics: Sequence[tuple[str, int | None]],
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
    connection: ConnectionSettings,
) -> None:
    """Copy the commits of the group SOURCE to the group TARGET.

    Offset maps are copied too. SOURCE keeps its commits. Stop the members of both groups first; the command refuses
    groups with members. If TARGET already has a different commit for any partition, nothing is copied, unless
    --overwrite is given.

    A Headway consumer uses either one group for all levels, or one group for each level. --to-levels and --from-levels
    copy the commits from one of these forms to the other. The name of a level topic such as orders-2 gives its level;
    for other topics, add the level.

    \b
      headway offsets copy tasks tasks --to-levels --topic emails=2 --topic reports=0 --dry-run
      headway offsets copy tasks tasks --to-levels --topic emails=2 --topic reports=0
      headway offsets copy tasks tasks --from-levels
      headway offsets copy billing billing-new
    """
    connection.admin().topics()  # raises an error if no broker answers
    given = dict(topics)
    with Inspectors(connection) as groups:
        of_levels = level_groups(source, groups[source].groups()) if from_levels else {}
        sources = list(of_levels) if from_levels else [source]
        committed = {name: groups.committed(name) for name in sources}
        found = chosen_commits(committed, of_levels, given)
        if not found:
            raise KafkaError(_nothing_found(source, from_levels, given))
        there = {topic for of_group in committed.values() for topic, _ in of_group}
        if left_out := sorted(there.difference(topic for topic, _ in found)):
            click.echo(f"Left out {', '.join(left_out)}, because --topic names only other topics.", err=True)
        if without := sorted(given.keys() - {topic for topic, _ in found}):
            click.echo(f"Nothing is committed for {', '.join(without)}, so there is nothing to copy.", err=True)

        def target_of(topic: str) -> str:
            return level_group(target, level_of(topic, given)) if to_levels else target

        changes = copies(found, target_of, groups.committed)
        if not changes:
            raise ConfigError(
                f"The commits of {source} would be copied to {target} itself. Name two groups, or add --to-levels or "
                "--from-levels."
            )
        if not overwrite:
            refuse_to_replace(changes)
        _carry_out(groups, changes, dry_run=dry_run, as_json=as_json)


def _nothing_found(source: str, from_levels: bool, given: Mapping[str, int | None]) -> str:
    for_topics = f" for {' or '.join(given)}" if given else ""
    who = f"No group {source}-0, {source}-1, …" if from_levels else f"The group {source}"
    has = "has" if from_levels else "has not"
    return f"{who} {has} committed anything{for_topics}. `headway offsets show` shows what a group has committed."


@click.command()
@click.argument("group")
@click.option("--earliest", is_flag=True, help="Go back to the first record of each partition.")
@click.option("--latest", is_flag=True, help="Go to the end: only later records are read.")
@click.option("--offset", type=click.IntRange(min=0), help="Go to this offset, or the nearest that exists.")
@click.option("--time", "since", type=Moment(), help="Go to the first record at or after this time: 2026-05-01, 12h.")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic, even if it has no commit yet."
)
@click.option("--partition", "numbers", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "--levels",
    type=click.IntRange(1, MOST_LEVELS),
    help="For the groups GROUP-0 to GROUP-(N-1), each with the topics of its level.",
)
@_DRY_RUN
@json_option("partition")
@kafka_options
def reset(
    group: str,
    earliest: bool,
    latest: bool,
    offset: int | None,
    since: int | None,
    topics: Sequence[str],
    numbers: Sequence[int],
    levels: int | None,
    dry_run: bool,
    as_json: bool,
    connection: ConnectionSettings,
) -> None:
    """Set the offsets from which a group continues, by default in all partitions of its topics.

    Stop the group's members first; the command refuses a group with members. The offset maps of the replaced commits
    are dropped. So all records from the new offset on are handled again, and their failed attempts count from zero. For
    a group without commits, name the topics with --topic.

    \b
      headway offsets reset billing --time 12h --dry-run
      headway offsets reset billing --levels 3 --topic orders --earliest
      headway offsets reset billing --topic orders-2 --partition 0 --offset 1500
    """
    if [earliest, latest, offset is not None, since is not None].count(True) != 1:
        raise click.UsageError("Give exactly one of --earliest, --latest, --offset and --time.")
    kafka_topics = connection.admin().topics()
    with Inspectors(connection) as groups:
        changes: list[OffsetChange] = []
        for level, name in enumerate(groups_of(group, levels, per_level=True)):
            wanted = list(topics) if levels is None else [level_topic(topic, level) for topic in topics]
            before = groups.committed(name)
            partitions = _partitions(wanted or sorted({topic for topic, _ in before}), kafka_topics, numbers)
            places = _places(groups[name], partitions, earliest=earliest, latest=latest, offset=offset, since=since)
            changes += [OffsetChange(name, name, each, before.get(each), at, b"") for each, at in places.items()]
        if not changes:
            raise KafkaError(f"The group {group} has committed nothing. Name the topics with --topic.")
        _carry_out(groups, changes, dry_run=dry_run, as_json=as_json)


def _partitions(topics: Iterable[str], there: Mapping[str, int], numbers: Collection[int]) -> list[Partition]:
    """Return the partitions of the topics with these numbers, or by default all partitions.

    Raises `KafkaError` if a partition does not exist.
    """
    found: list[Partition] = []
    for topic in topics:
        size = there.get(topic, 0)
        if not size:
            raise KafkaError(f"Kafka has no topic {topic}. {how_to_create(topic)}")
        if missing := [number for number in numbers if number >= size]:
            raise KafkaError(f"The topic {topic} has no partition {missing[0]}, only 0 to {size - 1}.")
        found += [(topic, number) for number in (sorted(set(numbers)) or range(size))]
    return found


def _places(
    inspector: GroupInspector,
    partitions: Collection[Partition],
    *,
    earliest: bool,
    latest: bool,
    offset: int | None,
    since: int | None,
) -> dict[Partition, int]:
    if earliest:
        return inspector.starts(partitions)
    ends = inspector.ends(partitions)
    if latest:
        return ends
    if since is not None:
        return {each: inspector.offset_at(each, since, end) for each, end in ends.items()}
    starts = inspector.starts(partitions)
    return {each: min(max(offset or 0, starts[each]), end) for each, end in ends.items() if each in starts}


def _carry_out(groups: Inspectors, changes: Sequence[OffsetChange], *, dry_run: bool, as_json: bool) -> None:
    """Show all changes, and commit those that change anything, with one request per group."""
    names = dict.fromkeys(name for change in changes for name in (change.source, change.target))
    groups.require_empty(names)
    to_make = [change for change in changes if change.changes_anything]
    if not dry_run:
        by_target: dict[str, dict[Partition, tuple[int, bytes]]] = {}
        for change in to_make:
            by_target.setdefault(change.target, {})[change.partition] = change.offset, change.metadata
        for target, offsets in by_target.items():
            groups[target].commit(offsets)
    show = _show_json if as_json else _show
    show(changes, dry_run)
    verb = "would be made" if dry_run else "made"
    same = len(changes) - len(to_make)
    unchanged = f", {same:,} unchanged" if same else ""
    click.echo(f"headway: {count(len(to_make), 'commit')} {verb}{unchanged}.", err=True)


def _show(changes: Sequence[OffsetChange], dry_run: bool) -> None:
    columns = [Column("group", overflow="fold"), Column("topic", overflow="fold")]
    columns += [Column(name, justify="right") for name in ("partition", "before", "after")]
    columns += [Column("from", overflow="fold")]
    rows = [
        [
            change.target,
            change.partition[0],
            str(change.partition[1]),
            "-" if change.before is None else f"{change.before[0]:,}",
            f"{change.offset:,}",
            change.source if change.source != change.target else "",
        ]
        for change in changes
    ]
    show_table(columns, rows)


def _show_json(changes: Sequence[OffsetChange], dry_run: bool) -> None:
    for change in changes:
        echo_json(
            {
                "group": change.target,
                "topic": change.partition[0],
                "partition": change.partition[1],
                "before": None if change.before is None else change.before[0],
                "after": change.offset,
                "from": change.source,
                "made": not dry_run and change.changes_anything,
            }
        )
