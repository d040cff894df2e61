"""Carrying out ticks exactly once: all of a round in one transaction.

Source: KIP-447; the group's generation fences a member that was expelled, so that each partition has one relay.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headway.core.broker_clock import BrokerClock
from headway.core.relay_ticks import Tick
from headway.core.stored_state import PRODUCERS_KEY, encode_producers
from headway.delay.carrying_out import DEFAULTS, Offsets, Ticks, flush, send
from headway.delay.topics import TopicNames
from headway.delay.writing import Out, Writing
from headway.errors import DeliveryError, KafkaError, SerializationError
from headway.kafka.line_consumer import LineConsumer
from headway.kafka.native import Partition
from headway.kafka.producer_client import ProducerClient, in_slices, is_out_of_place, is_the_records_own

_LONGEST_WAIT = 10.0
_A_MOMENT = 0.1
_ANSWER_WITHIN = 10.0
_IN_TRANSACTIONS: Mapping[str, Any] = {
    # So long a relay that was killed keeps its partitions' successor, and those who read its targets, waiting.
    "transaction.timeout.ms": 10_000,
    # The broker asks to try again while it writes the markers of the transaction before.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 100,
}


class _Refused(NamedTuple):
    """A delivery that Kafka refuses for good: which, if that is certain, since it refuses whole batches; and why."""

    place: int | None
    reason: str


class InTransactions:
    """Each round of ticks is one transaction, with the offsets that fence off a relay that was expelled.

    Two producers take turns: while the broker still writes the markers of a transaction, it refuses the records of the
    same producer's next, and librdkafka then waits for 20 ms.
    """

    def __init__(
        self, config: Mapping[str, Any], names: TopicNames, consumer: LineConsumer, clock: BrokerClock
    ) -> None:
        self._config = {**DEFAULTS, **_IN_TRANSACTIONS, **config}
        self._names = names
        self._consumer = consumer
        self._clock = clock
        self._ids = [f"{names.name}-relay-{uuid.uuid4().hex[:12]}" for _ in range(2)]
        self._client = self._new_client(self._ids[0])
        try:
            self._other = self._new_client(self._ids[1])
        except KafkaError:
            self._client.close(0)
            raise
        self._writing = Writing(names, self._partitions)
        self.done: dict[Partition, int] = {}

    def _new_client(self, transactional_id: str) -> ProducerClient:
        return _fenced(self._config, transactional_id, self._names.state)

    def _partitions(self, topic: str, within: float) -> int:
        return self._client.partitions(topic, within)

    @property
    def wants_state(self) -> bool:
        return True

    def carry_out(self, ticks: Ticks, offsets: Offsets, now: int) -> None:
        records = [out for partition, tick in ticks.items() for out in self._writing.records(partition, tick, now)]
        together = True
        while (refused := self._attempt(records, offsets, together)) is not None:
            # A new client: librdkafka would go on behind the sequence numbers of what was refused, which is a gap.
            self._abort()
            self._client.close(0)
            self._client = self._new_client(self._ids[0])
            together = False
            if refused.place is not None:
                records[refused.place] = self._writing.refused_delivery(records[refused.place], refused.reason)
        self._client, self._other = self._other, self._client
        self._ids.reverse()
        self.done.update(offsets)

    def _attempt(self, records: Sequence[Out], offsets: Offsets, together: bool) -> _Refused | None:
        """Commit all; or if a delivery is refused nothing of it, and say which one."""
        self._client.begin_transaction()
        errors: list[tuple[int, Any]] = []
        for index, out in enumerate(records):
            try:
                send(self._client, out, self._reporter(out, index, errors))
            except (DeliveryError, SerializationError) as refused:
                return _Refused(index, str(refused))
            if not together and out.source is not None:
                flush(self._client)
            if errors:
                break
        flush(self._client)
        for index, error in errors:
            if records[index].source is None or not is_the_records_own(error):
                raise KafkaError(f"A record for {records[index].topic} was not stored: {error.str()}.")
        if errors:
            alone = not together or len(records) == 1
            return _Refused(errors[0][0] if alone else None, errors[0][1].str())
        self._commit(offsets)
        return None

    def _commit(self, offsets: Offsets) -> None:
        native = {each: (offset, b"") for each, offset in offsets.items()}
        in_slices(partial(self._client.send_offsets, native, self._consumer.group_metadata))
        in_slices(self._client.commit_transaction)

    def _reporter(self, out: Out, index: int, errors: list[tuple[int, Any]]) -> Callable[[Any, Any], None]:
        if out.topic != self._names.state:
            return lambda error, _: errors.append((index, error)) if error is not None else None
        sent = time.monotonic()

        def report(error: Any, message: Any) -> None:
            if error is not None:
                errors.append((index, error))
            else:
                self._clock.observe(message.timestamp()[1], sent, time.monotonic())

        return report

    def _abort(self) -> None:
        try:
            in_slices(self._client.abort_transaction)
        except KafkaError as refused:
            if not is_out_of_place(refused):
                raise

    def serve(self) -> float:
        return _LONGEST_WAIT

    def finish(self) -> None:
        """What was carried out is committed."""

    def look_at_clock(self, commands: Offsets) -> None:
        tick = Tick(state={PRODUCERS_KEY: encode_producers(self._ids)})
        self.carry_out({number: tick for _, number in commands}, commands, 0)

    def close(self) -> None:
        try:
            self._abort()  # what was under way, if anything was; what was committed stays so
        finally:
            self._client.close(_A_MOMENT)
            self._other.close(_A_MOMENT)


def end_transactions(config: Mapping[str, Any], transactional_ids: Iterable[str], topic: str) -> None:
    """End what these producers have open, and refuse them from now on; `topic` is any that exists."""
    for transactional_id in transactional_ids:
        _fenced({**DEFAULTS, **config}, transactional_id, topic).close(_A_MOMENT)


def _fenced(config: Mapping[str, Any], transactional_id: str, topic: str) -> ProducerClient:
    """A client that may begin transactions, as no other with this id may from now on."""
    client = ProducerClient({**config, "transactional.id": transactional_id})
    try:
        client.partitions(topic, _ANSWER_WITHIN)  # unconnected, it looks for its coordinator every half second
        in_slices(client.init_transactions)
    except KafkaError:
        client.close(0)
        raise
    return client
