"""Retires delay topics that are no longer used, step by step, until they are deleted.

A delay topic that is out of use can still receive records from schedulers that have not noticed this yet. So each step
waits until all schedulers and relays have noticed the previous step:

- The topic is *out of use*. Schedulers may still write to it for some minutes, and relays still read it.
- When the topic is empty and nothing has been written to it for a long time, it *retires*: relays stop reading it.
- Some minutes later the topic is deleted. If something was written to it in the meantime, it is read again instead.
- For a while after that, the delay of the deleted topic is not used for a new topic. Otherwise, a relay that was frozen
  just before it deleted the topic could delete the new topic with its records.

The state is stored in Kafka, so that another relay can continue the retirement.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from headway.core.untrusted import Count, Time, read_json


class DelayTopicUse(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The use of a delay topic, as far as it is known. Times are in milliseconds since the epoch; 0 means never.

    `written` is the sum of the end offsets of the topic's partitions, and `since` is when that sum was first seen.
    `out_of_use` and `retires` are when the topic went out of use and when it retired.
    """

    written: Count
    since: Time
    out_of_use: Time = 0
    retires: Time = 0


class FitState(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state that a relay with `fit` stores: when the ladder last changed, and the use of each delay topic.

    Delay topics are identified by their delays in milliseconds.
    """

    changed: Time = 0
    delay_topics: dict[Time, DelayTopicUse] = msgspec.field(default_factory=dict, name="lines")

    @property
    def retiring(self) -> frozenset[int]:
        """The retired delay topics. Relays do not read a retired topic unless it is in use again.

        The delay of a retired topic must not be used for a new topic yet.
        """
        return frozenset(delay_topic for delay_topic, use in self.delay_topics.items() if use.retires)

    def encode(self) -> bytes:
        """Encode the state for storage."""
        return _encode(self)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(FitState)


def read_fit_state(value: bytes) -> FitState:
    """Decode the state from its stored form. Raises `UnreadableError` if it is malformed."""
    return read_json(value, _decoder, "The stored state of the delay topics")


@dataclass(frozen=True)
class Waits:
    """How long each step of the retirement waits, in milliseconds.

    Args:
        unused: How long a delay topic must have gone without a write before it retires.
        known: How long a delay topic must have been out of use before it retires, so that all schedulers have noticed.
        unread: How long a delay topic must have been retired before it is deleted.
        barred: How long after the retirement of a delay topic its delay must not be used again. The topic is deleted
            within half of this time, or not at all.
    """

    unused: int
    known: int = 900_000
    unread: int = 120_000
    barred: int = 3_600_000


class Seen(NamedTuple):
    """The delay topics that were found in Kafka.

    `ladder` has the delays in use. `ends` has the sum of the end offsets of the partitions of each existing delay
    topic. `empty` has the delay topics without records.
    """

    ladder: Collection[int]
    ends: Mapping[int, int]
    empty: Collection[int]


def advanced(state: FitState, seen: Seen, waits: Waits, now: int) -> tuple[FitState, list[int]]:
    """Return the next state, and the delay topics to delete once this state is stored."""
    delay_topics = {
        delay_topic: _advanced(state.delay_topics.get(delay_topic), delay_topic, seen, waits, now)
        for delay_topic in seen.ends
    }
    gone = {
        delay_topic: use
        for delay_topic, use in state.delay_topics.items()
        if delay_topic not in delay_topics and use.retires and now - use.retires < waits.barred
    }
    to_delete = [
        delay_topic
        for delay_topic, use in delay_topics.items()
        if use.retires and waits.unread <= now - use.retires < waits.barred // 2 and delay_topic in seen.empty
    ]
    return FitState(state.changed, delay_topics | gone), sorted(to_delete)


def _advanced(use: DelayTopicUse | None, delay_topic: int, seen: Seen, waits: Waits, now: int) -> DelayTopicUse:
    written = seen.ends[delay_topic]
    if use is None or use.written != written:
        use = DelayTopicUse(written, now, use.out_of_use if use else 0)
    if delay_topic in seen.ladder:
        return msgspec.structs.replace(use, out_of_use=0, retires=0)
    if not use.out_of_use:
        use = msgspec.structs.replace(use, out_of_use=now, retires=0)
    if use.retires and now - use.retires >= waits.barred:  # the topic was not deleted in time, so start over
        return msgspec.structs.replace(use, retires=0)
    if use.retires or delay_topic not in seen.empty:
        return use
    is_unused = now - use.since >= waits.unused and now - use.out_of_use >= waits.known
    return msgspec.structs.replace(use, retires=now) if is_unused else use


def idle(state: FitState, waits: Waits, now: int) -> frozenset[int]:
    """Return the delay topics to which nothing has been written for a long time."""
    return frozenset(delay_topic for delay_topic, use in state.delay_topics.items() if now - use.since >= waits.unused)
