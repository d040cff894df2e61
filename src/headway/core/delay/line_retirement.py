"""The retirement of delay topics: out of use, no longer read, deleted, and in the end usable again.

A delay topic that is out of use may still get records, from schedulers that do not know it yet. So each step waits
until the one before is known everywhere:

- It is *out of use*. Schedulers write to it for some minutes at most; relays still read it.
- When it is empty, and nothing was written to it for a long time, it *retires*: relays no longer read it.
- Some minutes later, if nothing has been written in the meantime, its topic is deleted. Otherwise it is read again.
- Its time is not used for a new delay topic for a while. Otherwise, a relay that was frozen just before deleting the
  topic could delete one with records.

The state is stored in Kafka, so another relay continues where one has ended.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from headway.core.untrusted import Count, Time, read_json


class LineUse(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The known facts about a delay topic. Times are in milliseconds since the epoch; 0 means never.

    `written` is the sum of the ends of its logs, and `since` is when that sum was first seen.
    """

    written: Count
    since: Time
    out_of_use: Time = 0
    retires: Time = 0


class FitState(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state that a fitting relay stores: when the delay topics last changed, in ms, and the use of each."""

    changed: Time = 0
    lines: dict[Time, LineUse] = {}

    @property
    def retiring(self) -> frozenset[int]:
        """The delay topics that relays do not read unless they are in use, and whose times must not be used now."""
        return frozenset(line for line, use in self.lines.items() if use.retires)

    def encode(self) -> bytes:
        """Return the stored form."""
        return _encode(self)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(FitState)


def read_fit_state(value: bytes) -> FitState:
    """Read the state from its stored form. Raises `UnreadableError` if it is malformed."""
    return read_json(value, _decoder, "The state of the delay topics")


@dataclass(frozen=True)
class Waits:
    """How long each step waits, in milliseconds.

    Args:
        unused: How long nothing must have been written to a delay topic before it retires.
        known: How long a delay topic must have been out of use before it retires, so that all schedulers know.
        unread: How long a delay topic must have been unread before it is deleted.
        barred: How long after its retirement a delay topic's time is not used again. The topic is deleted within half
            of that, or not at all.
    """

    unused: int
    known: int = 900_000
    unread: int = 120_000
    barred: int = 3_600_000


class Seen(NamedTuple):
    """The delay topics as they were seen in Kafka.

    `ends` has, for each existing delay topic, the sum of the ends of its logs. `empty` are the delay topics without
    records.
    """

    ladder: Collection[int]
    ends: Mapping[int, int]
    empty: Collection[int]


def advanced(state: FitState, seen: Seen, waits: Waits, now: int) -> tuple[FitState, list[int]]:
    """Return the next state, and the delay topics to delete as soon as that state is stored."""
    lines = {line: _advanced(state.lines.get(line), line, seen, waits, now) for line in seen.ends}
    gone = {
        line: use
        for line, use in state.lines.items()
        if line not in lines and use.retires and now - use.retires < waits.barred
    }
    to_delete = [
        line
        for line, use in lines.items()
        if use.retires and waits.unread <= now - use.retires < waits.barred // 2 and line in seen.empty
    ]
    return FitState(state.changed, lines | gone), sorted(to_delete)


def _advanced(use: LineUse | None, line: int, seen: Seen, waits: Waits, now: int) -> LineUse:
    written = seen.ends[line]
    if use is None or use.written != written:
        use = LineUse(written, now, use.out_of_use if use else 0)
    if line in seen.ladder:
        return msgspec.structs.replace(use, out_of_use=0, retires=0)
    if not use.out_of_use:
        use = msgspec.structs.replace(use, out_of_use=now, retires=0)
    if use.retires and now - use.retires >= waits.barred:  # its topic could not be deleted in time, so start over
        return msgspec.structs.replace(use, retires=0)
    if use.retires or line not in seen.empty:
        return use
    is_unused = now - use.since >= waits.unused and now - use.out_of_use >= waits.known
    return msgspec.structs.replace(use, retires=now) if is_unused else use


def idle(state: FitState, waits: Waits, now: int) -> frozenset[int]:
    """Return the delay topics to which nothing has been written for a long time."""
    return frozenset(line for line, use in state.lines.items() if now - use.since >= waits.unused)
