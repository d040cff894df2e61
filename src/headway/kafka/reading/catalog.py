"""Finds the partitions of the topics to read, and the offsets between which each partition can be read."""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headway.core.levels.naming import how_to_create
from headway.errors import KafkaError
from headway.kafka.admin import Admin, describe
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.retrying import is_transient, retrying
from headway.kafka.binding.time_limits import BROKER_RESTARTS_WITHIN
from headway.kafka.missing_permissions import why_refused
from headway.kafka.reading.log_bounds import EARLIEST, LATEST, NONE_THAT_LATE, list_offsets
from headway.kafka.reading.range_reader import Offsets, name_of
from headway.kafka.reading.topic_naming import NamedTopic, TopicNaming, kafka_topic
from headway.records.record_types import TopicPartition
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._topic import TopicDescription

__all__ = ["Catalog", "TopicLevels"]

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

# The time limit of one request is short, and requests are repeated often, because a broker that stops never answers its
# open requests.
ONE_ANSWER_WITHIN = 5.0
_ASK_AGAIN_AFTER = 0.2


class TopicLevels(NamedTuple):
    """The partitions of some topics on all levels, and the ids of the Kafka topics if the brokers return ids."""

    partitions: list[TopicPartition]
    topic_ids: dict[str, str]


class Catalog(Admin):
    """An admin client that finds the partitions of topics with levels, and their offsets.

    Every method raises `KafkaError` if no broker answers: after a minute if a broker has answered before, otherwise at
    once. If the `isolation` level is `read_committed`, an unfinished transaction and the records after it count as
    unreadable.
    """

    def __init__(self, config: Config, isolation: str = "read_committed") -> None:
        super().__init__(config)
        self._isolation = isolation

    def find(self, topics: Iterable[str], naming: TopicNaming, *, may_be_gone: bool = False) -> TopicLevels:
        """Return the partitions of the topics on all levels.

        If a level of a topic does not exist, the topic is left out if `may_be_gone` is True. Otherwise this raises
        `KafkaError`.
        """
        wanted = naming.kafka_topics(topics)
        asked = [each.kafka_topic for each in wanted]
        if not asked:
            return TopicLevels([], {})
        answers = self._patiently(
            lambda: _settled(self._client.describe_topics(ck.TopicCollection(asked), request_timeout=ONE_ANSWER_WITHIN))
        )
        if may_be_gone:
            gone = {each.topic for each in wanted if _is_missing(answers[each.kafka_topic])}
            wanted = [each for each in wanted if each.topic not in gone]
        found = [self._description(answers[each.kafka_topic], each, naming.levels) for each in wanted]
        partitions = chain.from_iterable(
            [naming.partition(each.topic, partition, each.level) for partition in range(len(about.partitions))]
            for about, each in zip(found, wanted, strict=True)
        )
        ids = {
            each.kafka_topic: str(about.topic_id) for about, each in zip(found, wanted, strict=True) if about.topic_id
        }
        return TopicLevels(list(partitions), ids)

    def starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the first offset of each partition that was not deleted yet."""
        return self._offsets(partitions, EARLIEST)

    def ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the end offset of each partition, which follows its last readable record."""
        return self._offsets(partitions, LATEST)

    def written(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the end offset of each partition, including unfinished transactions."""
        return self._offsets(partitions, LATEST, "read_uncommitted")

    def at(self, time_ms: int, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the offset of each partition's first record with this timestamp or a later one, or the end offset."""
        # The ends are requested first. Otherwise a record that arrives between the two requests would be before the
        # returned end.
        ends = self.ends(partitions)
        found = self._offsets(partitions, OffsetSpec.for_timestamp(time_ms))
        return {each: ends[each] if offset == NONE_THAT_LATE else offset for each, offset in found.items()}

    def _description(
        self, answer: "TopicDescription | ck.KafkaError", asked: NamedTopic, levels: int | None
    ) -> "TopicDescription":
        if not isinstance(answer, ck.KafkaError):
            return answer
        name = asked.kafka_topic
        which = (
            f"The Kafka topic {name}"
            if levels is None
            else f"The Kafka topic {name}, level {asked.level} of {asked.topic},"
        )
        if _is_missing(answer):
            raise KafkaError(
                f"{which} does not exist. {how_to_create(asked.topic, levels)} Or correct the topic's name, or the "
                "number of levels."
            )
        raise self._failure(f"{which} cannot be read", answer, name)

    def _offsets(
        self, partitions: Collection[TopicPartition], which: OffsetSpec, isolation: str | None = None
    ) -> Offsets:
        if not partitions:
            return {}
        names = {partition: (kafka_topic(partition), partition.partition) for partition in partitions}
        wanted = dict.fromkeys(names.values(), which)
        answers = self._patiently(
            lambda: list_offsets(self._client, wanted, isolation or self._isolation, ONE_ANSWER_WITHIN)
        )
        return {partition: self._offset(answers[name], partition) for partition, name in names.items()}

    def _offset(self, answer: int | ck.KafkaError, partition: TopicPartition) -> int:
        if isinstance(answer, ck.KafkaError):
            raise self._failure(f"The offsets of {name_of(partition)} cannot be listed", answer, kafka_topic(partition))
        return answer

    def _until_answered(self, ask: Callable[[], T]) -> T:
        answer = super()._until_answered(ask)
        self._patience = BROKER_RESTARTS_WITHIN
        return answer

    def _patiently(self, ask: Callable[[], dict[K, V | ck.KafkaError]]) -> dict[K, V | ck.KafkaError]:
        """Repeat a request while it has transient errors, and return the answers.

        An answer can be a permanent error.
        """
        if not self._is_connected:
            self._connect()
        answers: dict[K, V | ck.KafkaError] = {}

        def ask_all(_: float) -> None:
            if answers:
                # If a request for offsets fails because the leader has changed, the same client might never find the
                # new leader.
                self._client = make_client(AdminClient, self._settings, self._connection)
                self._brokers.none_is_up = False
            answers.update(ask())
            if passing := [each for each in answers.values() if isinstance(each, ck.KafkaError) and is_transient(each)]:
                self._connection.check(self._client)
                raise ck.KafkaException(passing[0])

        try:
            retrying(ask_all, BROKER_RESTARTS_WITHIN, pause=_ASK_AGAIN_AFTER)
        except ck.KafkaException:
            if not answers:
                raise
        return answers

    def _failure(self, failure: str, reason: ck.KafkaError, topic: str) -> KafkaError:
        self._client.poll(0)  # runs the error callback
        if self._brokers.none_is_up:
            return self._unreachable()
        if refused := why_refused(reason, "Read", self._settings, topic=topic):
            return refused
        return KafkaError(f"{failure}: {describe(reason)}. Try again. If this persists, check the log of the brokers.")


def _is_missing(answer: object) -> bool:
    return isinstance(answer, ck.KafkaError) and answer.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART


def _settled(answers: "Mapping[K, Future[V]]") -> dict[K, V | ck.KafkaError]:
    """Return the answer for each key, or the error."""
    settled: dict[K, V | ck.KafkaError] = {}
    for key, future in answers.items():
        try:
            settled[key] = future.result()
        except ck.KafkaException as error:
            settled[key] = error.args[0]
    return settled
