"""The client of one or more levels: it speaks Headway's addresses, and asks Kafka about partitions and offsets."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import confluent_kafka as ck

from headway.core.levels.group_subscription import GroupSubscription
from headway.core.offsets.lost_place import RESETS
from headway.core.rights import right_for
from headway.errors import FetchRefusedError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.connection import Connection
from headway.kafka.binding.error_causes import cause_of
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.unpacking import UNPACKS, Unpacking
from headway.kafka.consumer.access_watch import AccessWatch
from headway.kafka.missing_rights import is_of_the_group, why_refused
from headway.kafka.reading.log_bounds import NONE_THAT_LATE, fetched_end, watermarks
from headway.records.record_types import TopicPartition
from headway.runtime.deferred_signals import defer_signals
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata

P = ParamSpec("P")
T = TypeVar("T")

# librdkafka checks a full queue for room again after this time; at its default of a second a small queue starves. It
# has one fetch on its way to a broker. While flooded partitions are kept apart and full, that fetch asks for idle ones
# alone, and nothing else is fetched until the broker answers it.
_FETCH_DEFAULTS = {
    **UNPACKS,
    "fetch.queue.backoff.ms": 1,
    "fetch.wait.max.ms": 50,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16_384,
}
# Of one queue of librdkafka. It must hold about a fetch of 1 MB for some partitions: else the partition that answers
# first fills it again and again, and others get nothing.
_QUEUE_KB = 4096


class PartitionQueries:
    """The questions of a client to Kafka about its levels, and what it is refused; for one thread at a time.

    `errors` gets what is no answer to a call. The threads that look for starts and for access append to it, too.
    """

    def __init__(self, levels: Sequence[int], config: Config, on_lost_heartbeat: Callable[[], None]) -> None:
        self.levels = levels
        self.errors: deque[Exception] = deque()  # what Kafka said
        self.callback_errors: deque[BaseException] = deque()  # what the listener's methods raised
        self._subscription = GroupSubscription.nothing(self.levels)
        self._access = AccessWatch(config)
        self._config = dict(config)
        self._group = str(config["group.id"])
        self._reset = RESETS.get(str(config.get("auto.offset.reset", "latest")).lower())
        self._on_lost_heartbeat = on_lost_heartbeat
        settings = {**_FETCH_DEFAULTS, **config}
        self._unpacking = Unpacking(config)
        room = _integer(settings["queued.max.messages.kbytes"])
        # What may wait of each level, and for how long librdkafka may not look at partitions that were full.
        self._room, self._fetch_wait = room * 1024, _integer(settings["fetch.wait.max.ms"]) / 1000
        self._commits: list[PendingCommit] = []  # those that may be without an answer
        self._consumer, self._connection = self._make_client()

    def _make_client(self) -> tuple[ck.Consumer, Connection]:
        """Return a new client of librdkafka with the member's settings, and the state of its connections."""
        connection = Connection(self._on_lost_heartbeat)
        settings = {**_FETCH_DEFAULTS, **self._config}
        if self._room:  # it bounds each level's buffer, which gives in turns
            settings["queued.max.messages.kbytes"] = _QUEUE_KB
        if self._reset is not None:  # librdkafka refuses any other value
            settings["auto.offset.reset"] = "error"  # a lost place is looked at here: see `LostPlace`
        return make_client(ck.Consumer, settings, connection), connection

    @property
    def group(self) -> str:
        """The name of its group in Kafka."""
        return self._group

    @property
    def group_metadata(self) -> bytes:
        """The group's metadata, which a transactional producer needs to commit offsets in it."""
        metadata: bytes = self._consumer.consumer_group_metadata()
        return metadata

    # Offsets in Kafka

    def commit(self, offsets: Mapping[TopicPartition, int]) -> PendingCommit:
        """Send a commit of the next offset to read of each partition."""
        return self.commit_with_metadata({partition: (offset, "") for partition, offset in offsets.items()})

    def commit_with_metadata(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> PendingCommit:
        """Send a commit of each partition's next offset to read with its exact metadata."""
        with defer_signals():  # a client that closes waits for every commit that is not known here
            sent = capi.commit(self._consumer, self.as_native(commits), self._explain)
            self._commits = [each for each in self._commits if each.is_open] + [sent]
        return sent

    def hear_refusal(self, error: KafkaError) -> None:
        """Take in why a producer's offsets were refused: the group's refusal may reach this member much later."""
        if is_of_the_group(error):
            self._is_refused(None, cause_of(error))

    def _explain(self, error: KafkaError, topic: str) -> KafkaError:
        """Return why a commit was refused; a missing right is reported, and asked for until it is granted."""
        cause = cause_of(error)
        if cause is None or not self._is_refused(topic, cause):
            return error
        return why_refused(cause, "Read", self._config, topic=topic, group=self._group) or error

    def committed(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, None if it has none."""
        return self._offsets(self._call(self._consumer.committed, self._to_kafka(partitions), timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, int | None]:
        """Return each first offset at or after a time in milliseconds since the epoch, None if there is none.

        Raises `KafkaError` if Kafka does not answer: below `NONE_THAT_LATE` an offset is not known.
        """
        found = self._call(self._consumer.offsets_for_times, self.at_offsets(times), timeout)
        for each in found:
            if each.error or each.offset < NONE_THAT_LATE:
                reason = each.error.str() if each.error else "its leader does not answer"
                raise KafkaError(
                    f"Kafka did not say which offset partition {each.partition} of {each.topic} had then: {reason}. "
                    "Try again."
                )
        return self._offsets(found)

    def bounds(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the first offset and the one after the last; raises `KafkaError` if they are not known in time."""
        return watermarks(self._consumer, self._name(partition), timeout)

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last, as in the latest fetch, without a request; None if that had none."""
        return fetched_end(self._consumer, self._name(partition))

    def topics(self, topic: str | None, timeout: float) -> dict[str, int]:
        """Return the topics in Kafka and the number of partitions of each."""
        metadata: ClusterMetadata = self._call(self._consumer.list_topics, topic, timeout)
        return {name: len(about.partitions) for name, about in metadata.topics.items() if about.error is None}

    def partition_count(self, topic: str, level: int, timeout: float) -> int:
        """Return the number of partitions of this level of a topic; 0 if it does not exist or is another level's."""
        if not self.reads(topic, level):
            return 0
        name = self._subscription.kafka_topic(topic, level)
        return self.topics(name, timeout).get(name, 0)

    # Refusals

    @property
    def refused(self) -> str | None:
        """The missing right and what to do, as a sentence; None if nothing is refused."""
        return self._access.sentence()

    def _is_refused(self, topic: str | None, error: ck.KafkaError | None) -> bool:
        """Return whether this error says that a right is missing; if so, report it when due."""
        right = error and right_for(error.name(), "Read", topic=topic, group=self._group)
        if not right:
            return False
        self._say_refused(self._access.refused(right, time.monotonic()), topic)
        return True

    def _say_refused(self, sentence: str | None, topic: str | None = None) -> None:
        if sentence:
            self.errors.append(FetchRefusedError(self._level_of(topic), sentence))

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ck.KafkaException as error:
            topic = next(iter(self._subscription.topics), None)
            if refused := why_refused(error.args[0], "Read", self._config, topic=topic, group=self._group):
                raise refused from error
            raise self._refused(error) from error

    def _refused(self, error: ck.KafkaException) -> KafkaError:
        return KafkaError(f"{self._who}: {error.args[0].str()}{self._connection.because()}")

    def _level_of(self, topic: str | None) -> int | None:
        """Return the level that a problem with this Kafka topic concerns, None if it concerns several."""
        return self.levels[0] if len(self.levels) == 1 else self._subscription.level_of(topic)

    @property
    def _who(self) -> str:
        return f"Level {self.levels[0]}" if len(self.levels) == 1 else f"The group {self._group} of all levels"

    # Addresses

    def reads(self, topic: str, level: int) -> bool:
        """Return whether a topic can be of this level, by the subscription."""
        return self._subscription.reads(topic, level)

    def kafka_topic(self, partition: TopicPartition) -> str:
        """Return the Kafka topic that holds a partition."""
        return self._subscription.kafka_topic(partition.topic, partition.level)

    def at_offsets(self, offsets: Mapping[TopicPartition, int]) -> list[ck.TopicPartition]:
        """Return offsets as the binding takes them."""
        return [ck.TopicPartition(self.kafka_topic(each), each.partition, offset) for each, offset in offsets.items()]

    def as_native(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> capi.Offsets:
        """Return offsets and metadata under the names that Kafka knows."""
        return {
            (self.kafka_topic(each), each.partition): (offset, metadata.encode())
            for each, (offset, metadata) in commits.items()
        }

    def _to_kafka(self, partitions: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
        return [ck.TopicPartition(self.kafka_topic(each), each.partition) for each in partitions]

    def _name(self, partition: TopicPartition) -> capi.Partition:
        return self.kafka_topic(partition), partition.partition

    def _ours(self, partition: ck.TopicPartition) -> TopicPartition:
        topic, level = self._subscription.address(partition.topic)
        return TopicPartition(topic, partition=partition.partition, level=level)

    def _from_kafka(self, partitions: Iterable[ck.TopicPartition]) -> list[TopicPartition]:
        return [self._ours(partition) for partition in partitions]

    def _offsets(self, partitions: Iterable[ck.TopicPartition]) -> dict[TopicPartition, int | None]:
        return {self._ours(partition): partition.offset if partition.offset >= 0 else None for partition in partitions}


def _integer(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0  # librdkafka refuses it
