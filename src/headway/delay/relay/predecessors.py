"""Reads the state that earlier relays have stored, and ends transactions that these relays have left open."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.core.delay.relay_state import stored_producers
from headway.delay.relay.delay_topics_in_use import DelayTopicsInUse
from headway.delay.relay.producers import end_transactions, ids_begin_with
from headway.delay.topic_names import TopicNames
from headway.errors import KafkaError
from headway.kafka.binding.time_limits import OPEN_TRANSACTION_ENDS_WITHIN
from headway.kafka.reading.compacted import TopicReader

log = logging.getLogger(__name__)

# The time limit for reading end offsets, in seconds. It is short, so that the other delay topics do not wait long if
# the broker of one delay topic is down.
_LOG_ENDS_KNOWN_WITHIN = 3.0

StoredStates = dict[int, dict[str, bytes]]
"""The stored state of each partition number, by key."""


class Predecessors:
    """Reads the state that earlier relays have stored, and ends their open transactions.

    Args:
        reader: Reads the topics.
        names: The names of the scheduler's topics.
        delay_topics: The delay topics in use.
        producer_config: The settings of the relays' producers.
        is_over: Returns True if the relay is stopping, so that the state is no longer needed.
    """

    def __init__(
        self,
        reader: TopicReader,
        names: TopicNames,
        delay_topics: DelayTopicsInUse,
        producer_config: Mapping[str, Any],
        is_over: Callable[[], bool],
    ) -> None:
        self._reader = reader
        self._names = names
        self._in_use = delay_topics
        self._producer_config = producer_config
        self._is_over = is_over

    def stored(self, numbers: Sequence[int]) -> StoredStates:
        """Return the stored state of these partition numbers.

        No open transaction can change the returned state afterwards.
        """
        stored = self._reader.compacted(
            self._names.state, numbers, OPEN_TRANSACTION_ENDS_WITHIN, self._end_open_transactions, self._is_over
        )
        if not self._are_all_decided(numbers):
            self._end_open_transactions(stored)
        return stored

    def _end_open_transactions(self, stored: Mapping[int, Mapping[str, bytes]]) -> None:
        """End the open transactions of earlier relays, and wait until all brokers have recorded the outcome.

        Without this, brokers would end a dead relay's transaction only after its timeout.
        """
        own = ids_begin_with(self._names)
        producers = {each for values in stored.values() for each in stored_producers(values, own)}
        end_transactions(self._producer_config, sorted(producers), self._names.state)

    def _are_all_decided(self, numbers: Sequence[int]) -> bool:
        """Return whether the brokers of all delay topics have recorded how every transaction has ended.

        The broker that stores the state might record the outcome before the brokers of the delay topics do. Until the
        broker of a delay topic has recorded it, records that were moved to this topic cannot be read.
        """
        places = [
            (self._names.delay_topic(delay_topic), number)
            for delay_topic in self._in_use.delay_topics
            for number in numbers
        ]
        try:
            all_ends = self._reader.bounds(_LOG_ENDS_KNOWN_WITHIN).ends(places)
            decided = self._reader.bounds(_LOG_ENDS_KNOWN_WITHIN, "read_committed").ends(places)
        except KafkaError as unknown:  # the broker of a delay topic is down; the others need not wait for it
            log.info("%s", unknown)
            self._reader.renew()
            return False
        return all(decided[place] >= end for place, end in all_ends.items() if place in decided)

    def ends(self, numbers: Sequence[int]) -> dict[int, dict[str, int]]:
        """Return the end offsets that are known, by partition number and by the key of the topic's stored progress."""
        keys = self._in_use.state_keys
        places = [(topic, number) for topic in keys for number in numbers]
        try:
            ends = self._reader.bounds(_LOG_ENDS_KNOWN_WITHIN).ends(places)
        except KafkaError as unknown:  # the broker of a delay topic is down; the others need not wait for it
            log.info("%s", unknown)
            self._reader.renew()
            ends = {}
        return {
            number: {key: ends[topic, number] for topic, key in keys.items() if (topic, number) in ends}
            for number in numbers
        }
