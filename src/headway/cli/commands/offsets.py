"""`headway offsets`: shows the commits of groups and their offset maps. `copy` and `reset` are in `cli/commits`."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from headway.cli.commands.levels import LEVELS
from headway.cli.commits.changing import copy, reset
from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.display.map_drawing import LEGEND, draw
from headway.cli.display.tables import Column, show_table
from headway.cli.display.terminal import count
from headway.cli.display.texts import local_time, printable, shortened
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.options.logical_topics import count_levels
from headway.cli.records.record_lines import text_or_base64
from headway.core.levels.naming import is_topic_or_level, level_group, level_topic
from headway.core.offsets.commit_metadata import UNKNOWN, CommitMetadata, read_metadata
from headway.core.offsets.offset_map import OffsetMap
from headway.core.offsets.trailer import Tried, log_mark, mark_text
from headway.errors import KafkaError, OffsetMapError
from headway.kafka.binding.capi import Partition
from headway.kafka.reading.group_inspector import GroupInspector
from headway.kafka.reading.group_state import Member
from headway.kafka.topic_listing import TopicListing

_MOST_RANGES = 20
_MOST_CHARACTERS = 40

Members = Mapping[Partition, Member]
"""For each assigned partition, the member of the group to which it is assigned now."""


class PartitionCommit(NamedTuple):
    """A partition of a group's topics, with the group's commit and, if assigned, the member that has it.

    `offset` is None if nothing is committed, and `log_end` is None if the partition no longer exists.
    """

    topic: str
    partition: int
    offset: int | None
    log_start: int
    log_end: int | None
    text: bytes
    metadata: CommitMetadata
    member: Member | None

    @property
    def lag(self) -> int | None:
        """The number of offsets after the committed one."""
        if self.log_end is None:
            return None
        return max(0, self.log_end - max(self.log_start, self.offset or 0))

    @property
    def deleted(self) -> int | None:
        """The number of offsets that were deleted before the group committed them; 0 without a commit."""
        if self.log_end is None:
            return None
        return 0 if self.offset is None else max(0, self.log_start - self.offset)


@click.group()
def offsets() -> None:
    """Show, copy and reset the commits of groups, with their offset maps.

    A parallel consumer commits the lowest offset that is not done, with an offset map: which offsets above it are done.
    Kafka's own tools show the offset, but show the map only as encoded text.

    \b
      headway offsets show billing
      headway offsets show billing --levels 3
      headway offsets decode bAAFGgA= --offset 100
      headway offsets copy tasks tasks --to-levels --topic emails=2 --dry-run
      headway offsets reset billing --levels 3 --time 12h --dry-run
    """


offsets.add_command(copy)
offsets.add_command(reset)


@offsets.command()
@click.argument("group")
@click.option("--topic", help="Show only this topic.")
@click.option("--levels", type=LEVELS, help="Show the groups GROUP-0 to GROUP-(N-1) of N levels.")
@json_option("group", ", with the ranges that are not done")
@kafka_options
def show(group: str, topic: str | None, levels: int | None, as_json: bool, connection: ConnectionSettings) -> None:
    """Show the commits, offset maps and members of a group.

    The command only reads: it joins no group and changes nothing. The lag counts the offsets from the committed one to
    the end of the log. Some of these may be done, as the offset map shows. `deleted` counts offsets that retention, or
    a user, deleted before they were committed. If the group has a commit for a topic (with --levels, at any level), all
    partitions of the topic are shown. The lag of a partition without a commit counts all its offsets.

    `member` is the member that the partition is assigned to, as CLIENT.ID@HOST. The members of the group headway-delay
    are the relays.

    \b
      headway offsets show billing
      headway offsets show billing --levels 3 --topic orders
      headway offsets show billing --json | jq '.partitions[].lag'
    """
    kafka_topics = connection.admin().topics()  # raises an error if no broker answers
    names = [group] if levels is None else [level_group(group, level) for level in range(levels)]
    members = {name: _members(connection, name) for name in names}
    found = {name: _read(connection, name, members[name]) for name in names}
    _require_any(group, levels, [name for name in names if found[name] or members[name]], connection)
    for name, partitions in _without_commit(found, members, kafka_topics, with_levels=levels is not None).items():
        found[name] += _read_uncommitted(connection, name, partitions, members[name])
        found[name].sort(key=lambda each: (each.topic, each.partition))
    if topic is not None:
        found = {
            name: [each for each in commits if is_topic_or_level(each.topic, topic, None if levels is None else level)]
            for level, (name, commits) in enumerate(found.items())
        }
        if not any(found.values()):
            raise KafkaError(
                f"The group {group} has committed nothing for {topic}. Leave out --topic to see what it has committed."
            )
    if as_json:
        for name, commits in found.items():
            echo_json(_describe_group(name, commits))
    else:
        _show(found, with_group=levels is not None)
    if levels is not None:
        _mention_higher_levels(group, levels, connection)


@offsets.command()
@click.argument("text")
@click.option("--offset", type=click.IntRange(min=0), required=True, help="The offset that was committed with TEXT.")
@json_option(more=", with all ranges that are not done")
def decode(text: str, offset: int, as_json: bool) -> None:
    """Explain TEXT, the metadata of a commit. `-` reads it from stdin.

    Paste TEXT as another tool shows it. TEXT can be an offset map of Headway or of the Java parallel consumer, or
    metadata of Kafka Streams.

    \b
      headway offsets decode bAAFGgA= --offset 100
      pbpaste | headway offsets decode - --offset 100
    """
    # An argument can hold any bytes; Python represents those that are not UTF-8 as lone surrogates.
    content = text.encode(errors="surrogateescape")
    if text == "-":
        with click.open_file("-", "rb") as stdin:
            content = stdin.read()
    content = content.strip()
    metadata = read_metadata(content, offset)
    if metadata.reason is not None:
        raise OffsetMapError(metadata.reason)
    if as_json:
        echo_json({"offset": offset, **_describe(content, metadata)})
    else:
        for line in _explain(metadata):
            click.echo(line)


def _members(connection: ConnectionSettings, group: str) -> Members:
    with GroupInspector(connection.config, group) as inspector:
        return inspector.members()


def _read(connection: ConnectionSettings, group: str, members: Members) -> list[PartitionCommit]:
    with GroupInspector(connection.config, group) as inspector:
        committed = inspector.committed(inspector.partitions())
        # Read the end offsets after the commits. Otherwise an offset map could seem to reach beyond the log.
        starts, ends = inspector.starts(committed), inspector.ends(committed)
    ids = connection.admin().topic_ids({topic for (topic, _), (_, text) in committed.items() if text})
    found = []
    for (topic, number), (offset, text) in committed.items():
        start, end = starts.get((topic, number), 0), ends.get((topic, number))
        metadata = read_metadata(text, offset, end, log_mark(ids.get(topic, "")))
        member = members.get((topic, number))
        found.append(PartitionCommit(topic, number, offset, start, end, text, metadata, member))
    return found


def _without_commit(
    found: Mapping[str, Sequence[PartitionCommit]],
    members: Mapping[str, Members],
    kafka_topics: TopicListing,
    *,
    with_levels: bool,
) -> dict[str, list[Partition]]:
    """Find the partitions for which each group has no commit, in the topics of the group.

    A topic belongs to a group if the group has a commit for a partition of the topic, if a partition is assigned to a
    member of the group, or if the group of another level has a commit for the topic.
    """
    topics = {
        each.topic.removesuffix(f"-{level}")
        for level, commits in enumerate(found.values() if with_levels else ())
        for each in commits
        if each.topic.endswith(f"-{level}")
    }
    missing: dict[str, list[Partition]] = {}
    for level, (group, commits) in enumerate(found.items()):
        names = {each.topic for each in commits} | {level_topic(topic, level) for topic in topics}
        names |= {name for name, _ in members[group] if name in kafka_topics.seen}
        there = {(name, partition) for name in names for partition in range(kafka_topics.get(name, 0))}
        missing[group] = sorted(there - {(each.topic, each.partition) for each in commits})
    return missing


def _read_uncommitted(
    connection: ConnectionSettings, group: str, partitions: Sequence[Partition], members: Members
) -> Iterator[PartitionCommit]:
    if not partitions:
        return
    with GroupInspector(connection.config, group) as inspector:
        starts, ends = inspector.starts(partitions), inspector.ends(partitions)
    for each in partitions:
        if each in starts and each in ends:  # the topic might have been deleted in the meantime
            start, end = starts[each], ends[each]
            yield PartitionCommit(*each, None, start, end, b"", read_metadata(b"", start, end), members.get(each))


def _mention_higher_levels(group: str, levels: int, connection: ConnectionSettings) -> None:
    with GroupInspector(connection.config, group) as inspector:
        there = count_levels(group, inspector.groups())
    if there > levels:
        click.echo(f"The group has more levels, which are not shown. Use --levels {there}.", err=True)


def _require_any(group: str, levels: int | None, found: Sequence[str], connection: ConnectionSettings) -> None:
    if found:
        return
    with GroupInspector(connection.config, group) as inspector:
        groups = inspector.groups()
    name = group if levels is None else level_group(group, 0)
    if name in groups:
        raise KafkaError(
            f"The group {name} has committed nothing yet for topics that this client can see. Try again when it has "
            "handled records. If it already has, grant Describe on its topics to the principal of this client."
        )
    raise KafkaError(f"Kafka has no group {name}. {_hint(group, levels, groups)}")


def _hint(group: str, levels: int | None, groups: Sequence[str]) -> str:
    if levels is None and level_group(group, 0) in groups:
        return f"It has levels. Add --levels {count_levels(group, groups)}."
    if levels is not None and group in groups:
        return f"There is a group {group} without levels. Leave out --levels."
    names = groups if levels is None else {each.rpartition("-")[0] for each in groups}
    near = difflib.get_close_matches(group, names, n=1)
    if near:
        return f"Did you mean {near[0]}?"
    some = ", ".join(groups[:5]) or "none"
    return f"A group exists once it has committed or has members. Existing groups: {some}."


def _show(found: dict[str, list[PartitionCommit]], with_group: bool) -> None:
    columns = [Column("group", overflow="fold")] if with_group else []
    columns += [Column("topic", overflow="fold")]
    columns += [Column(name, justify="right") for name in ("partition", "committed", "log end", "lag", "deleted")]
    columns += [Column(name, overflow="fold") for name in ("member", "metadata")]
    rows = [([group] if with_group else []) + _row(each) for group, commits in found.items() for each in commits]
    show_table(columns, rows)
    for group, commits in found.items():
        if all(each.offset is None for each in commits):
            click.echo(f"headway: The group {group} has committed nothing.", err=True)
    drawings = [
        line
        for group, commits in found.items()
        for each in commits
        for line in _drawing(each, f"{group}: " if with_group else "")
    ]
    if drawings:
        click.echo("\n".join(["", *drawings, f"  {LEGEND}"]))


def _row(commit: PartitionCommit) -> list[str]:
    log_end, lag, deleted = "gone", "-", "-"
    if commit.log_end is not None:
        log_end, lag, deleted = f"{commit.log_end:,}", f"{commit.lag:,}", f"{commit.deleted:,}"
    committed = "-" if commit.offset is None else f"{commit.offset:,}"
    member = "-" if commit.member is None else printable(str(commit.member))
    return [commit.topic, str(commit.partition), committed, log_end, lag, deleted, member, _summary(commit)]


def _summary(commit: PartitionCommit) -> str:
    metadata = commit.metadata
    if commit.offset is None:
        return "none"
    if metadata.encoding == UNKNOWN:
        text = shortened(printable(commit.text.decode(errors="replace")), _MOST_CHARACTERS)
        return f"unknown: {text}"
    if metadata.stream_time is not None:
        return f"{metadata.encoding}: {_stream_time(metadata.stream_time)}"
    offset_map = metadata.offset_map or OffsetMap(commit.offset)
    failed = f"{len(_failed_before(metadata)):,} failed before" if _failed_before(metadata) else ""
    if not offset_map.runs:
        return failed or "none"
    done, rest = _size(offset_map.complete), _size(offset_map.incomplete)
    return f"{metadata.encoding}: {done:,} done, {rest:,} not{failed and ', ' + failed}"


def _failed_before(metadata: CommitMetadata) -> Mapping[int, Tried]:
    return metadata.trailer.tried if metadata.trailer else {}


def _drawing(commit: PartitionCommit, prefix: str) -> Iterator[str]:
    place = f"{prefix}{commit.topic}, partition {commit.partition}"
    if commit.metadata.reason:
        yield f"{place}: {commit.metadata.reason}"
    elif (offset_map := commit.metadata.offset_map) and offset_map.runs:
        yield f"{place}: {_extent(offset_map)}"
        yield f"  {draw(offset_map)}"


def _extent(offset_map: OffsetMap) -> str:
    return f"offsets {offset_map.offset:,} to {offset_map.end - 1:,}"


def _explain(metadata: CommitMetadata) -> Iterator[str]:
    if metadata.stream_time is not None:
        yield f"{metadata.encoding}: {_stream_time(metadata.stream_time)}. This is stream time; there is no offset map."
        return
    offset_map = metadata.offset_map
    if offset_map is None or not offset_map.runs:
        yield f"{metadata.encoding}: nothing is done above the committed offset."
    else:
        yield f"{metadata.encoding}: {_extent(offset_map)}"
        yield f"  {draw(offset_map)}"
        yield f"  {LEGEND}"
        done, rest = _size(offset_map.complete), offset_map.incomplete
        yield f"{count(done, 'offset')} done, the highest is {offset_map.end - 1:,}."
        yield f"{count(_size(rest), 'offset')} not done: {_listed(rest)}."
    yield from _explain_trailer(metadata)


def _explain_trailer(metadata: CommitMetadata) -> Iterator[str]:
    if tried := _failed_before(metadata):
        some = [
            f"{offset:,} ({count(each.attempts, 'attempt')})" for offset, each in list(tried.items())[:_MOST_RANGES]
        ]
        more = [f"… and {count(len(tried) - len(some), 'offset')} more"] if len(tried) > len(some) else []
        yield f"{count(len(tried), 'offset')} failed before: {'; '.join(some + more)}."
    if metadata.trailer and metadata.trailer.log:
        yield f"Written for a topic whose id begins with {mark_text(metadata.trailer.log)}."


def _listed(ranges: Sequence[range]) -> str:
    some = [f"{each[0]:,}" if len(each) == 1 else f"{each[0]:,} to {each[-1]:,}" for each in ranges[:_MOST_RANGES]]
    more = len(ranges) - len(some)
    return "; ".join([*some, f"… and {count(more, 'range')} more"] if more else some)


def _describe_group(group: str, commits: Iterable[PartitionCommit]) -> dict[str, Any]:
    return {
        "group": group,
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "committed": each.offset,
                "log_end": each.log_end,
                "lag": each.lag,
                "deleted": each.deleted,
                "member": None if each.member is None else each.member._asdict(),
                **_describe(each.text, each.metadata),
            }
            for each in commits
        ],
    }


def _describe(text: bytes, metadata: CommitMetadata) -> dict[str, Any]:
    offset_map = metadata.offset_map
    described: dict[str, Any] = {**text_or_base64("metadata", text), "encoding": metadata.encoding}
    if offset_map is not None:
        described |= {
            "done": _size(offset_map.complete),
            "not_done": _size(offset_map.incomplete),
            "highest_done": offset_map.end - 1 if offset_map.runs else None,
            "incomplete": [{"start": each.start, "end": each.stop} for each in offset_map.incomplete],
        }
    if metadata.trailer:
        described["failed"] = [
            {"offset": offset, **each._asdict()} for offset, each in _failed_before(metadata).items()
        ]
        described["topic_id_begins"] = mark_text(metadata.trailer.log) or None
    if metadata.stream_time is not None:
        described["stream_time"] = metadata.stream_time
    if metadata.reason is not None:
        described["reason"] = metadata.reason
    return described


def _size(ranges: Iterable[range]) -> int:
    return sum(map(len, ranges))


def _stream_time(milliseconds: int) -> str:
    return "no time yet" if milliseconds < 0 else local_time(milliseconds)
