"""A scheduler's topics: their settings, how they are created, and the ladder of delays that is in use."""

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headway.core.delay.ladder import MEMORY, Ladder
from headway.core.outgoing_record import OutgoingRecord
from headway.core.untrusted import Time, read_json
from headway.delay.fit_records import FIT_KEY, fit_state_from
from headway.delay.topic_names import DEFAULT_NAME, TopicNames
from headway.errors import AuthorizationError, ConfigError, KafkaError, UnreadableError
from headway.kafka.admin import Admin, NewTopic
from headway.kafka.binding.time_limits import CREATED_TOPIC_KNOWN_WITHIN, LOG_BOUNDS_TOLD_WITHIN
from headway.kafka.producer.client import ProducerClient
from headway.kafka.reading.compacted import TopicReader
from headway.kafka.topic_listing import TopicListing

log = logging.getLogger(__name__)

DEFAULT_PARTITIONS = 4

_KEPT_FOREVER: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1"}
MAX_MESSAGE_BYTES = 2_097_152
"""The maximum size of records in delay topics and of dead letters: 1 MB, plus what Headway adds and a reserve."""

_BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
_COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.1"}
LADDER_KEY = "ladder"
_ladder_decoder = msgspec.json.Decoder(tuple[Time, ...])
_ASK_AGAIN_AFTER = 0.05  # the time between two checks whether the brokers list a topic, in seconds
_LADDER_STORED_WITHIN = 30.0


class Layout(NamedTuple):
    """The number of partitions, the delay topics that exist, and the ladder of delay topics that records can use.

    A delay topic of the ladder might not exist yet. Such a delay topic is created when a delay needs it. Delay topics
    that are `unread` will soon be deleted: they are empty, and no client writes to them.
    """

    partitions: int
    delay_topics: tuple[int, ...]
    ladder: Ladder
    unread: frozenset[int] = frozenset()

    @property
    def usable(self) -> Ladder:
        """The ladder, without delay topics that do not exist.

        With any ladder, every record is delivered when it is due, so missing delay topics can be left out.
        """
        return usable(self.ladder, self.delay_topics)

    @property
    def reach(self) -> float:
        """The shortest delay in milliseconds that needs a missing delay topic, or infinity if none is missing."""
        return self.ladder.reach(self.delay_topics)


def usable(ladder: Ladder, delay_topics: Collection[int]) -> Ladder:
    """Return the ladder without its missing delay topics, or the unchanged ladder if all of them are missing."""
    return Ladder.of_those(set(ladder.delays).intersection(delay_topics)) or ladder


def topics_for(names: TopicNames, delay_topics: Iterable[int], partitions: int) -> list[NewTopic]:
    """Return all topics of a scheduler with these delay topics.

    Records in the delay topics and in the topic of commands are kept until they are handled.
    """
    kept = {**_KEPT_FOREVER, "max.message.bytes": str(MAX_MESSAGE_BYTES)}
    return [
        *(_delay_topic_topic(names, delay_topic, partitions) for delay_topic in (MEMORY, *delay_topics)),
        # The topic of commands also contains the schedules whose ids users chose.
        NewTopic(names.commands, partitions, {**kept, **_BROKERS_TIME}),
        NewTopic(names.answers, partitions, {"retention.ms": "3600000"}),
        NewTopic(names.state, partitions, {**_COMPACTED, **_BROKERS_TIME}),
        NewTopic(names.dead, partitions, kept),
        # Small segments, because relays read the whole topic when they start.
        NewTopic(names.ladder, 1, {**_COMPACTED, "segment.ms": "3600000"}),
    ]


def _delay_topic_topic(names: TopicNames, delay_topic: int, partitions: int) -> NewTopic:
    settings = {
        **_KEPT_FOREVER,
        **_BROKERS_TIME,
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        "segment.bytes": "67108864",
    }
    return NewTopic(names.delay_topic(delay_topic), partitions, settings)


def create_topics(
    config: Mapping[str, Any],
    name: str = DEFAULT_NAME,
    ladder: Ladder | None = None,
    partitions: int = DEFAULT_PARTITIONS,
    replication_factor: int | None = None,
    delay: float = math.inf,
) -> Layout:
    """Create the missing topics of a scheduler, and put `ladder` into use. By default, the ladder does not change.

    Only the delay topics that delays up to `delay` milliseconds need are created, and by default all of them. Two
    schedulers can safely do this at the same time: the ladder states which delay topics can be used, and each of them
    is used as soon as it exists.

    Pending records are not affected: each record contains its due time, so other delay topics change only how the
    record is moved. Relays continue to read delay topics that are no longer in use until they are empty.

    Raises:
        AuthorizationError: A topic is missing, and this client is not permitted to create it.
        KafkaError: A topic could not be created.
        ConfigError: Topics exist with different numbers of partitions.
    """
    names = TopicNames(name)
    with TopicReader(config) as reader:
        admin = reader.admin
        existing = admin.topics(named=[names.ladder, names.state])
        in_use = _read_ladder(reader, names, existing)
        partitions = existing.get(names.state, partitions)
        wanted = ladder or in_use.ladder or Ladder.exponential()
        delay_topics = wanted.up_to(delay)
        needed = topics_for(names, delay_topics, partitions)
        there = existing.look_up([new.name for new in needed])
        _create(admin, names, [new for new in needed if new.name not in there], replication_factor)
        if wanted != in_use.ladder or not in_use.is_stored:
            store_in_ladder(config, names, {LADDER_KEY: encode_ladder(wanted)})
        return _checked(names, _await(admin, names, [new.name for new in needed]), wanted)


def add_delay_topics(config: Mapping[str, Any], name: str, delay: float = math.inf) -> Layout:
    """Create the missing delay topics that delays up to `delay` milliseconds need. By default, create all of them.

    Raises the same errors as `create_topics`.
    """
    names = TopicNames(name)
    with TopicReader(config) as reader:
        layout = layout_seen_by(reader, name, "Write")
        if layout is None:  # All topics were deleted, so create them again.
            return create_topics(config, name, delay=delay)
        missing = [delay_topic for delay_topic in layout.ladder.up_to(delay) if delay_topic not in layout.delay_topics]
        existing = create_delay_topics(reader.admin, names, missing, layout.partitions)
        return layout if existing is None else _checked(names, existing, layout.ladder)


def create_delay_topics(
    admin: Admin, names: TopicNames, delay_topics: Iterable[int], partitions: int
) -> TopicListing | None:
    """Create delay topics, and wait until the brokers list them. Raises the same errors as `create_topics`.

    Returns all existing topics, or None if `delay_topics` is empty.
    """
    missing = [_delay_topic_topic(names, delay_topic, partitions) for delay_topic in delay_topics]
    if not missing:
        return None
    _create(admin, names, missing, None)
    return _await(admin, names, [new.name for new in missing])


def missing_topics(config: Mapping[str, Any], name: str, ladder: Ladder | None, partitions: int) -> list[NewTopic]:
    """Return the topics that `create_topics` would create."""
    names = TopicNames(name)
    with TopicReader(config) as reader:
        existing = reader.admin.topics(named=[names.ladder, names.state])
        wanted_ladder = ladder or _read_ladder(reader, names, existing).ladder or Ladder.exponential()
        wanted = topics_for(names, wanted_ladder.delays, existing.get(names.state, partitions))
        there = existing.look_up([new.name for new in wanted])
    return [new for new in wanted if new.name not in there]


def read_layout(config: Mapping[str, Any], name: str, wanted: str = "Read") -> Layout | None:
    """Return the layout of a scheduler's topics, or None if it has no topics yet.

    Raises `AuthorizationError` if this client is not permitted to describe one of the topics. `wanted` is the operation
    that the client needs on the delay topics.
    """
    with TopicReader(config) as reader:
        return layout_seen_by(reader, name, wanted)


def layout_seen_by(reader: TopicReader, name: str, wanted: str = "Read") -> Layout | None:
    """Return the layout as `read_layout` does, but use the clients of an existing reader."""
    names = TopicNames(name)
    # Lists all topics, because delay topics that are no longer in use are read until they are empty.
    existing = reader.admin.topics()
    if names.ladder not in existing.wanting("Read") or names.state not in existing or names.commands not in existing:
        return None
    in_use = _read_ladder(reader, names, existing)
    if in_use.ladder is None:
        return None
    layout = _checked(names, existing.wanting(wanted), in_use.ladder)
    unread = in_use.retiring.intersection(layout.delay_topics).difference(in_use.ladder.delays)
    return layout._replace(
        delay_topics=tuple(delay_topic for delay_topic in layout.delay_topics if delay_topic not in unread),
        unread=unread,
    )


def _create(admin: Admin, names: TopicNames, topics: list[NewTopic], replication_factor: int | None) -> None:
    if not topics:
        return
    try:
        admin.create_topics(topics, replication_factor)
    except AuthorizationError as refused:
        missing = ", ".join(topic.name for topic in topics)
        raise AuthorizationError(
            f"The scheduler {names.name} needs the topics {missing}, which do not exist. {refused} Alternatively, run "
            f"`headway schedule init --name {names.name}` once with a login that is permitted to create topics."
        ) from refused
    except KafkaError:
        # If they are listed, another client has created them.
        if _await_listed(admin, [topic.name for topic in topics]) is None:
            raise


def _await_listed(admin: Admin, topics: Collection[str]) -> TopicListing | None:
    """Wait until these topics are listed, and return all existing topics. Returns None if that takes too long."""
    deadline = time.monotonic() + CREATED_TOPIC_KNOWN_WITHIN
    while time.monotonic() < deadline:
        if len(admin.topics(named=topics).look_up(topics)) == len(topics):
            existing = admin.topics()
            # Another broker may have answered, which did not have the new topics yet.
            if len(existing.look_up(topics)) == len(topics):
                return existing
        time.sleep(_ASK_AGAIN_AFTER)
    return None


def _await(admin: Admin, names: TopicNames, created: Collection[str]) -> TopicListing:
    """Wait until the brokers list these topics, and return all topics.

    This can take a while, because brokers get the metadata of a new topic one after another.
    """
    existing = _await_listed(admin, created)
    if existing is None:
        raise KafkaError(
            f"The topics of {names.name} were created, but the brokers still do not list them after "
            f"{CREATED_TOPIC_KNOWN_WITHIN:g} s. Try again."
        )
    return existing


class _InUse(NamedTuple):
    """The ladder that is in use, or None. If its record cannot be read, the ladder has all existing delay topics.

    Delay topics that are `retiring` are no longer read, unless they are in use.
    """

    ladder: Ladder | None
    is_stored: bool
    retiring: frozenset[int] = frozenset()


def _read_ladder(reader: TopicReader, names: TopicNames, existing: Mapping[str, int]) -> _InUse:
    partition = names.ladder, 0
    # The topic might have been deleted since it was listed. In that case it has no end offset.
    if names.ladder not in existing or not reader.bounds().ends([partition]).get(partition):
        return _InUse(None, is_stored=False)
    stored = reader.compacted(names.ladder, [0], LOG_BOUNDS_TOLD_WITHIN)[0]
    if ladder := ladder_from(names, LADDER_KEY.encode(), stored.get(LADDER_KEY)):
        return _InUse(ladder, is_stored=True, retiring=fit_state_from(names.ladder, stored.get(FIT_KEY)).retiring)
    # The first delay topics are created before the first record in the ladder's topic, but perhaps after the topics
    # above were listed.
    there, default = Ladder.of_those(names.delay_topics_of(reader.admin.topics())), Ladder.exponential()
    # If only the first delay topics exist, another scheduler might be about to store the whole ladder.
    is_begun = there is not None and there.delays == default.up_to(there.delays[-1])
    return _InUse(default if is_begun else there, is_stored=False)


def ladder_from(names: TopicNames, key: bytes | None, value: bytes | None) -> Ladder | None:
    """Return the ladder in a record of the ladder's topic, or None if the record has no readable ladder."""
    if key != LADDER_KEY.encode() or value is None:
        return None
    try:
        return decode_ladder(value)
    except UnreadableError as error:
        log.warning(
            "A record in %s is skipped: %s To replace it, run `headway schedule init` with the delays to use.",
            names.ladder,
            error,
        )
        return None


def decode_ladder(value: bytes) -> Ladder:
    """Decode a ladder from its stored form. Raises `UnreadableError` if it is malformed."""
    delay_topics = read_json(value, _ladder_decoder, "The ladder")
    try:
        return Ladder(delay_topics)
    except ConfigError as error:
        raise UnreadableError(f"The ladder cannot be read: {error}") from error


def encode_ladder(ladder: Ladder) -> bytes:
    """Encode a ladder for storage."""
    return msgspec.json.encode(ladder.delays)


def store_in_ladder(config: Mapping[str, Any], names: TopicNames, values: Mapping[str, bytes]) -> None:
    """Store values in the ladder's topic under these keys, in this order. Raises `KafkaError` if they are refused."""
    refused: list[Any] = []
    client = ProducerClient({**config, "enable.idempotence": True})
    try:
        for key, value in values.items():
            client.produce(OutgoingRecord(names.ladder, value, key, 0), lambda error, _: refused.append(error))
    finally:
        left = client.close(_LADDER_STORED_WITHIN)
    if left or any(refused):
        raise KafkaError(f"The ladder was not stored in {names.ladder}: {list(filter(None, refused)) or 'no answer'}.")


def _checked(names: TopicNames, existing: TopicListing, ladder: Ladder) -> Layout:
    partitions = existing[names.state]
    delay_topics = names.delay_topics_of(existing)
    # A delay topic that is not listed might still exist, because this client might not be permitted to describe it.
    unlisted = {
        names.delay_topic(delay_topic): delay_topic
        for delay_topic in (MEMORY, *ladder.delays)
        if delay_topic not in delay_topics
    }
    delay_topics |= {unlisted[topic]: count for topic, count in existing.look_up(list(unlisted)).items()}
    others = {names.delay_topic(delay_topic): count for delay_topic, count in delay_topics.items()} | {
        names.commands: existing[names.commands]
    }
    for topic, count in others.items():
        if count != partitions:
            raise ConfigError(
                f"{topic} has {count} partitions and {names.state} has {partitions}; all topics of a scheduler must "
                "have the same number. Do not add partitions to them; give a new scheduler another name."
            )
    return Layout(partitions, tuple(sorted(delay_topics)), ladder)
