"""Schedules that `headway schedule` makes, cancels and reschedules; apart from the commands that only look."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

import click

from headway.cli.display.terminal import count
from headway.cli.options.due_times import DUE
from headway.cli.options.kafka_options import ConnectionSettings
from headway.cli.options.logical_topics import count_levels
from headway.cli.records.lines import LongLine
from headway.core.delay.changes import Settled
from headway.core.delay.schedule import HandleParts
from headway.core.levels.naming import level_topic
from headway.delay.commands import ANSWER_WITHIN, no_relay
from headway.delay.due_time import When
from headway.delay.scheduler import Scheduler
from headway.delay.topic_names import TopicNames
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.errors import AuthorizationError, ConfigError, HeadwayError
from headway.kafka.topic_listing import TopicListing
from headway.runtime.lifecycle import time_left_of

_UNANSWERED = "not answered"
_IN_SILENCE = 2.0  # seconds to wait for a relay before it is told
_WHY_UNKNOWN = (
    "Unknown means that nothing pending was found: it was never scheduled, or it was delivered or cancelled over a "
    "minute ago. `headway schedule list` shows what is pending."
)


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
        existing = connection.admin().topics("Write")
        if more["level"] is None and _has_only_levels(topic, existing):
            more = {**more, "level": 0}  # as `headway produce` does
        target = topic if more["level"] is None else level_topic(topic, more["level"])
        missing = _why_missing(target, topic, existing, TopicNames(name).dead)
        for place, line in lines:
            if isinstance(line, LongLine):
                raise ConfigError(f"{place}: it has {line.size:,} bytes, and a schedule at most {MAX_MESSAGE_BYTES:,}.")
            value = line.rstrip(b"\r\n")
            if rule is not None:
                interval = DUE.seconds(rule)
                handle = scheduler.every(rule if interval is None else interval, key, value, topic, zone=zone, **more)
            else:
                handle = scheduler.send_later(key, value, topic, when, **more)  # type: ignore[arg-type]
            if handle.answer is not None:
                _tell_of_wait([handle.answer], ANSWER_WITHIN)
            handle.wait()
            click.echo(str(handle))
            if missing:  # told with the first that is stored: nothing is stored for what can be no topic
                click.echo(f"headway: {missing}", err=True)
                missing = ""


def _has_only_levels(topic: str, existing: TopicListing) -> bool:
    """Return whether Kafka is seen to have levels of a topic, and no topic of just that name."""
    return topic not in existing.seen and level_topic(topic, 0) in existing.seen


def _why_missing(target: str, topic: str, existing: TopicListing, dead: str) -> str:
    """Return what becomes of records for a topic that does not exist; empty if it does, or may."""
    try:
        if target in existing:
            return ""
    except AuthorizationError:  # it may exist, and the relay see it
        return ""
    levels = 0 if target == topic else count_levels(topic, existing.seen)
    has = f" {topic} has {count(levels, 'level')}, from 0." if levels else ""
    return (
        f"The topic {target} does not exist now.{has} If it does not when a record is due, the record becomes a dead "
        f"letter in {dead}."
    )


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
        if timeout > _IN_SILENCE:
            _tell_of_wait(asked, timeout - _IN_SILENCE)
        outcomes = [_outcome(answer, left() or 0.0) for answer in asked]
    for handle, outcome in zip(handles, outcomes, strict=True):
        click.echo(f"{handle}: {outcome}")
    if Settled.UNKNOWN in outcomes:
        click.echo(f"headway: {_WHY_UNKNOWN}", err=True)
    if _UNANSWERED in outcomes:
        raise no_relay(timeout)
    return outcomes


def _tell_of_wait(answers: Collection[Future[Settled]], longest: float) -> None:
    """Wait for answers for two seconds; if that is too short, say for how many seconds more they are waited for."""
    if wait(answers, _IN_SILENCE).not_done:
        click.echo(
            f"headway: No relay has answered yet. This waits for up to {longest:.3g} s more; `headway relay` runs one.",
            err=True,
        )


def _outcome(answer: Future[Settled], timeout: float) -> Settled | str:
    try:
        return answer.result(timeout)
    except TimeoutError:
        return _UNANSWERED
    except HeadwayError as error:
        return str(error)
