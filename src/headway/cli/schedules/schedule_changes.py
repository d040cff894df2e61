"""Adds, cancels and reschedules schedules, for the commands of `headway schedule`.

This is a separate module so that other commands load quickly.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

import click

from headway.cli.display.terminal import count
from headway.cli.options.kafka_options import ConnectionSettings
from headway.cli.options.logical_topics import count_levels
from headway.cli.records.lines import LongLine
from headway.core.delay.changes import Settled
from headway.core.delay.schedule import HandleParts
from headway.core.duration import parse_duration
from headway.core.levels.naming import level_topic
from headway.delay.change_request import ChangeRequest
from headway.delay.commands import ANSWER_WITHIN, no_relay
from headway.delay.due_time import When
from headway.delay.scheduler import Scheduler
from headway.delay.topic_names import TopicNames
from headway.delay.topics import MAX_MESSAGE_BYTES
from headway.errors import AuthorizationError, ConfigError, HeadwayError, NoRelayError
from headway.kafka.topic_listing import TopicListing
from headway.runtime.lifecycle import time_left_of

_UNANSWERED = "not answered"
_IN_SILENCE = 2.0  # after this many seconds without an answer, the command prints that it is waiting
_WHY_UNKNOWN = (
    "Unknown means that no such schedule is pending: it never existed, or it was delivered or cancelled more than a "
    "minute ago. `headway schedule list` shows pending schedules."
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
    """Schedule each line as a record, once at `when` or repeatedly by `rule`, and print its handle when stored."""
    with Scheduler(connection.config, name=name) as scheduler:
        existing = connection.admin().topics("Write")
        if more["level"] is None and _has_only_levels(topic, existing):
            more = {**more, "level": 0}  # as `headway produce` does
        target = topic if more["level"] is None else level_topic(topic, more["level"])
        missing = _why_missing(target, topic, existing, TopicNames(name).dead)
        for place, line in lines:
            if isinstance(line, LongLine):
                raise ConfigError(
                    f"{place}: it has {line.size:,} bytes, but a schedule can have at most {MAX_MESSAGE_BYTES:,}."
                )
            value = line.rstrip(b"\r\n")
            if rule is not None:
                interval = parse_duration(rule)
                handle = scheduler.every(rule if interval is None else interval, key, value, topic, zone=zone, **more)
            else:
                handle = scheduler.send_later(key, value, topic, when, **more)  # type: ignore[arg-type]
            if handle.answer is not None:
                _wait_briefly([handle.answer], ANSWER_WITHIN)
            handle.wait()
            click.echo(str(handle))
            if missing:  # printed only now, because an invalid topic raises an error before the first record is stored
                click.echo(f"headway: {missing}", err=True)
                missing = ""


def _has_only_levels(topic: str, existing: TopicListing) -> bool:
    """Return whether the listed topics include the lowest level of a topic, but not the bare name."""
    return topic not in existing.seen and level_topic(topic, 0) in existing.seen


def _why_missing(target: str, topic: str, existing: TopicListing, dead: str) -> str:
    """Explain what will happen to records for a topic that does not exist. Return "" if the topic may exist."""
    try:
        if target in existing:
            return ""
    except AuthorizationError:  # the topic may exist, and the relay may be permitted to describe it
        return ""
    levels = 0 if target == topic else count_levels(topic, existing.seen)
    has = f" {topic} has {count(levels, 'level')}, from 0." if levels else ""
    return (
        f"The topic {target} does not exist now.{has} If it is still missing when a record is due, the record becomes "
        f"a dead letter in {dead}."
    )


def cancel_all(
    handles: Sequence[str], timeout: float, name: str, connection: ConnectionSettings
) -> list[Settled | str]:
    """Request that relays cancel schedules, print each outcome, and return the outcomes."""
    return _request_all(handles, timeout, name, connection, Scheduler.cancel)


def reschedule_all(
    handles: Sequence[str], due: When, timeout: float, name: str, connection: ConnectionSettings
) -> list[Settled | str]:
    """Request that relays change the due times of schedules, print each outcome, and return the outcomes."""

    def ask(scheduler: Scheduler, handle: str) -> ChangeRequest:
        return scheduler.reschedule(handle, due)

    return _request_all(handles, timeout, name, connection, ask)


def _request_all(
    handles: Sequence[str],
    timeout: float,
    name: str,
    connection: ConnectionSettings,
    ask: Callable[[Scheduler, str], ChangeRequest],
) -> list[Settled | str]:
    for handle in handles:
        HandleParts.read(handle)  # check all handles first, so that nothing is changed if one of them is not valid
    with Scheduler(connection.config, name=name) as scheduler:
        # Send all requests before waiting for the first answer, so that they are stored even if no relay is running.
        requests = [ask(scheduler, handle) for handle in handles]
        left = time_left_of(timeout)
        if timeout > _IN_SILENCE:
            _wait_briefly([each.answer for each in requests if each.answer], timeout - _IN_SILENCE)
        outcomes = [_outcome(each, left() or 0.0) for each in requests]
    for handle, outcome in zip(handles, outcomes, strict=True):
        click.echo(f"{handle}: {outcome}")
    if Settled.UNKNOWN in outcomes:
        click.echo(f"headway: {_WHY_UNKNOWN}", err=True)
    if _UNANSWERED in outcomes:
        raise no_relay(timeout)
    return outcomes


def _wait_briefly(answers: Collection[Future[Settled]], longest: float) -> None:
    """Wait two seconds for answers. If some are still missing, print how much longer the command will wait."""
    if wait(answers, _IN_SILENCE).not_done:
        click.echo(
            f"headway: No relay has answered yet. Waiting up to {longest:.3g} s more; start one with `headway relay`.",
            err=True,
        )


def _outcome(request: ChangeRequest, timeout: float) -> Settled | str:
    try:
        return request.settled(timeout)
    except NoRelayError:
        return _UNANSWERED
    except HeadwayError as error:
        return str(error)
