"""Schedules that `headway schedule` makes, cancels and reschedules; apart from the commands that only look."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import click

from headway.cli.options.due_times import DUE
from headway.cli.options.kafka_options import ConnectionSettings
from headway.cli.records.lines import LongLine
from headway.core.delay.changes import Settled
from headway.core.delay.schedule import HandleParts
from headway.core.levels.naming import level_topic
from headway.delay.commands import no_relay
from headway.delay.due_time import When
from headway.delay.scheduler import Scheduler
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.errors import ConfigError, HeadwayError
from headway.runtime.lifecycle import time_left_of

_UNANSWERED = "not answered"


def schedule_lines(
    lines: Iterable[tuple[object, bytes | LongLine]],
    topic: str,
    key: str | None,
    when: When | None,
    rule: str | None,
    zone: str,
    name: str,
    connection: ConnectionSettings,
    more: Mapping[str, Any],
) -> None:
    """Schedule each line as a record, once at `when` or else by the rule; show its handle as soon as it is stored."""
    with Scheduler(connection.config, name=name) as scheduler:
        if more["level"] is None and _has_only_levels(topic, connection):
            more = {**more, "level": 0}  # as `headway produce` does
        for place, line in lines:
            if isinstance(line, LongLine):
                raise ConfigError(f"{place}: it has {line.size:,} bytes, and a schedule at most {MAX_MESSAGE_BYTES:,}.")
            value = line.rstrip(b"\r\n")
            if rule is not None:
                interval = DUE.seconds(rule)
                handle = scheduler.every(rule if interval is None else interval, key, value, topic, zone=zone, **more)
            else:
                handle = scheduler.send_later(key, value, topic, when, **more)  # type: ignore[arg-type]
            handle.wait()
            click.echo(str(handle))


def _has_only_levels(topic: str, connection: ConnectionSettings) -> bool:
    """Return whether Kafka is seen to have levels of a topic, and no topic of just that name."""
    seen = dict(connection.admin().topics("Write"))
    return topic not in seen and level_topic(topic, 0) in seen


def cancel_all(
    handles: Sequence[str], timeout: float, name: str, connection: ConnectionSettings
) -> list[Settled | str]:
    """Ask the relays to cancel schedules, show the outcome of each, and return the outcomes."""
    return _asked_of_all(handles, timeout, name, connection, Scheduler.begin_to_cancel)


def reschedule_all(
    handles: Sequence[str], due: When, timeout: float, name: str, connection: ConnectionSettings
) -> list[Settled | str]:
    """Ask the relays to give schedules another due time; else as `cancel_all`."""

    def ask(scheduler: Scheduler, handle: str) -> Future[Settled]:
        return scheduler.begin_to_reschedule(handle, due)

    return _asked_of_all(handles, timeout, name, connection, ask)


def _asked_of_all(
    handles: Sequence[str],
    timeout: float,
    name: str,
    connection: ConnectionSettings,
    ask: Callable[[Scheduler, str], Future[Settled]],
) -> list[Settled | str]:
    for handle in handles:
        HandleParts.read(handle)  # a mistake in one handle asks for none
    with Scheduler(connection.config, name=name) as scheduler:
        # Ask for all before waiting for the first answer: without a relay they are stored all the same.
        asked = [ask(scheduler, handle) for handle in handles]
        left = time_left_of(timeout)
        outcomes = [_outcome(answer, left() or 0.0) for answer in asked]
    for handle, outcome in zip(handles, outcomes, strict=True):
        click.echo(f"{handle}: {outcome}")
    if _UNANSWERED in outcomes:
        raise no_relay(timeout)
    return outcomes


def _outcome(answer: Future[Settled], timeout: float) -> Settled | str:
    try:
        return answer.result(timeout)
    except TimeoutError:
        return _UNANSWERED
    except HeadwayError as error:
        return str(error)
