"""Carrying out ticks: all of one in a transaction, or with less delay and a weaker promise without.

Source: KIP-447; the group's generation fences a member that was expelled, so that each partition has one relay.
"""

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from headway.core.broker_clock import BrokerClock
from headway.core.relay_ticks import Tick
from headway.delay.topics import TopicNames
from headway.delay.writing import Out, Writing
from headway.errors import DeliveryError, KafkaError, SerializationError
from headway.kafka.line_consumer import LineConsumer
from headway.kafka.native import Partition
from headway.kafka.producer_client import ProducerClient, in_slices, is_out_of_place, is_the_records_own

log = logging.getLogger(__name__)

Mode = Literal["exactly-once", "low-latency"]

_WITHIN = 30.0
_SLICE = 0.5
_A_MOMENT = 0.1
_STORE_EVERY = 0.1
# While the broker still writes the markers of a transaction, it refuses the next one's records, and librdkafka then
# waits for 20 ms. It costs less to wait for a little first.
_BETWEEN = 0.003


def _note(error: Any) -> None:
    """librdkafka goes on by itself, and what it cannot go on with is said by the call that fails."""
    log.debug("Kafka: %s", error)


_DEFAULTS: Mapping[str, Any] = {
    "error_cb": _note,
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 0,
    "message.max.bytes": 2_097_152,
    "queue.buffering.max.messages": 1_000_000,
}
_IN_TRANSACTIONS: Mapping[str, Any] = {
    # So long a relay that was killed keeps its partitions' successor, and those who read its targets, waiting.
    "transaction.timeout.ms": 10_000,
    # The broker asks to try again while it writes the markers of the transaction before.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 100,
}

Ticks = Mapping[int, Tick]
Offsets = Mapping[Partition, int]


class Carrier(Protocol):
    """Carries out what relays decide."""

    def carry_out(self, ticks: Ticks, offsets: Offsets, now: int) -> None:
        """Do it; raises `KafkaError` where all has to be begun anew from what is stored."""

    def serve(self) -> float:
        """Do what is pending, without waiting; after how many seconds there is more."""

    def look_at_clock(self, partition: int) -> None:
        """Have a broker stamp something."""

    def close(self) -> None:
        """Finish what is pending."""


class _Refused(NamedTuple):
    """A delivery that Kafka refuses for good: which, if that is certain, since it refuses whole batches; and why."""

    place: int | None
    reason: str


class InTransactions:
    """Each round of ticks is one transaction, with the offsets that fence off a relay that was expelled."""

    def __init__(
        self, config: Mapping[str, Any], names: TopicNames, consumer: LineConsumer, clock: BrokerClock
    ) -> None:
        own = {"transactional.id": f"{names.name}-relay-{uuid.uuid4().hex[:12]}"}
        self._config = {**_DEFAULTS, **_IN_TRANSACTIONS, **own, **config}
        self._names = names
        self._consumer = consumer
        self._clock = clock
        self._committed_at = 0.0
        self._begin()

    def _begin(self) -> None:
        self._client = ProducerClient(self._config)
        self._writing = Writing(self._names, self._client)
        in_slices(self._client.init_transactions)

    def carry_out(self, ticks: Ticks, offsets: Offsets, now: int) -> None:
        records = [out for partition, tick in ticks.items() for out in self._writing.records(partition, tick, now)]
        together = True
        while (refused := self._try(records, offsets, together)) is not None:
            # A new client: librdkafka would go on behind the sequence numbers of what was refused, which is a gap.
            self._abort()
            self._client.close(0)
            self._begin()
            together = False
            if refused.place is not None:
                records[refused.place] = self._writing.refused_delivery(records[refused.place], refused.reason)

    def _try(self, records: Sequence[Out], offsets: Offsets, together: bool) -> "_Refused | None":
        """Commit all; or if a delivery is refused nothing of it, and say which one."""
        if (left := self._committed_at + _BETWEEN - time.monotonic()) > 0:
            time.sleep(left)
        self._client.begin_transaction()
        errors: list[tuple[int, Any]] = []
        for index, out in enumerate(records):
            try:
                send(self._client, out, self._reporter(index, errors))
            except (DeliveryError, SerializationError) as refused:
                return _Refused(index, str(refused))
            if not together and out.source is not None:
                self._flush()
            if errors:
                break
        self._flush()
        for index, error in errors:
            if records[index].source is None or not is_the_records_own(error):
                raise KafkaError(f"A record for {records[index].topic} was not stored: {error.str()}.")
        if errors:
            alone = not together or len(records) == 1
            return _Refused(errors[0][0] if alone else None, errors[0][1].str())
        self._commit(offsets)
        return None

    def _reporter(self, index: int, errors: list[tuple[int, Any]]) -> Callable[[Any, Any], None]:
        sent = time.monotonic()

        def report(error: Any, message: Any) -> None:
            if error is not None:
                errors.append((index, error))
            elif message.topic() == self._names.state:
                self._clock.observe(message.timestamp()[1], sent, time.monotonic())

        return report

    def _commit(self, offsets: Offsets) -> None:
        metadata = self._consumer.group_metadata
        native = {each: (offset, b"") for each, offset in offsets.items()}
        in_slices(partial(self._client.send_offsets, native, metadata))
        in_slices(self._client.commit_transaction)
        self._committed_at = time.monotonic()

    def _flush(self) -> None:
        deadline = time.monotonic() + _WITHIN
        while self._client.flush(_SLICE):
            if time.monotonic() > deadline:
                raise KafkaError(f"Kafka did not acknowledge what was to be written within {_WITHIN:g} s.")

    def _abort(self) -> None:
        try:
            in_slices(self._client.abort_transaction)
        except KafkaError as refused:
            if not is_out_of_place(refused):
                raise

    def serve(self) -> float:
        return _STORE_EVERY * 100

    def look_at_clock(self, partition: int) -> None:
        tick = Tick(state={"clock": b""})
        self.carry_out({partition: tick}, {}, 0)

    def close(self) -> None:
        try:
            self._abort()  # what was under way, if anything was; what was committed stays so
        finally:
            self._client.close(_A_MOMENT)


def send(client: ProducerClient, out: Out, report: Callable[[Any, Any], None]) -> None:
    """Queue a record, and wait while there is no room."""
    while True:
        try:
            client.produce(out.topic, out.value, out.key, out.partition, report, out.timestamp, out.headers)
            return
        except BufferError:
            client.serve(_A_MOMENT)


class _Sent:
    """A round of ticks whose records are on their way."""

    def __init__(self, left: int, state: list[Out], offsets: Offsets) -> None:
        self.left = left
        self.state = state
        self.offsets = offsets


class AtOnce:
    """Everything is sent at once, and what was done is stored some time after: a crash in between repeats it."""

    def __init__(
        self, config: Mapping[str, Any], names: TopicNames, consumer: LineConsumer, clock: BrokerClock
    ) -> None:
        self._client = ProducerClient({**_DEFAULTS, **config})
        self._names = names
        self._consumer = consumer
        self._clock = clock
        self._writing = Writing(names, self._client)
        self._sent: deque[_Sent] = deque()
        self._refused: deque[tuple[Out, _Sent]] = deque()
        self._state: dict[tuple[Any, int], Out] = {}
        self._offsets: dict[Partition, int] = {}
        self._stored_at = 0.0
        self._failure: KafkaError | None = None

    def carry_out(self, ticks: Ticks, offsets: Offsets, now: int) -> None:
        self._raise_failure()
        records = [out for partition, tick in ticks.items() for out in self._writing.records(partition, tick, now)]
        state = [out for out in records if out.topic == self._names.state]
        answers = [out for out in records if out.topic == self._names.answers]
        others = [out for out in records if out.topic not in (self._names.state, self._names.answers)]
        round_ = _Sent(len(others), state, offsets)
        self._sent.append(round_)
        for out in others:
            self._send(out, round_)
        if answers:  # what is answered has to be so after a crash, too
            self._finish()
            for out in answers:
                self._send(out, _Sent(1, [], {}))

    def _send(self, out: Out, round_: _Sent, alone: bool = False) -> None:
        def report(error: Any, message: Any) -> None:
            if error is None:
                round_.left -= 1
            elif out.source is None or not is_the_records_own(error):
                self._failure = KafkaError(f"A record for {out.topic} was not stored: {error.str()}.")
            elif alone:
                self._send(self._writing.refused_delivery(out, error.str()), round_)
            else:  # what is refused may be another record of the same batch
                self._refused.append((out, round_))

        try:
            send(self._client, out, report)
        except (DeliveryError, SerializationError) as error:
            if out.source is None:
                raise
            self._send(self._writing.refused_delivery(out, str(error)), round_)

    def _try_alone(self) -> None:
        while self._refused:
            self._flush()
            self._send(*self._refused.popleft(), alone=True)
            self._flush()

    def serve(self) -> float:
        self._client.serve(0)
        self._try_alone()
        self._raise_failure()
        while self._sent and not self._sent[0].left:
            done = self._sent.popleft()
            self._state.update({(out.key, out.partition): out for out in done.state})
            self._offsets.update(done.offsets)
        now = time.monotonic()
        if self._state and now - self._stored_at >= _STORE_EVERY:
            self._stored_at = now
            self._store()
        return max(0.001, self._stored_at + _STORE_EVERY - now) if self._state or self._sent else _WITHIN

    def _store(self) -> None:
        states, self._state = list(self._state.values()), {}
        for out in states:
            self._stamp(out)
        if self._offsets:
            self._consumer.commit(self._offsets)
            self._offsets = {}

    def _stamp(self, out: Out) -> None:
        sent = time.monotonic()

        def report(error: Any, message: Any) -> None:
            if error is None:
                self._clock.observe(message.timestamp()[1], sent, time.monotonic())
            else:
                self._failure = KafkaError(f"What was done was not stored in {out.topic}: {error.str()}.")

        send(self._client, out, report)

    def _finish(self) -> None:
        """Wait until all is stored."""
        self._flush()
        self._try_alone()
        self._stored_at = 0.0
        self.serve()
        self._flush()
        self._raise_failure()

    def _flush(self) -> None:
        deadline = time.monotonic() + _WITHIN
        while self._client.flush(_SLICE):
            self._raise_failure()
            if time.monotonic() > deadline:
                raise KafkaError(f"Kafka did not acknowledge what was to be written within {_WITHIN:g} s.")

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure:
            self._sent.clear()
            self._state.clear()
            self._offsets.clear()
            raise failure

    def look_at_clock(self, partition: int) -> None:
        self._stamp(Out(self._names.state, b"", "clock", partition, 0, None))
        self._flush()

    def close(self) -> None:
        try:
            self._finish()
        finally:
            self._client.close(_SLICE)
