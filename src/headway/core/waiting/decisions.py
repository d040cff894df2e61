"""Decides what to do with each record of a request, without doing it.

Invariants: a record whose attempt is running is left alone. Without `break_order`, a record is moved only after all
earlier records of its lane, and not while a later record of its lane, which the request does not name, waits behind it.
Dropping a record never breaks the order of the others.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from headway.core.engine.attempt import Attempt
from headway.core.engine.attempt_states import AttemptState
from headway.core.engine.lanes import ALONE
from headway.core.engine.open_lanes import OpenLanes
from headway.core.retry import Move
from headway.core.waiting.requests import Edit, EditRequest, Fate


class Decision(NamedTuple):
    """What to do with a record: `fate` is `DONE` if the edit must be carried out now.

    `attempt` is the attempt at the record, or None if the record is done or was not received.
    """

    fate: Fate
    note: str = ""
    attempt: Attempt[Any] | None = None


def decide_edits(
    request: EditRequest,
    offsets: Iterable[int],
    lanes: OpenLanes[Any],
    unread: Mapping[int, Any],
    earlier: Mapping[int, int],
) -> dict[int, Decision]:
    """Decide what to do with the records of one partition, in the order of their offsets.

    `unread` has the name of the lane of each record that the member has not received yet, if it is known to exist.
    `earlier` has, for some of them, the offset of another record with the same key that was waiting before it.
    """
    chosen = frozenset(offsets)
    decided: dict[int, Decision] = {}
    now = set[int]()
    for offset in sorted(chosen):
        attempt = lanes.find(offset)
        if attempt is None:
            decided[offset] = _unread(request, offset, lanes, unread, now, earlier.get(offset))
        elif request.edit is Edit.LOOK:
            decided[offset] = _seen(attempt, lanes)
        else:
            decided[offset] = _received(request, attempt, lanes, chosen, now)
        if decided[offset].fate is Fate.DONE:
            now.add(offset)
    return decided


def _received(
    request: EditRequest, attempt: Attempt[Any], lanes: OpenLanes[Any], chosen: Collection[int], now: Collection[int]
) -> Decision:
    if lanes.has_started(attempt):
        return Decision(Fate.RUNNING)
    if attempt.outcome is not None and not _can_be_edited(request, attempt):
        return Decision(Fate.STORED)
    if request.edit in (Edit.DROP, Edit.NEXT) or request.break_order:
        return Decision(Fate.DONE, attempt=attempt)
    for later in lanes.after(attempt):
        if later.offset not in chosen:
            return Decision(Fate.ORDER, f"the record at offset {later.offset} would be handled before it")
    for earlier in lanes.before(attempt):
        if earlier.offset not in now:
            return Decision(Fate.TURN, f"behind offset {earlier.offset}", attempt)
    return Decision(Fate.DONE, attempt=attempt)


def _can_be_edited(request: EditRequest, attempt: Attempt[Any]) -> bool:
    """Return whether a record with an outcome can be edited.

    It can if it failed for good and is kept in its place, or if it waits for its turn because of this request, which
    has arrived again.
    """
    if attempt.is_kept:
        return request.edit in (Edit.DROP, Edit.MOVE)
    verdict = attempt.outcome.verdict if attempt.outcome else None
    return isinstance(verdict, Move) and verdict.request == request.id


def _unread(
    request: EditRequest,
    offset: int,
    lanes: OpenLanes[Any],
    unread: Mapping[int, Any],
    now: Collection[int],
    earlier: int | None,
) -> Decision:
    if lanes.assignment.progress.is_done(offset):
        return Decision(Fate.GONE)
    if request.edit in (Edit.LOOK, Edit.NEXT):
        return Decision(Fate.UNREAD)
    if offset not in unread:
        return Decision(Fate.GONE, "there is no record at this offset")
    if request.edit is Edit.MOVE and not request.break_order and unread[offset] is not ALONE:
        before = [attempt.offset for attempt in lanes.in_lane(unread[offset]) if attempt.offset not in now]
        if earlier is not None and not lanes.assignment.progress.is_done(earlier):
            before.append(earlier)
        if before:
            return Decision(Fate.ORDER, f"the record at offset {min(before)} waits before it")
    return Decision(Fate.DONE)


def _seen(attempt: Attempt[Any], lanes: OpenLanes[Any]) -> Decision:
    if lanes.has_started(attempt):
        return Decision(Fate.RUNNING, f"attempt {attempt.number}")
    if attempt.is_kept:
        return Decision(Fate.HELD, "because it failed for good")
    if attempt.outcome is not None:
        return Decision(Fate.STORED)
    if earlier := lanes.before(attempt):
        return Decision(Fate.BEHIND, f"offset {earlier[0].offset}")
    if attempt.state is AttemptState.WAITING:
        retry = attempt.failure is not None
        return Decision(Fate.HELD, f"for attempt {attempt.number}" if retry else "for a time, a rule or a full batch")
    return Decision(Fate.READY)
