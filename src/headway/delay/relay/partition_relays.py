"""Passes fetched records to the state machines of a relay's partition numbers, and collects their decisions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.delay.delay_topic_window import Fetched
from headway.core.delay.ladder import Ladder
from headway.core.delay.partition_relay import HeldRecords, PartitionRelay
from headway.core.delay.relay_tick import RelayTick
from headway.delay.records import command_from, fetched_from
from headway.delay.relay.delay_topic_fitter import DelayTopicFitter
from headway.delay.relay.output import Moved, Ticks
from headway.delay.relay.search import Searcher
from headway.delay.topic_names import TopicNames
from headway.errors import KafkaError
from headway.kafka.binding.capi import Partition


class PartitionRelays:
    """The state machine of each partition number, and the partitions that belong to it.

    Args:
        names: The names of the scheduler's topics.
        searcher: Searches the delay topics for records.
        fitter: Counts the delays of fetched records.
    """

    def __init__(self, names: TopicNames, searcher: Searcher, fitter: DelayTopicFitter) -> None:
        self._names = names
        self._fitter = fitter
        self._searcher = searcher
        self._relays: dict[int, PartitionRelay] = {}
        self._places: dict[Partition, tuple[PartitionRelay, int | None]] = {}
        self._fetched_to: dict[Partition, int] = {}

    def __len__(self) -> int:
        return len(self._relays)

    @property
    def numbers(self) -> list[int]:
        """The partition numbers, sorted."""
        return sorted(self._relays)

    @property
    def held(self) -> int:
        """The number of records that wait in memory."""
        return sum(relay.held for relay in list(self._relays.values()))

    @property
    def held_bytes(self) -> int:
        """The size of all fetched records that have not been delivered or moved, in bytes."""
        return sum(relay.held_bytes for relay in self._relays.values())

    def held_records(self) -> dict[Partition, HeldRecords]:
        """Return how many records of each partition of a delay topic are held."""
        return {
            (self._names.delay_topic(delay_topic), number): held
            for number, relay in self._relays.items()
            for delay_topic, held in relay.held_records().items()
        }

    def earliest_due(self) -> int | None:
        """Return the earliest due time of the records that are delivered or leave next, or None if there is none."""
        dues = (relay.earliest_due() for relay in self._relays.values())
        return min((due for due in dues if due is not None), default=None)

    def add(self, number: int, relay: PartitionRelay, delay_topics: Sequence[int]) -> None:
        """Add the state machine for a partition number.

        The state machine handles the partition with this number of the topic of commands and of these delay topics.
        """
        self._relays[number] = relay
        self._places |= {
            (self._names.delay_topic(delay_topic), number): (relay, delay_topic) for delay_topic in delay_topics
        }
        self._places[self._names.commands, number] = relay, None

    def clear(self) -> None:
        """Give up all partition numbers."""
        self._relays.clear()
        self._places.clear()
        self._searcher.forget()

    def begin(self) -> dict[Partition, int]:
        """Return, for each partition, the offset at which fetching must begin."""
        self._fetched_to = {
            place: relay.commands_start if delay_topic is None else relay.start(delay_topic)
            for place, (relay, delay_topic) in self._places.items()
        }
        return dict(self._fetched_to)

    def commands_starts(self) -> dict[Partition, int]:
        """Return, for each partition of the topic of commands, the offset below which every command is handled."""
        return {(self._names.commands, number): relay.commands_start for number, relay in self._relays.items()}

    def receive(self, messages: Sequence[Any], ends: Mapping[Partition, int], ladder: Ladder, now: int) -> list[Any]:
        """Pass fetched records, and the end offsets that have been reached, to the state machines.

        Returns the records of all other topics.

        Raises `KafkaError` if a topic was recreated.
        """
        fetched: dict[Partition, list[Fetched]] = {}
        others = []
        for message in messages:
            place = message.topic(), message.partition()
            relay, delay_topic = self._places.get(place, (None, None))
            if relay is None:
                others.append(message)
                continue
            if self._was_recreated(place, message.offset()):
                raise KafkaError(
                    f"The log of {place[0]} begins again at offset {message.offset()}, so the topic was recreated."
                )
            if delay_topic is None:
                relay.command(message.offset(), command_from(message), now)
            else:
                fetched.setdefault(place, []).append(fetched_from(message))
        for place, records in fetched.items():
            relay, delay_topic = self._places[place]
            relay.receive(delay_topic or 0, records)
            self._fitter.count(place[1], delay_topic or 0, records, ladder, now)
        for place, offset in ends.items():
            relay, delay_topic = self._places.get(place, (None, None))
            if relay is not None and delay_topic is not None:
                relay.reached_end(delay_topic, offset)
        return others

    def _was_recreated(self, place: Partition, offset: int) -> bool:
        """Return whether the offsets of a partition have started again, because its topic was recreated."""
        before, self._fetched_to[place] = self._fetched_to[place], offset + 1
        return offset < before

    def search(self, ladder: Ladder, now: int) -> None:
        """Start the requested searches, and pass the results of finished searches to the state machines."""
        for number, relay in self._relays.items():
            for search in relay.searches:
                self._searcher.search(number, search, ladder, relay.committable(), now)
            relay.searches.clear()
        for number, search, fetched in self._searcher.results():
            if number in self._relays:
                self._relays[number].found(search, fetched, now)

    def take(self, now: int, records: int, most_bytes: int, stores: bool) -> dict[int, RelayTick]:
        """Return the decisions to carry out now, for each partition number.

        `records` and `most_bytes` limit approximately how many records and bytes each partition number gets.
        """
        taken = ((number, relay.take(now, records, most_bytes, stores)) for number, relay in self._relays.items())
        ticks = {number: tick for number, tick in taken if tick}
        for number, tick in ticks.items():
            self._fitter.add(number, tick.delays, now)
        return ticks

    def unstored(self, now: int) -> dict[int, RelayTick]:
        """Return decisions whose only purpose is to store state that earlier decisions did not store."""
        return {number: tick for number, relay in self._relays.items() if (tick := relay.unstored(now))}

    def offsets(self, ticks: Ticks) -> dict[Partition, int]:
        """Return the offsets to commit to the consumer group, below which all records are handled.

        The committed offsets fence off an expelled relay and show the progress to operators. The relay itself starts
        from its own stored state.
        """
        done = dict[Partition, int]()
        for number, tick in ticks.items():
            for delay_topic, offset in tick.offsets.items():
                done[self._names.commands if delay_topic is None else self._names.delay_topic(delay_topic), number] = (
                    offset
                )
            # Kafka would not fence a transaction without offsets, so commit an unchanged offset.
            if tick.state and not tick.offsets:
                done[self._names.commands, number] = self._relays[number].commands_start
        return done

    def written(self, moved: Moved, now: int) -> None:
        """Report to the state machines which moved records Kafka has stored."""
        for number, ends in moved.items():
            if number in self._relays:
                self._relays[number].written(ends, now)

    def full(self) -> set[Partition]:
        """Return the partitions from which no records must be fetched now, because memory is full."""
        return {
            (self._names.delay_topic(delay_topic), number)
            for number, relay in self._relays.items()
            for delay_topic in relay.full()
        }

    def next_wake(self, now: int) -> float:
        """Return the brokers' time at which work is due even if no record arrives, or infinity if there is none."""
        return min((relay.next_wake(now) for relay in self._relays.values()), default=math.inf)


def counts_of(ticks: Ticks) -> dict[str, int]:
    """Return how many records were delivered, moved, refused, and cancelled or replaced in one round of decisions."""
    writes = [write for tick in ticks.values() for write in tick.writes]
    moved = sum(write.delay_topic is not None for write in writes)
    refused = sum(len(tick.refusals) for tick in ticks.values())
    ended_early = sum(tick.ended_early for tick in ticks.values())
    delivered = len(writes) - moved
    return {"delivered": delivered, "moved": moved, "refused": refused, "cancelled": ended_early, "rounds": 1}
