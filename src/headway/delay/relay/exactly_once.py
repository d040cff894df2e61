"""Carries out a relay's decisions in exactly-once mode, in one transaction for each round.

The generation of the consumer group fences off a relay that was expelled from the group, so that each partition has
only one relay (KIP-447).
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from headway.core.delay.relay_state import PRODUCERS_KEY, encode_producers
from headway.core.delay.relay_tick import RelayTick
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
    RelayOffsets,
    abort,
    close_at_once,
    commit,
    connect_now,
    fenced,
    member_of,
    new_id,
    writer_for,
)
from headway.delay.relay.refusals import is_refused_too
from headway.kafka.binding.factory import together
from headway.kafka.producer.transactional_writer import Rejection, TransactionalWriter

_CLOSE_WITHIN = 0.1
_PRODUCERS = 3


class ExactlyOnce(RelayOutput):
    """Writes the decisions of each round in one transaction.

    The offsets in the transaction fence off an expelled relay.

    While a thread commits one round, another producer already writes the next round. The next round is committed only
    after the first one, because it builds on the state of the first. Three producers take turns: while a broker is
    still writing the markers of a producer's last transaction, it refuses that producer's next records, and librdkafka
    then waits for 20 ms.
    """

    def __init__(self, parts: RelayParts) -> None:
        super().__init__(parts)
        self._ids = [new_id(parts.names) for _ in range(_PRODUCERS)]
        clients = together(
            *(partial(fenced, parts.config, each, parts.names.state) for each in self._ids), close=close_at_once
        )
        # The first writer in the queue is the next one to be used.
        self._writers = deque(writer_for(client, parts.config) for client in clients)

    def partitions(self, topic: str, within: float) -> int:
        return self._writers[0].client.partitions(topic, within)

    @property
    def wants_state(self) -> bool:
        return True

    @property
    def under_way(self) -> int:
        return 0  # always 0, because `carry_out` waits until all its records are acknowledged

    def carry_out(self, ticks: Ticks, offsets: RelayOffsets, now: int) -> None:
        # Take the group's metadata now, at the time of the decisions, so that a later rebalance fences this round off.
        member = member_of(self._consumer)
        records = self._records(ticks, now)
        writer = self._writers[0]
        if writer.is_searching:
            self._renew(writer)
        moved = moves_of(ticks)
        while (rejection := self._attempt(writer, records, moved)) is not None:
            self._counts["aborts"] += 1
            self._renew(writer, batches_of_one=True)
            if rejection.position is not None:
                records = list(self._replaced(rejection, records[rejection.position], records))
            # Finding the refused record takes time, and a transaction soon times out. So write each partition
            # separately.
            elif len(ticks) > 1:
                for number, tick in ticks.items():
                    mine = {place: offset for place, offset in offsets.items() if place[1] == number}
                    self.carry_out({number: tick}, mine, now)
                return
        if moved:
            self.written.append(moved)
        self.finish()
        self._begin_commit(partial(commit, writer, offsets, member), offsets)
        self._writers.rotate(-1)

    def _renew(self, writer: TransactionalWriter, batches_of_one: bool = False) -> None:
        writer.renew(batches_of_one)
        connect_now(writer.client, self._names.state)
        writer.fence()

    def _replaced(
        self, rejection: Rejection, rejected: RelayRecord, records: Iterable[RelayRecord]
    ) -> Iterator[RelayRecord]:
        """Yield these records. The rejected record, and others that would be rejected too, are replaced."""
        for out in records:
            if out is not rejected and not is_refused_too(rejection.error, rejected, out):
                yield out
            elif instead := self._writing.instead_of(out, rejection.error, rejection.reason):
                yield instead

    def _attempt(self, writer: TransactionalWriter, records: Sequence[RelayRecord], moved: Moved) -> Rejection | None:
        """Write all records in a new transaction, and note their offsets.

        If a record is rejected, returns the rejection.
        """
        writer.begin()
        began = time.monotonic()
        last_moves = {
            (out.delay_topic, out.partition): index for index, out in enumerate(records) if out.delay_topic is not None
        }
        state = [index for index, out in enumerate(records) if out.source is None]
        ends, noted = set(last_moves.values()), {*last_moves.values(), *state}

        def stored(index: int, message: Any) -> None:
            if index in ends:
                note_move(moved, records[index], message.offset())
            elif index in noted:
                self._clock.observe(message.timestamp()[1], began, time.monotonic())

        return writer.write(records, stored, noted=noted)

    def serve(self) -> float:
        if self._uncommitted is None:
            return NOTHING_PENDING_FOR
        if self._uncommitted.is_over:
            self.finish()
            return NOTHING_PENDING_FOR
        return COMMIT_CHECKED_AGAIN_AFTER

    def finish(self) -> None:
        self._await_commit()

    def observe_clock(self, commands: RelayOffsets) -> None:
        tick = RelayTick(state={PRODUCERS_KEY: encode_producers(self._ids)})
        self.carry_out({number: tick for _, number in commands}, commands, 0)

    def close(self) -> None:
        try:
            self.finish()
        finally:
            self._close(_CLOSE_WITHIN)

    def _close(self, within: float) -> None:
        """Abort open transactions and close all clients, even if some of these calls raise errors."""
        with ExitStack() as all_of_them:
            for writer in self._writers:
                all_of_them.callback(writer.client.close, within)
                all_of_them.callback(abort, writer)
