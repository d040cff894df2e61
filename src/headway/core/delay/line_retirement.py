"""The retirement of lines: out of use, empty and unused for long, read no more, deleted; and only then used again.

A line that is not in use any more may still get records, by schedulers that have not heard of it. So each step waits
for the one before to be known everywhere:

- It is *out of use*. Schedulers write to it for some minutes at the most, relays still read it.
- When it is empty, and nothing was written to it for long, it *retires*: relays read it no more.
- Some minutes later, if nothing has come meanwhile, its topic is deleted. If something has come, it is read again.
- Its time is not used for a new line for a while: a relay that was frozen just before it deleted the topic would else
  delete one with records.

The state is stored in Kafka, so another relay goes on where one has ended.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from headway.core.untrusted import Count, Time, read_json


class LineUse(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The facts that are known of a line; times in milliseconds since the epoch, 0 for never.

    `written` is the sum of the ends of its logs, and `since` when that was first seen.
    """

    written: Count
    since: Time
    out_of_use: Time = 0
    retires: Time = 0


class FitState(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state that a fitting relay stores: when the lines were changed, and when each was used, in milliseconds."""

    changed: Time = 0
    lines: dict[Time, LineUse] = {}

    @property
    def retiring(self) -> frozenset[int]:
        """The lines that relays read no more if they are not in use, and whose times must not be used for now."""
        return frozenset(line for line, use in self.lines.items() if use.retires)

    def encode(self) -> bytes:
        """Return the stored form."""
        return _encode(self)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(FitState)


def read_fit_state(value: bytes) -> FitState:
    """Return the state from its stored form; raise `UnreadableError` if it is malformed."""
    return read_json(value, _decoder, "What is known of the lines")


@dataclass(frozen=True)
class Waits:
    """The waits of each step, in milliseconds.

    Args:
        unused: Nothing is written to a line for so long before it retires.
        known: A line is out of use for so long before it retires, so that all schedulers know.
        unread: A line is read no more for so long before its topic is deleted.
        barred: After a line has retired its time is not used again for so long; and it is deleted in half of that, or
            not at all.
    """

    unused: int
    known: int = 900_000
    unread: int = 120_000
    barred: int = 3_600_000


class Seen(NamedTuple):
    """A look at the lines.

    `ends` has for each line with a topic the sum of the ends of its logs; `empty` are those in which nothing lies.
    """

    ladder: Collection[int]
    ends: Mapping[int, int]
    empty: Collection[int]


def advanced(state: FitState, seen: Seen, waits: Waits, now: int) -> tuple[FitState, list[int]]:
    """Return the state after a look, and the lines whose topics are to be deleted, as soon as the state is stored."""
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
    if use.retires and now - use.retires >= waits.barred:  # its topic could not be deleted in time: begin once more
        return msgspec.structs.replace(use, retires=0)
    if use.retires or line not in seen.empty:
        return use
    is_unused = now - use.since >= waits.unused and now - use.out_of_use >= waits.known
    return msgspec.structs.replace(use, retires=now) if is_unused else use


def idle(state: FitState, waits: Waits, now: int) -> frozenset[int]:
    """Return the lines to which nothing was written for long."""
    return frozenset(line for line, use in state.lines.items() if now - use.since >= waits.unused)
