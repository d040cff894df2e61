"""Carrying out ticks with less delay and a weaker promise: at once, and what was done is stored some time after."""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from headway.core.broker_clock import BrokerClock
from headway.delay.carrying_out import (
    WRITTEN_WITHIN,
    Moved,
    Offsets,
    Ticks,
    connected_client,
    moves_of,
    note_move,
    send,
)
from headway.delay.refusals import is_refused_likewise
from headway.delay.topics import TopicNames
from headway.delay.writing import Out, Writing
from headway.errors import DeliveryError, KafkaError, SerializationError
from headway.kafka.line_consumer import LineConsumer
from headway.kafka.native import Partition
from headway.kafka.producer_client import error_name, is_the_records_own, refuses_all

_LONGEST_WAIT = 10.0
_STORE_EVERY = 0.25
_LOOK_AGAIN_AFTER = 0.02
_A_MOMENT = 0.5
_OVERHEAD = 2_000  # bytes of a record besides its value: what it was made of, and what is to be done when it is there


class _Sent:
    """A round of ticks whose records are on their way, and what to store when they are there."""

    __slots__ = ("left", "moved", "offsets", "state")

    def __init__(self, left: int, state: list[Out], offsets: Offsets, moved: Moved | None = None) -> None:
        self.left = left
        self.moved = moved or {}
        self.state = state
        self.offsets = offsets


class AtOnce:
    """Everything is sent at once, and four times a second it is stored what was done: a crash in between repeats it."""

    def __init__(
        self, config: Mapping[str, Any], names: TopicNames, consumer: LineConsumer, clock: BrokerClock
    ) -> None:
        self._client = connected_client(config, names.state)
        self._names = names
        self._consumer = consumer
        self._clock = clock
        self._writing = Writing(names, self._client.partitions)
        self._sent: deque[_Sent] = deque()  # in this order they are stored
        self._refused: deque[tuple[Out, _Sent]] = deque()
        self._stored_at = 0.0
        self._is_behind = False  # something was done since that is not to be stored yet
        self._failure: KafkaError | None = None
        self._under_way = 0
        self.done: dict[Partition, int] = {}
        self.written: deque[Moved] = deque()

    @property
    def wants_state(self) -> bool:
        return time.monotonic() - self._stored_at >= _STORE_EVERY

    @property
    def under_way(self) -> int:
        return self._under_way

    def carry_out(self, ticks: Ticks, offsets: Offsets, now: int) -> None:
        self._raise_failure()
        records = [out for partition, tick in ticks.items() for out in self._writing.records(partition, tick, now)]
        state, answers, others = list[Out](), list[Out](), list[Out]()
        own = {self._names.state: state, self._names.answers: answers}
        for out in records:
            own.get(out.topic, others).append(out)
        self._is_behind = not state
        if state:
            self._stored_at = time.monotonic()
        round_ = _Sent(len(others), state, offsets, moves_of(ticks))
        self._sent.append(round_)
        for out in others:
            self._send(out, round_)
        if answers:  # what is answered has to be so after a crash, too
            self.finish()
            for out in answers:
                self._send(out, _Sent(1, [], {}))

    def _send(self, out: Out, round_: _Sent, refused_alone: list[Any] | None = None) -> None:
        size = _OVERHEAD + len(out.value or b"")

        def report(error: Any, message: Any) -> None:
            self._under_way -= size
            if error is None:
                round_.left -= 1
                note_move(round_.moved, out, message.offset())
            elif out.source is None or not is_the_records_own(error):
                self._failure = KafkaError(f"A record for {out.topic} was not stored: {error.str()}.")
            elif refused_alone is not None:
                refused_alone.append(error)
            else:  # what is refused may be another record of the same batch
                self._refused.append((out, round_))

        self._under_way += size
        try:
            send(self._client, out, report)
        except (DeliveryError, SerializationError) as error:
            self._under_way -= size
            if refuses_all(error):
                raise
            self._send_instead(out, error_name(error), str(error), round_)

    def _send_instead(self, refused: Out, error: str, reason: str, round_: _Sent) -> None:
        instead = self._writing.instead_of(refused, error, reason)
        if instead is None:
            round_.left -= 1
        else:
            self._send(instead, round_)

    def _try_alone(self) -> None:
        if self._refused:
            self._flush()
        while self._refused:
            first, errors = self._refused.popleft(), list[Any]()
            self._send(*first, refused_alone=errors)
            self._flush()
            for error in errors:
                others, self._refused, refused = self._refused, deque(), [first]
                for each in others:
                    is_likewise = is_refused_likewise(error.name(), first[0], each[0])
                    (refused if is_likewise else self._refused).append(each)
                for out, round_ in refused:
                    self._send_instead(out, error.name(), error.str(), round_)
                self._flush()

    def serve(self) -> float:
        self._client.serve_in_stream()
        self._try_alone()
        self._raise_failure()
        while self._sent and not self._sent[0].left:
            self._store(self._sent.popleft())
        if self._is_behind:
            return max(0.001, self._stored_at + _STORE_EVERY - time.monotonic())
        return _LOOK_AGAIN_AFTER if self._sent else _LONGEST_WAIT

    def _store(self, done: _Sent) -> None:
        if done.moved:
            self.written.append(done.moved)
        round_ = _Sent(len(done.state), [], done.offsets)
        for out in done.state:
            self._stamp(out, round_)
        if done.offsets:
            self._consumer.commit(done.offsets)

    def _stamp(self, out: Out, round_: _Sent) -> None:
        sent = time.monotonic()

        def report(error: Any, message: Any) -> None:
            if error is not None:
                self._failure = KafkaError(f"What was done was not stored in {out.topic}: {error.str()}.")
                return
            self._clock.observe(message.timestamp()[1], sent, time.monotonic())
            round_.left -= 1
            if not round_.left:
                self.done.update(round_.offsets)

        send(self._client, out, report)

    def finish(self) -> None:
        self._flush()
        self._try_alone()
        self.serve()
        self._flush()

    def _flush(self) -> None:
        self._client.await_reports(lambda: self._failure is not None, WRITTEN_WITHIN)
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure:
            self._sent.clear()
            raise failure

    def look_at_clock(self, commands: Offsets) -> None:
        number = min(number for _, number in commands)
        self._stamp(Out(self._names.state, b"", "clock", number, 0, None), _Sent(1, [], {}))
        self._flush()

    def close(self) -> None:
        try:
            self.finish()
        finally:
            self._client.close(_A_MOMENT)
