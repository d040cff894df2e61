"""Finds the first and the last offset of partitions.

An offset below 0 always means that the offset is unknown, not that the log is empty.

After the leader of a partition has died, about ten seconds pass until its broker is fenced. During this time,
librdkafka 2.16 answers `list_offsets` with the offset -1001 and without an error. The same client gives this answer for
minutes, because it does not look for another leader. So the request is repeated with a new client until an offset
arrives or the time limit has passed.

librdkafka gives the same answer for a partition without a leader and for one that does not exist. Only the metadata
distinguish these two cases.

Only in a look-up by time does a negative answer have another meaning: -1 means that no record is that recent.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from itertools import chain, repeat
from typing import Any

import confluent_kafka as ck
from confluent_kafka import cimpl
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headway.errors import KafkaError
from headway.kafka.binding.capi import Partition, await_connection
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.time_limits import LOG_BOUNDS_TOLD_WITHIN
from headway.kafka.missing_permissions import is_refusal, why_refused
from headway.settings.config import Config

EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

NONE_THAT_LATE = -1
"""The answer to a look-up by time if all records are older than that time."""

_TIMEOUTS = (0.5, 1.0, 2.0)  # time limits in seconds of the first, second and third request
_LONGEST_TIMEOUT = 5.0
_IN_ONE_QUESTION = 500  # partitions in one request; for each answer, librdkafka searches all partitions of the request
_WITHOUT_A_LEADER_OR_GONE = (
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._UNKNOWN_PARTITION,
    ck.KafkaError._UNKNOWN_TOPIC,
    ck.KafkaError._NOENT,
)
_LEVELS = {
    "read_committed": ck.IsolationLevel.READ_COMMITTED,
    "read_uncommitted": ck.IsolationLevel.READ_UNCOMMITTED,
}


class LogBounds:
    """Finds the first and the last offset of partitions, with a client of its own.

    Every method leaves out partitions that do not exist, and raises `KafkaError` if an offset is not known in time.

    Args:
        config: The settings of librdkafka.
        isolation: With "read_uncommitted", the end is after open transactions. With "read_committed", the end is before
            the first of them.
        within: The number of seconds for which a request is repeated if a broker does not answer.
        client: A connected client with these settings, which is used for the first request.
    """

    def __init__(
        self,
        config: Config,
        isolation: str = "read_uncommitted",
        within: float = LOG_BOUNDS_TOLD_WITHIN,
        client: AdminClient | None = None,
    ) -> None:
        self._config = {"log_level": 2, **config}
        self._isolation = isolation
        self._within = within
        self._client = client

    def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the first offset of each partition that was not deleted yet."""
        return self._ask(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the end offset of each partition."""
        return self._ask(dict.fromkeys(partitions, LATEST))

    def at(self, time_ms: int, partitions: Collection[Partition]) -> dict[Partition, int | None]:
        """Return the offset of each partition's first record with this timestamp or a later one, or None."""
        found = self._ask(dict.fromkeys(partitions, OffsetSpec.for_timestamp(time_ms)))
        return {partition: None if offset == NONE_THAT_LATE else offset for partition, offset in found.items()}

    def _ask(self, wanted: Mapping[Partition, OffsetSpec]) -> dict[Partition, int]:
        if not wanted:
            return {}
        timeouts = chain(_TIMEOUTS, repeat(_LONGEST_TIMEOUT))
        try:
            return retrying(lambda _: self._ask_once(wanted, next(timeouts)), self._within)
        except ck.KafkaException as error:
            topic = next((name for name, _ in wanted if name in error.args[1:]), _topics(wanted))
            if refused := why_refused(error.args[0], "Describe", self._config, topic=topic):
                raise refused from error
            reason = error.args[0].str().rstrip(".")
            raise KafkaError(
                f"Kafka did not report within {self._within:g} s where partitions of {_topics(wanted)} begin and end "
                f"({reason}). Check that their brokers are up, and try again."
            ) from error

    def _ask_once(self, wanted: Mapping[Partition, OffsetSpec], timeout: float) -> dict[Partition, int]:
        client, self._client = self._client, None  # the client is kept only if the request succeeds
        if client is None:
            client = make_client(AdminClient, self._config)
            # A client that is asked for offsets before it knows the brokers can take 3 seconds to answer.
            await_connection(client, timeout)
        found: dict[Partition, int] = {}
        for partition, answer in list_offsets(client, wanted, self._isolation, timeout).items():
            if isinstance(answer, int):
                found[partition] = answer
            elif answer.code() not in _WITHOUT_A_LEADER_OR_GONE:
                raise ck.KafkaException(answer, partition[0])
            elif _exists(client, partition, timeout):
                raise ck.KafkaException(_leader_away())
        self._client = client
        return found


def list_offsets(
    client: AdminClient, wanted: Mapping[Partition, OffsetSpec], isolation: str, timeout: float
) -> dict[Partition, int | ck.KafkaError]:
    """Send one request, and return the offset of each partition, or the error that prevented an answer.

    If the leader does not return an offset, that counts as the error LEADER_NOT_AVAILABLE. The same client might then
    never find the leader again, so use a new client for the next request.
    """
    names = [(ck.TopicPartition(*partition), which) for partition, which in wanted.items()]
    asked = [
        client.list_offsets(
            dict(names[first : first + _IN_ONE_QUESTION]),
            isolation_level=_LEVELS[isolation],
            request_timeout=timeout,
        )
        for first in range(0, len(names), _IN_ONE_QUESTION)
    ]
    answers = {(name.topic, name.partition): answer for some in asked for name, answer in some.items()}
    return {partition: _offset(answers[partition], which) for partition, which in wanted.items()}


def watermarks(
    consumer: cimpl.Consumer, partition: Partition, within: float, config: Config | None = None
) -> tuple[int, int]:
    """Return a partition's first offset and the end of its readable records, as its leader reports them.

    Raises `KafkaError` if they are not known within `within` seconds, and `AuthorizationError` if a permission is
    missing. The `AuthorizationError` names the principal if `config` has the consumer's settings.
    """
    place = ck.TopicPartition(*partition)

    def ask(seconds: float) -> tuple[int, int]:
        try:
            begin, end = consumer.get_watermark_offsets(place, seconds)
        except ck.KafkaException as error:
            if error.args[0].code() in _WITHOUT_A_LEADER_OR_GONE and _exists(consumer, partition, seconds):
                raise ck.KafkaException(_leader_away()) from error
            raise
        if begin < 0 or end < 0:
            raise ck.KafkaException(_leader_away())
        return begin, end

    try:
        return retrying(ask, within)
    except ck.KafkaException as error:
        topic, number = partition
        if refused := why_refused(error.args[0], "Read", config, topic=topic):
            raise refused from error
        raise KafkaError(
            f"Kafka did not report within {within:g} s where partition {number} of {topic} begins and ends "
            f"({error.args[0].str().rstrip('.')}). Check that the partition exists and that its "
            "broker is up, and try again."
        ) from error


def fetched_end(consumer: cimpl.Consumer, partition: Partition) -> int | None:
    """Return a partition's end offset as of the latest fetch, or None if no fetch has returned it.

    This sends no request.
    """
    bounds = consumer.get_watermark_offsets(ck.TopicPartition(*partition), cached=True)
    return bounds[1] if bounds and bounds[1] >= 0 else None


def _exists(client: AdminClient | cimpl.Consumer, partition: Partition, timeout: float) -> bool:
    """Return whether a partition exists.

    This method looks in the list of all topics first, because a request for one topic by name may create the topic. A
    topic that is not listed is then requested by name in a way that cannot create the topic, because only that answer
    reveals a missing permission. Raises `KafkaException` if a permission is missing.
    """
    about = client.list_topics(timeout=timeout).topics.get(partition[0])
    if about is not None:
        return partition[1] in about.partitions
    if isinstance(client, cimpl.Consumer):  # brokers do not create a topic because of a consumer's request
        about = client.list_topics(partition[0], timeout=timeout).topics[partition[0]]
        error = about.error
    else:
        error = _refusal(client, partition[0], timeout)
    if is_refusal(error):
        raise ck.KafkaException(error, partition[0])
    return False


def _refusal(client: AdminClient, topic: str, timeout: float) -> ck.KafkaError | None:
    [asked] = client.describe_topics(ck.TopicCollection([topic]), request_timeout=timeout).values()
    try:
        asked.result()
    except ck.KafkaException as error:
        reason: ck.KafkaError = error.args[0]
        return reason
    return None


def _offset(answer: "Future[Any]", which: OffsetSpec) -> int | ck.KafkaError:
    try:
        offset = int(answer.result().offset)
    except ck.KafkaException as error:
        reason: ck.KafkaError = error.args[0]
        return reason
    is_by_time = which is not EARLIEST and which is not LATEST
    return offset if offset >= 0 or (is_by_time and offset == NONE_THAT_LATE) else _leader_away()


def _leader_away() -> ck.KafkaError:
    return ck.KafkaError(ck.KafkaError.LEADER_NOT_AVAILABLE, "the leader of the partition does not answer")


def _topics(wanted: Collection[Partition]) -> str:
    return ", ".join(sorted({topic for topic, _ in wanted}))
