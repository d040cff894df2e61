"""A relay's transactions: what both modes need to begin, commit and end them.

The group's generation fences an expelled member (KIP-447). A relay stores the ids of its producers, so that its
successor can end the transactions that it left open.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from headway.delay.relay.output import Offsets, close_at_once, connected_client
from headway.delay.topics import TopicNames
from headway.errors import KafkaError
from headway.kafka.binding.capi import is_of_a_member
from headway.kafka.binding.error_causes import is_out_of_place
from headway.kafka.binding.factory import together
from headway.kafka.consumer.membership import not_a_member
from headway.kafka.consumer.relay_consumer import RelayConsumer
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.transaction import HANGS_AFTER, in_slices

_A_MOMENT = 0.1
_AT_A_TIME = 8
_DEFAULTS: Mapping[str, Any] = {
    # A killed relay delays its partitions' next relay, and the consumers of its targets, for so long.
    "transaction.timeout.ms": 10_000,
    # The broker asks to try again while it writes the markers of the previous transaction.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 100,
}


class Uncommitted(NamedTuple):
    """A round whose commit is under way, and the time at which the commit counts as failed."""

    committed: Future[None]
    offsets: Offsets
    deadline: float

    @property
    def is_over(self) -> bool:
        """Return whether `result` returns without waiting."""
        return self.committed.done() or time.monotonic() > self.deadline

    def result(self) -> Offsets:
        """Wait, and return the committed offsets; raise `KafkaError` if the commit failed or is late."""
        try:
            self.committed.result(max(0.0, self.deadline - time.monotonic()))
        except TimeoutError as late:  # if it commits after all: the next reader of the state has fenced it off
            raise KafkaError(f"A transaction could not be committed within {HANGS_AFTER:g} s.") from late
        return self.offsets


def ids_begin_with(names: TopicNames) -> str:
    """Return the prefix of the transactional ids of a scheduler's relays."""
    return f"{names.name}-relay-"


def new_id(names: TopicNames) -> str:
    """Return a transactional id that no other relay has."""
    return f"{ids_begin_with(names)}{uuid.uuid4().hex[:12]}"


def member_of(consumer: RelayConsumer) -> bytes:
    """Return the group's metadata as of now, to fence a commit with; raise `KafkaError` if this is no member."""
    member = consumer.group_metadata
    if not is_of_a_member(member):
        raise not_a_member("The relay")
    return member


def fenced(config: Mapping[str, Any], transactional_id: str, topic: str) -> ProducerClient:
    """Return a client for transactions that fences off all others with this id; `topic` is any existing topic."""
    client = connected_client({**_DEFAULTS, **config, "transactional.id": transactional_id}, topic)
    try:
        in_slices(client.init_transactions)
    except KafkaError:
        client.close(0)
        raise
    return client


def commit(client: ProducerClient, offsets: Offsets, member: bytes) -> None:
    """End a transaction with the offsets that fence off an expelled member."""
    in_slices(partial(client.add_offsets, {each: (offset, b"") for each, offset in offsets.items()}, member))
    in_slices(client.commit_transaction)


def abort(client: ProducerClient) -> None:
    """End a transaction, if one is open, and discard its records."""
    if client.hangs():
        return
    try:
        in_slices(client.abort_transaction)
    except KafkaError as refused:
        if not is_out_of_place(refused):
            raise


def end_transactions(config: Mapping[str, Any], transactional_ids: Iterable[str], topic: str) -> None:
    """End the open transactions of these producers, and fence the producers; `topic` is any existing topic."""
    ids = list(transactional_ids)
    for some in (ids[first : first + _AT_A_TIME] for first in range(0, len(ids), _AT_A_TIME)):
        for client in together(*(partial(fenced, config, each, topic) for each in some), close=close_at_once):
            client.close(_A_MOMENT)
