"""`headway waiting`: list the records that a group has not finished, and drop or move them before they are handled."""

import functools
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from headway.actions.marks import this_user
from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.display.tables import Column, show_table
from headway.cli.display.terminal import count
from headway.cli.display.texts import printable, shortened, shown_bytes
from headway.cli.options.due_times import DUE, describe_ms
from headway.cli.options.kafka_options import ConnectionSettings, kafka_options
from headway.cli.records.record_lines import text_or_base64
from headway.errors import KafkaError
from headway.waiting import Fate, RecordFate, UnfinishedRecord, WaitingRecords

F = TypeVar("F", bound=Callable[..., Any])

_MOST_CHARACTERS = 60
_LIMIT = 100


@click.group()
def waiting() -> None:
    """List the records that wait in a group, and drop or move them.

    An edit is carried out by the member that owns the record's partition, which must run with `steered=True`. The edit
    and the record's offset are in one transaction, so each record is handled, moved or dropped once.

    \b
      headway waiting list billing orders --level 0 --key 'cust 7'
      headway waiting promote billing orders --where "header.tenant = acme" --dry-run
      headway waiting drop billing orders --offset 17 --partition 3 --why "sent twice"
      headway waiting move billing orders --to orders-parked --key 'cust 7'
    """


def _selection(command: F) -> F:
    """Add the arguments and options that choose records. The command gets the records and an open `WaitingRecords`."""

    @click.argument("group")
    @click.argument("topic")
    @click.option("--level", type=click.IntRange(min=0), help="Only records of this level.")
    @click.option("--partition", type=click.IntRange(min=0), help="Only records of this partition.")
    @click.option("--offset", "offsets", type=click.IntRange(min=0), multiple=True, help="Only records at this offset.")
    @click.option("--key", help="Only records with this key.")
    @click.option("--where", default="", help="Which records, as in: header.tenant = acme and age > 1h.")
    @click.option(
        "--older-than", type=DUE, metavar="DELAY", help="Only records with a timestamp before this, as in 2h."
    )
    @click.option(
        "--limit", type=click.IntRange(1, 100_000), default=_LIMIT, show_default=True, help="At most this many."
    )
    @functools.wraps(command)
    def with_records(
        group: str,
        topic: str,
        level: int | None,
        partition: int | None,
        offsets: tuple[int, ...],
        key: str | None,
        where: str,
        older_than: float | None,
        limit: int,
        connection: ConnectionSettings,
        **options: Any,
    ) -> Any:
        by = f"{this_user() or 'unknown'}@{platform.node()}"
        with WaitingRecords(connection.config, group, topic, by=by) as opened:
            found = opened.records(
                level=level,
                partition=partition,
                offsets=offsets or None,
                key=key,
                where=where,
                older_than=older_than,
                limit=limit + 1,
            )
            is_all = len(found) <= limit
            options |= {"chosen": any([level is not None, partition is not None, offsets, key, where, older_than])}
            return command(opened, found[:limit], is_all=is_all, **options)

    return kafka_options(with_records)  # type: ignore[return-value]


@waiting.command("list")
@click.option("--values", is_flag=True, help="Show the values too.")
@json_option("record", ", with headers and value")
@_selection
def list_(
    opened: WaitingRecords,
    records: Sequence[UnfinishedRecord],
    *,
    is_all: bool,
    chosen: bool,
    values: bool,
    as_json: bool,
) -> None:
    """List records that are not done, in order, and why each of them waits.

    The command reads the group's commits and the topic, and joins no group. A record counts as not done until the group
    has committed that it is done. Members with `steered=True` say why their records wait.
    """
    why = opened.why(records) if records else {}
    if as_json:
        for record in records:
            echo_json(_described(record, why.get(record.place)))
    elif records:
        titles = ["partition", "offset", "key", "age", "attempts", "waits", *(["value"] if values else [])]
        columns = [Column("level", "right"), *(Column(title, overflow="fold") for title in titles)]
        show_table(columns, (_row(record, why.get(record.place), values=values) for record in records))
    else:
        click.echo("No such record waits.", err=True)
    if not is_all:
        click.echo(f"There are more than these {len(records)}. --limit shows more.", err=True)


def _described(record: UnfinishedRecord, fate: RecordFate | None) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "level": record.level,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "attempts": record.attempts,
        "waits": _waits(fate),
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [{"name": name, **text_or_base64("value", value)} for name, value in record.headers],
    }


def _row(record: UnfinishedRecord, fate: RecordFate | None, *, values: bool) -> list[str]:
    age = max(0, int(time.time() * 1000) - record.timestamp)
    row = [str(record.level), str(record.partition), str(record.offset), _content(record.key), describe_ms(age)]
    return [*row, str(record.attempts), _waits(fate), *([_content(record.value)] if values else [])]


def _content(content: bytes | None) -> str:
    return printable(shortened(shown_bytes(content), _MOST_CHARACTERS))


def _waits(fate: RecordFate | None) -> str:
    if fate is None:
        return "no member answers"
    return f"{fate.fate.value}, {fate.note}" if fate.note else fate.fate.value


# Edits


_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only list the records that would be edited.")


def _edit(command: F) -> F:
    """Add the options of all edits."""
    for option in reversed(
        [
            click.option("--why", default="", help="The reason, for people who see the edit."),
            _DRY_RUN,
            click.option(
                "--timeout", type=DUE, metavar="DELAY", default="30s", show_default=True, help="How long to wait."
            ),
        ]
    ):
        command = option(command)
    return _selection(command)


_BREAK_ORDER = click.option(
    "--break-order", is_flag=True, help="Move records even if records of their key are then handled out of order."
)
_LEVEL = click.option("--to", "to_level", type=click.IntRange(min=0), help="The level. By default the next one.")


@waiting.command()
@_edit
def drop(opened: WaitingRecords, records: Sequence[UnfinishedRecord], **options: Any) -> None:
    """Mark records as done without calling the handler. They are not handled later."""
    _carry_out(records, "dropped", lambda **common: opened.drop(records, **common), **options)


@waiting.command()
@click.option("--lets-pass", is_flag=True, help="Let later records with the same key pass the held ones.")
@click.option("--for", "lasts", type=DUE, metavar="DELAY", help="Release the records after this time, such as 30m.")
@click.option("--why", default="", help="The reason, for people who see the records.")
@_DRY_RUN
@_selection
def hold(
    opened: WaitingRecords,
    records: Sequence[UnfinishedRecord],
    *,
    is_all: bool,
    chosen: bool,
    lets_pass: bool,
    lasts: float | None,
    why: str,
    dry_run: bool,
) -> None:
    """Keep records from starting until they are released. Held records stay in Kafka, and are not done.

    A held record keeps later records of its key waiting. A record that is running continues. `headway rules list` shows
    the rules that hold records.
    """
    if _is_to_do(records, "held", is_all=is_all, chosen=chosen, dry_run=dry_run):
        rules = opened.hold(records, lets_pass=lets_pass, why=why, lasts=lasts)
        click.echo(f"{count(len(records), 'record')} held, by {', '.join(rule.id for rule in rules)}.", err=True)


@waiting.command()
@_DRY_RUN
@_selection
def release(
    opened: WaitingRecords, records: Sequence[UnfinishedRecord], *, is_all: bool, chosen: bool, dry_run: bool
) -> None:
    """Let held records start."""
    if _is_to_do(records, "released", is_all=is_all, chosen=chosen, dry_run=dry_run):
        released = opened.release(records)
        click.echo(f"{count(released, 'record')} of {len(records)} released.", err=True)


@waiting.command("next")
@_edit
def next_(opened: WaitingRecords, records: Sequence[UnfinishedRecord], **options: Any) -> None:
    """Let records start before all others of their partition, after the earlier records of their keys."""
    _carry_out(records, "put first", lambda **common: opened.next(records, **common), **options)


@waiting.command()
@click.option("--to", required=True, metavar="TOPIC", help="The Kafka topic to which the records are moved.")
@_BREAK_ORDER
@_edit
def move(
    opened: WaitingRecords, records: Sequence[UnfinishedRecord], to: str, break_order: bool, **options: Any
) -> None:
    """Move records to another topic. A record is moved after the earlier records of its key."""
    _carry_out(
        records,
        f"moved to {to}",
        lambda **common: opened.move(records, to, break_order=break_order, **common),
        **options,
    )


@waiting.command()
@_LEVEL
@_BREAK_ORDER
@_edit
def promote(
    opened: WaitingRecords, records: Sequence[UnfinishedRecord], to_level: int | None, break_order: bool, **options: Any
) -> None:
    """Move records to a higher level, by default the next one."""
    _carry_out(
        records,
        "promoted",
        lambda **common: opened.promote(records, to_level, break_order=break_order, **common),
        **options,
    )


@waiting.command()
@_LEVEL
@_BREAK_ORDER
@_edit
def demote(
    opened: WaitingRecords, records: Sequence[UnfinishedRecord], to_level: int | None, break_order: bool, **options: Any
) -> None:
    """Move records to a lower level, by default the next one."""
    _carry_out(
        records,
        "demoted",
        lambda **common: opened.demote(records, to_level, break_order=break_order, **common),
        **options,
    )


def _carry_out(
    records: Sequence[UnfinishedRecord],
    done: str,
    edit: Callable[..., list[RecordFate]],
    *,
    is_all: bool,
    chosen: bool,
    why: str,
    dry_run: bool,
    timeout: float,
) -> None:
    if not _is_to_do(records, done, is_all=is_all, chosen=chosen, dry_run=dry_run):
        return
    fates = edit(why=why, timeout=timeout, on_fate=_report(done))
    carried_out = sum(fate.fate is Fate.DONE for fate in fates)
    click.echo(f"{count(carried_out, 'record')} of {len(records)} {done}.", err=True)
    if undecided := len(records) - len(fates):
        raise KafkaError(
            f"{count(undecided, 'record')} had no answer within {timeout:g} s, and might still be {done}. The members "
            "of the group must run with steered=True. `headway waiting list` shows what waits."
        )
    if carried_out < len(records):
        raise SystemExit(1)


def _is_to_do(records: Sequence[UnfinishedRecord], done: str, *, is_all: bool, chosen: bool, dry_run: bool) -> bool:
    """Check a selection, and say if it is not complete. With `dry_run`, list the records and return False."""
    if not chosen:
        raise click.UsageError("Choose records, with --key, --offset, --where or another option.")
    if not records:
        raise KafkaError("No such record waits.")
    if dry_run:
        for record in records:
            click.echo(_named(record.place))
        click.echo(f"{count(len(records), 'record')} would be {done}.", err=True)
    if not is_all:
        click.echo(f"There are more than these {len(records)}. --limit allows more.", err=True)
    return not dry_run


def _report(done: str) -> Callable[[RecordFate], None]:
    shown = set[tuple[str, int, int, Fate]]()

    def report(fate: RecordFate) -> None:
        line = (fate.topic, fate.partition, fate.offset, fate.fate)
        if line in shown:
            return  # asked again, and still the same
        shown.add(line)
        what = done if fate.fate is Fate.DONE else fate.fate.value
        click.echo(f"{_named(line[:3])}: {what}" + (f", {fate.note}" if fate.note else ""))

    return report


def _named(place: tuple[str, int, int]) -> str:
    return f"{place[0]} {place[1]}:{place[2]}"
