"""A relay's transactions: what both modes need to begin, to commit and to end them.

The group's generation fences a member that was expelled (KIP-447), and the ids of a relay's producers, which it stores,
let its successor end what it has left open.
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
from headway.kafka.binding.factory import together
from headway.kafka.consumer.membership import not_a_member
from headway.kafka.consumer.relay_consumer import RelayConsumer
from headway.kafka.producer.client import HANGS_AFTER, ProducerClient, in_slices, is_out_of_place

_A_MOMENT = 0.1
_AT_A_TIME = 8
_DEFAULTS: Mapping[str, Any] = {
    # So long a relay that was killed keeps its partitions' successor, and those who read its targets, waiting.
    "transaction.timeout.ms": 10_000,
    # The broker asks to try again while it writes the markers of the transaction before.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 100,
}


class Uncommitted(NamedTuple):
    """A round that is being committed, and when it is thought that it never will be."""

    committed: Future[None]
    offsets: Offsets
    deadline: float

    @property
    def is_over(self) -> bool:
        """Whether `result` does not wait."""
        return self.committed.done() or time.monotonic() > self.deadline

    def result(self) -> Offsets:
        """Wait, and return the offsets that are committed; raise `KafkaError` where they are not, or not in time."""
        try:
            self.committed.result(max(0.0, self.deadline - time.monotonic()))
        except TimeoutError as late:  # should it return after all, who reads the state next has fenced it off
            raise KafkaError(f"A transaction could not be committed within {HANGS_AFTER:g} s.") from late
        return self.offsets


def ids_begin_with(names: TopicNames) -> str:
    """Return how the transactional ids of a scheduler's relays begin."""
    return f"{names.name}-relay-"


def new_id(names: TopicNames) -> str:
    """Return a transactional id that no other relay has."""
    return f"{ids_begin_with(names)}{uuid.uuid4().hex[:12]}"


def member_of(consumer: RelayConsumer) -> bytes:
    """Return the group's metadata, as of now, which a commit is to be fenced with; raise `KafkaError` for no member."""
    member = consumer.group_metadata
    if not is_of_a_member(member):
        raise not_a_member("The relay")
    return member


def fenced(config: Mapping[str, Any], transactional_id: str, topic: str) -> ProducerClient:
    """Return a client that may begin transactions, as no other with this id may from now on; `topic` is any."""
    client = connected_client({**_DEFAULTS, **config, "transactional.id": transactional_id}, topic)
    try:
        in_slices(client.init_transactions)
    except KafkaError:
        client.close(0)
        raise
    return client


def commit(client: ProducerClient, offsets: Offsets, member: bytes) -> None:
    """End a transaction, with the offsets that fence off a member which was expelled."""
    in_slices(partial(client.add_offsets, {each: (offset, b"") for each, offset in offsets.items()}, member))
    in_slices(client.commit_transaction)


def abort(client: ProducerClient) -> None:
    """End a transaction with nothing of it, if one is open."""
    if client.hangs():
        return
    try:
        in_slices(client.abort_transaction)
    except KafkaError as refused:
        if not is_out_of_place(refused):
            raise


def end_transactions(config: Mapping[str, Any], transactional_ids: Iterable[str], topic: str) -> None:
    """End what these producers have open, and refuse them from now on; `topic` is any that exists."""
    ids = list(transactional_ids)
    for some in (ids[first : first + _AT_A_TIME] for first in range(0, len(ids), _AT_A_TIME)):
        for client in together(*(partial(fenced, config, each, topic) for each in some), close=close_at_once):
            client.close(_A_MOMENT)
