"""Carries out a relay's decisions in low-latency mode: records are sent at once, and progress is stored later.

The guarantee is weaker than in exactly-once mode, because the latest deliveries are repeated after a crash. Progress is
stored in transactions, which are fenced by the generation of the consumer group. So if a relay was frozen and a second
relay has taken its place, the first relay cannot overwrite the progress that the second one has stored since then.
"""

import contextlib
import time
from collections import deque
from functools import partial
from typing import Any

from headway.core.delay.relay_state import PRODUCERS_KEY, encode_producers
from headway.core.permissions import permission_for
from headway.core.record_size import size_of
from headway.delay.records import RelayRecord
from headway.delay.relay.output import (
    COMMIT_CHECKED_AGAIN_AFTER,
    NOTHING_PENDING_FOR,
    Moved,
    RelayOutput,
    RelayParts,
    Ticks,
    moves_of,
    note_move,
)
from headway.delay.relay.producers import (
    WRITTEN_WITHIN,
    RelayOffsets,
    abort,
    close_at_once,
    commit,
    connected_client,
    fenced,
    member_of,
    new_id,
    writer_for,
)
from headway.delay.relay.refusals import is_refused_too
from headway.errors import AuthorizationError, DeliveryError, KafkaError, SerializationError
from headway.kafka.binding.error_causes import error_name, is_the_records_own, refuses_all
from headway.kafka.binding.factory import both
from headway.kafka.producer.transactional_writer import FORBIDDEN
from headway.runtime.gc_pause import GcPause

_STORE_EVERY = 0.25
_CLOSE_WITHIN = 0.5
_REPORT_TAKES = 1_500  # how much memory a record's source and the callback for its delivery report take, in bytes


class _SentRound:
    """A round whose records have been sent: how many are not acknowledged yet, and the state to store afterwards.

    `member` is the group's metadata at the time of the decisions.
    """

    __slots__ = ("left", "member", "moved", "offsets", "state")

    def __init__(
        self,
        left: int,
        state: list[RelayRecord],
        offsets: RelayOffsets,
        member: bytes = b"",
        moved: Moved | None = None,
    ) -> None:
        self.left = left
        self.moved = moved or {}
        self.state = state
        self.offsets = offsets
        self.member = member


class LowLatency(RelayOutput):
    """Sends records at once, and stores progress four times a second.

    After a crash, the latest records are sent again.
    """

    def __init__(self, parts: RelayParts) -> None:
        super().__init__(parts)
        self._id = new_id(parts.names)
        self._client, states = both(
            partial(connected_client, parts.config, parts.names.state),
            partial(fenced, parts.config, self._id, parts.names.state),
            close=close_at_once,
        )
        self._states = writer_for(states, parts.config)
        self._sent: deque[_SentRound] = deque()  # the rounds in the order in which their state must be stored
        self._to_store: deque[_SentRound] = deque()
        self._refused: deque[tuple[RelayRecord, _SentRound]] = deque()
        self._stored_at = 0.0
        # True if records have been handled since progress was last stored, and it is too early to store progress again.
        self._is_behind = False
        self._failure: KafkaError | None = None
        self._under_way = 0

    def partitions(self, topic: str, within: float) -> int:
        return self._client.partitions(topic, within)

    @property
    def wants_state(self) -> bool:
        return time.monotonic() - self._stored_at >= _STORE_EVERY

    @property
    def under_way(self) -> int:
        return self._under_way

    def carry_out(self, ticks: Ticks, offsets: RelayOffsets, now: int) -> None:
        self._raise_failure()
        state, answers, others = list[RelayRecord](), list[RelayRecord](), list[RelayRecord]()
        own = {self._names.state: state, self._names.answers: answers}
        for out in self._records(ticks, now):
            own.get(out.topic, others).append(out)
        self._is_behind = not state
        if state:
            self._stored_at = time.monotonic()
        round_ = _SentRound(len(others), state, offsets, member_of(self._consumer) if state else b"", moves_of(ticks))
        self._sent.append(round_)
        with GcPause():
            for out in others:
                self._send(out, round_)
        if answers:  # progress is stored first, so that an answer is still true after a crash
            self.finish()
            for out in answers:
                self._send(out, _SentRound(1, [], {}))

    def _send(self, out: RelayRecord, round_: _SentRound, refused_alone: list[Any] | None = None) -> None:
        size = _REPORT_TAKES + size_of(out.value, out.key, out.headers)

        def report(error: Any, message: Any) -> None:
            self._under_way -= size
            if error is None:
                round_.left -= 1
                note_move(round_.moved, out, message.offset())
            elif out.source is None or not is_the_records_own(error):
                self._failure = _not_stored(out.topic, error)
            elif refused_alone is not None:
                refused_alone.append(error)
            else:  # another record of the same batch might be the cause
                self._refused.append((out, round_))

        self._under_way += size
        try:
            self._client.send(out, report)
        except (DeliveryError, SerializationError) as error:
            self._under_way -= size
            if refuses_all(error):
                raise
            self._send_instead(out, error_name(error), str(error), round_)

    def _send_instead(self, refused: RelayRecord, error: str, reason: str, round_: _SentRound) -> None:
        instead = self._writing.instead_of(refused, error, reason)
        if instead is None:
            round_.left -= 1
        else:
            self._send(instead, round_)

    def _retry_alone(self) -> None:
        if self._refused:
            self._flush()
        while self._refused:
            first, errors = self._refused.popleft(), list[Any]()
            self._send(*first, refused_alone=errors)
            self._flush()
            for error in errors:
                others, self._refused, refused = self._refused, deque(), [first]
                for each in others:
                    is_refused = is_refused_too(error.name(), first[0], each[0])
                    (refused if is_refused else self._refused).append(each)
                for out, round_ in refused:
                    self._send_instead(out, error.name(), error.str(), round_)
                self._flush()

    def serve(self) -> float:
        self._client.reports.serve_in_stream()
        self._retry_alone()
        self._raise_failure()
        self._note_done()
        self._go_on_storing()
        if self._is_behind:
            return max(0.001, self._stored_at + _STORE_EVERY - time.monotonic())
        return COMMIT_CHECKED_AGAIN_AFTER if self._sent or self._uncommitted else NOTHING_PENDING_FOR

    def _go_on_storing(self) -> None:
        """Record which progress is now stored, and begin to store the state of the next round. Never waits."""
        if self._uncommitted and self._uncommitted.is_over:
            self._await_commit()
        if self._to_store and self._uncommitted is None:
            round_ = self._to_store.popleft()
            self._begin_commit(partial(self._store, round_), round_.offsets)

    def _store(self, round_: _SentRound) -> None:
        """Store the progress of a round. Runs in its own thread."""
        sent = time.monotonic()

        def stored(_: int, message: Any) -> None:
            self._clock.observe(message.timestamp()[1], sent, time.monotonic())

        self._states.begin()
        if rejection := self._states.write(round_.state, stored):
            if rejection.error == FORBIDDEN:
                raise AuthorizationError(rejection.reason)
            raise KafkaError(f"The relay's state was not stored in {self._names.state}: {rejection.reason}.")
        commit(self._states, round_.offsets, round_.member)

    def finish(self) -> None:
        self._flush()
        self._retry_alone()
        self.serve()
        self._store_all()

    def _store_all(self) -> None:
        while self._to_store or self._uncommitted:
            self._await_commit()
            self._go_on_storing()

    def _flush(self) -> None:
        self._client.await_reports(lambda: self._failure is not None, WRITTEN_WITHIN)
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure:
            self._note_done()
            self._sent.clear()
            raise failure

    def _note_done(self) -> None:
        """Remove the rounds at the front of the queue whose records have all been written."""
        while self._sent and not self._sent[0].left:
            done = self._sent.popleft()
            if done.moved:
                self.written.append(done.moved)
            if done.state:
                self._to_store.append(done)

    def observe_clock(self, commands: RelayOffsets) -> None:
        ids = encode_producers([self._id])
        state = [RelayRecord(self._names.state, ids, PRODUCERS_KEY, number, 0, None) for _, number in commands]
        self._to_store.append(_SentRound(0, state, commands, member_of(self._consumer)))
        self._store_all()

    def close(self) -> None:
        try:
            self.finish()
        finally:
            # Store the progress, so that records that were delivered are not repeated.
            with contextlib.suppress(KafkaError):
                self._store_all()
            self._to_store.clear()
            try:
                abort(self._states)
            finally:
                self._states.client.close(_CLOSE_WITHIN)
                self._client.close(_CLOSE_WITHIN)


def _not_stored(topic: str, error: Any) -> KafkaError:
    """Return the error for a record that was not stored, if the relay cannot continue without it."""
    if permission := permission_for(error.name(), "Write", topic=topic):
        return AuthorizationError(permission.missing())
    return KafkaError(f"A record for {topic} was not stored: {error.str()}.")
