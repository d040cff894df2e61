"""The output of ticks in exactly-once mode: one transaction a round.

Source: KIP-447; the group's generation fences an expelled member, so that each partition has one relay.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from headway.core.delay.broker_clock import BrokerClock
from headway.core.delay.ladder import Ladder
from headway.core.delay.relay_state import PRODUCERS_KEY, encode_producers
from headway.core.delay.relay_tick import Tick
from headway.delay.records import RelayRecord, Writing
from headway.delay.relay.output import (
    WRITTEN_WITHIN,
    Moved,
    Offsets,
    Ticks,
    close_at_once,
    connect,
    moves_of,
    not_stored,
    note_move,
    why_not_writable,
)
from headway.delay.relay.refusals import is_refused_likewise
from headway.delay.relay.transactions import Uncommitted, abort, commit, fenced, member_of, new_id
from headway.delay.topics import TopicNames
from headway.errors import DeliveryError, HeadwayError, KafkaError, SerializationError
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.error_causes import error_name, is_purged, is_the_records_own, refuses_all
from headway.kafka.binding.factory import together
from headway.kafka.consumer.relay_consumer import RelayConsumer
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.hand_over import send
from headway.kafka.producer.transaction import HANGS_AFTER, in_slices
from headway.runtime.background import in_background

_LONGEST_WAIT = 10.0
_A_MOMENT = 0.1
_LOOK_AGAIN_AFTER = 0.02
_PRODUCERS = 3
_CAUSE_WITHIN = 0.5  # seconds after librdkafka gave up the other records because of it
_FORBIDDEN = "TOPIC_AUTHORIZATION_FAILED"


class _Refused(NamedTuple):
    """A record that Kafka refuses for good; `place` is None if unknown, since Kafka refuses whole batches."""

    place: int | None
    reason: str
    error: str  # librdkafka's name


class ExactlyOnce:
    """The output with one transaction for each round of ticks; its offsets fence off an expelled relay.

    While a thread commits one round, another producer already writes the next. The next round is committed after the
    first, since it builds on the first one's state. Three producers take turns: while the broker still writes a
    transaction's markers, it refuses the same producer's next records, and librdkafka then waits for 20 ms.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        names: TopicNames,
        ladder: Ladder,
        consumer: RelayConsumer,
        clock: BrokerClock,
    ) -> None:
        self._config = config
        self._names = names
        self._consumer = consumer
        self._clock = clock
        self._ids = [new_id(names) for _ in range(_PRODUCERS)]
        self._clients: deque[ProducerClient] = deque()  # the first one is next
        self._clients.extend(together(*(partial(self._new_client, each) for each in self._ids), close=close_at_once))
        self._why_not = partial(why_not_writable, config)
        self._writing = Writing(names, ladder, self._partitions, self._why_not)
        self._uncommitted: Uncommitted | None = None
        self.done: dict[Partition, int] = {}
        self.written: deque[Moved] = deque()

    def _new_client(self, transactional_id: str) -> ProducerClient:
        return fenced(self._config, transactional_id, self._names.state)

    def _partitions(self, topic: str, within: float) -> int:
        return self._clients[0].partitions(topic, within)

    @property
    def wants_state(self) -> bool:
        return True

    @property
    def under_way(self) -> int:
        return 0  # each round is awaited before the next but one

    def carry_out(self, ticks: Ticks, offsets: Offsets, now: int) -> None:
        # The metadata of the moment of decision: a rebalance after that is to fence the round off.
        member = member_of(self._consumer)
        records = [out for partition, tick in ticks.items() for out in self._writing.records(partition, tick, now)]
        if self._clients[0].batches_of_one:
            self._renew()
        moved = moves_of(ticks)
        while (refused := self._attempt(records, moved)) is not None:
            # A new producer: librdkafka would continue behind the refused records' sequence numbers, which leaves a
            # gap.
            self._renew(batches_of_one=True)
            if refused.place is not None:
                records = list(self._without(refused, records[refused.place], records))
            elif len(ticks) > 1:  # the search takes its time, and a transaction has little
                for number, tick in ticks.items():
                    mine = {place: offset for place, offset in offsets.items() if place[1] == number}
                    self.carry_out({number: tick}, mine, now)
                return
        if moved:
            self.written.append(moved)
        self.finish()
        committed = in_background(partial(commit, self._clients[0], offsets, member))
        self._uncommitted = Uncommitted(committed, offsets, time.monotonic() + HANGS_AFTER)
        self._clients.rotate(-1)

    def _renew(self, batches_of_one: bool = False) -> None:
        client = self._clients[0]
        client.renew(batches_of_one)
        connect(client, self._names.state)
        in_slices(client.init_transactions)

    def _without(self, refused: _Refused, itself: RelayRecord, records: Iterable[RelayRecord]) -> Iterator[RelayRecord]:
        """Yield the records to write instead of these, one of which Kafka refuses."""
        for out in records:
            if out is not itself and not is_refused_likewise(refused.error, itself, out):
                yield out
            elif instead := self._writing.instead_of(out, refused.error, refused.reason):
                yield instead

    def _attempt(self, records: Sequence[RelayRecord], moved: Moved) -> _Refused | None:
        """Write all in a new transaction, and note where the moves end; return the refused record, if any."""
        client, state = self._clients[0], self._names.state
        client.begin_transaction()
        certain = client.batches_of_one or len(records) == 1
        refused: list[_Refused] = []
        failures: list[HeadwayError] = []
        purged: list[float] = []  # times at which records were purged
        began = time.monotonic()

        def report(error: Any, message: Any, place: int | None = None) -> None:
            if error is None:
                return
            if is_the_records_own(error):
                refused.append(_Refused(place, error.str(), error.name()))
            elif is_purged(error):
                purged.append(time.monotonic())
            else:
                failures.append(not_stored(message.topic(), error))

        def report_state(error: Any, message: Any, place: int | None = None) -> None:
            report(error, message, place)
            if error is None:
                self._clock.observe(message.timestamp()[1], began, time.monotonic())

        def report_move(error: Any, message: Any, out: RelayRecord, place: int | None = None) -> None:
            report(error, message, place)
            if error is None:
                note_move(moved, out, message.offset())

        last_moves = {(out.line, out.partition): out for out in records if out.line is not None}
        for place, out in enumerate(records):
            reported: Callable[..., None] = report_state if out.topic == state else report
            if out.line is not None and last_moves[out.line, out.partition] is out:
                reported = partial(report_move, out=out)
            try:
                send(client, out, partial(reported, place=place) if certain else reported)
            except (DeliveryError, SerializationError) as error:
                if not refuses_all(error):
                    return _Refused(place, str(error), error_name(error))
                purged.append(time.monotonic())
            if refused or failures or purged:
                break

        def is_over() -> bool:
            return bool(refused or failures) or (bool(purged) and time.monotonic() > purged[0] + _CAUSE_WITHIN)

        client.await_reports(is_over, WRITTEN_WITHIN)
        if refused:
            return refused[0]
        if failures:
            raise failures[0]
        return self._forbidden(records) if purged else None

    def _forbidden(self, records: Sequence[RelayRecord]) -> _Refused:
        """Return the first record whose topic is forbidden, for which librdkafka gave up all records."""
        cause = self._clients[0].why_aborted() or KafkaError("The relay's transaction was aborted by the client.")
        if error_name(cause) == _FORBIDDEN:
            for topic, place in {out.topic: place for place, out in reversed(list(enumerate(records)))}.items():
                if reason := self._why_not(topic):
                    return _Refused(place, reason, _FORBIDDEN)
        raise cause

    def serve(self) -> float:
        if self._uncommitted is None:
            return _LONGEST_WAIT
        if self._uncommitted.is_over:
            self.finish()
            return _LONGEST_WAIT
        return _LOOK_AGAIN_AFTER

    def finish(self) -> None:
        if self._uncommitted is not None:
            uncommitted, self._uncommitted = self._uncommitted, None
            self.done.update(uncommitted.result())

    def look_at_clock(self, commands: Offsets) -> None:
        tick = Tick(state={PRODUCERS_KEY: encode_producers(self._ids)})
        self.carry_out({number: tick for _, number in commands}, commands, 0)

    def close(self) -> None:
        try:
            self.finish()
        finally:
            self._close(_A_MOMENT)

    def _close(self, within: float) -> None:
        """Abort the open transactions and close all clients; an error of one client stops no other."""
        with ExitStack() as all_of_them:
            for client in self._clients:
                all_of_them.callback(client.close, within)
                all_of_them.callback(abort, client)
