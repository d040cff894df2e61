"""The Kafka client of a group's member: it fetches records, sends requests, commits, and reports errors."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import confluent_kafka as ck
from confluent_kafka import cimpl

from headway.core.offsets.lost_place import RESETS
from headway.core.permissions import Permission, permission_for
from headway.errors import AuthorizationError, FetchError, FetchRefusedError, HeadwayError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.connection import Connection, change_credentials
from headway.kafka.binding.error_causes import librdkafka_error
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.messages import take_messages
from headway.kafka.binding.mock_cluster import mock_at
from headway.kafka.binding.questions import OFFSET_END, FoundOffsets, Question, ask_offsets
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.statistics import Statistics
from headway.kafka.binding.unpacking import UNPACKS, Unpacking, is_not_unpacked
from headway.kafka.consumer.access_watch import AccessWatch
from headway.kafka.consumer.addresses import Addresses
from headway.kafka.consumer.group_watch import GroupWatch
from headway.kafka.consumer.missing_topics import missing_topic
from headway.kafka.missing_permissions import is_of_the_group, why_refused
from headway.kafka.reading.log_bounds import NONE_THAT_LATE, fetched_end, watermarks
from headway.kafka.reading.topic_ids import TopicIds
from headway.records.record_types import TopicPartition
from headway.runtime.deferred_signals import defer_signals
from headway.runtime.wakeup import Wakeup
from headway.settings.config import Config

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata

P = ParamSpec("P")
T = TypeVar("T")

# `fetch.queue.backoff.ms` is the time after which librdkafka checks again whether a full queue has space. With its
# default of one second, a small queue is often empty.
# `fetch.wait.max.ms` is short because librdkafka sends only one fetch request at a time to a broker. While the queue of
# the diverted partitions is full, that request names only idle partitions, so the broker delays its answer for this
# time, and nothing else is fetched from it.
_FETCH_DEFAULTS = {
    **UNPACKS,
    "fetch.queue.backoff.ms": 1,
    "fetch.wait.max.ms": 50,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16_384,
}
# The size of one queue of librdkafka. It must hold a fetch of about 1 MB for each of several partitions. Otherwise the
# partition whose fetch is answered first fills the queue again and again, and the other partitions get nothing.
_QUEUE_KB = 4096
_SEEK_WITHIN = 5.0
_START_COMMITTED_WITHIN = 2.0
_COMMIT_AGAIN_AFTER = 0.1
_GROUP_REFUSED = "Group authorization failed"

# librdkafka returns these errors for a seek while it ends the previous use of the partition, or while a rebalance
# pauses the partition.
_ANOTHER_CHANGE_FIRST = (ck.KafkaError._STATE, ck.KafkaError._OUTDATED, ck.KafkaError._PREV_IN_PROGRESS)

# The wake-ups of consumers that are not closed yet. Without these references, the garbage collector could close a
# socket while librdkafka still writes to it, and librdkafka would then write to the next file that gets the same
# descriptor.
_wakes: dict[int, Wakeup] = {}


class Arrivals(NamedTuple):
    """The result of one fetch from librdkafka's queue.

    `has_more` is True if the queue may hold further messages. `ends` maps each partition that was read to its end to
    the end offset. `lost_places` has the next offset to read of each partition whose log does not contain that offset.
    """

    messages: list[ck.Message]
    has_more: bool = False
    ends: Mapping[TopicPartition, int] = {}
    lost_places: Mapping[TopicPartition, int] = {}


class GroupClient:
    """A client that reads one or more levels as a member of a group. It wraps a consumer of librdkafka.

    `errors` gets the errors that do not belong to a call, including those of the threads that find start offsets and
    missing topics. If a topic is deleted and created again, `Membership` replaces librdkafka's consumer.
    """

    def __init__(self, levels: Sequence[int], config: Config) -> None:
        self.levels = levels
        self.config = dict(config)
        self.group = str(config["group.id"])
        self.addresses = Addresses(levels)
        self.errors: deque[Exception] = deque()
        self.watch = GroupWatch(config)
        self._access = AccessWatch(config)
        self._unpacking = Unpacking(config)
        self._process = os.getpid()
        self._wake: Wakeup | None = None
        self._commits: list[PendingCommit] = []  # the commits that might not be answered yet
        settings = {**_FETCH_DEFAULTS, **config}
        kilobytes = _integer(settings["queued.max.messages.kbytes"])
        self.buffer_size = kilobytes * 1024
        """The maximum size in bytes of the records of a level that are buffered for the caller."""
        self.fetch_wait = _integer(settings["fetch.wait.max.ms"]) / 1000
        """How long librdkafka might not fetch from a partition whose queue was full, in seconds."""
        if kilobytes:  # the user's value limits the buffer of each level instead of librdkafka's queue
            settings["queued.max.messages.kbytes"] = _QUEUE_KB
        # An `auto.offset.reset` that is not in `RESETS` is passed on unchanged, and librdkafka rejects it.
        if str(config.get("auto.offset.reset", "latest")).lower() in RESETS:
            # If the log does not have the next offset to read, `Membership` finds another one.
            settings["auto.offset.reset"] = "error"
        self.statistics = Statistics(config)
        self._settings = settings | self.statistics.settings
        self._use(*self.make())

    def _use(self, consumer: cimpl.Consumer, connection: Connection) -> None:
        self.consumer, self._connection = consumer, connection
        self.ids = TopicIds(None if mock_at(self.config.get("bootstrap.servers")) else consumer)

    @property
    def group_metadata(self) -> bytes:
        """The metadata of the group, which a transactional producer needs to commit offsets to the group."""
        metadata: bytes = self.consumer.consumer_group_metadata()
        return metadata

    @property
    def who(self) -> str:
        """The name of this client, for the beginning of a sentence in a message."""
        if len(self.levels) == 1:
            return f"The consumer for level {self.levels[0]}"
        return f"The consumer in the group {self.group}"

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for all logins from now on. Thread-safe.

        Raises `ConfigError` if librdkafka does not accept the credentials.
        """
        self._connection.set_credentials(self.consumer, username, password)
        for settings in (self.config, self._settings):
            change_credentials(settings, username, password)
        self.watch.set_sasl_credentials(username, password)

    # Creating, replacing and closing librdkafka's consumer

    def make(self) -> tuple[cimpl.Consumer, Connection]:
        """Create another consumer of librdkafka, and the object that watches its connections. Raises `HeadwayError`."""
        connection = Connection(self.watch.suspect)
        return make_client(cimpl.Consumer, self._settings, connection), connection

    def replace(self, consumer: cimpl.Consumer, connection: Connection) -> cimpl.Consumer:
        """Use another consumer of librdkafka. Returns the previous one, which the caller must close.

        Commits that are not answered yet count as refused.
        """
        for sent in self._commits:
            sent.give_up("the consumer was replaced, because a topic was created again.")
        before = self.consumer
        self.ids.close()
        self._use(consumer, connection)
        capi.wake_on_events(consumer, self.wake_fd)
        return before

    def forget_commits(self) -> None:
        """Abandon the commits that are not answered yet, because librdkafka would wait for them when it closes."""
        for sent in self._commits:
            sent.forget()

    def close(self) -> None:
        """Close the client. This can take a long time if the group's coordinator cannot be reached."""
        self.ids.close()
        self.consumer.close()

    # The wake-up of the thread that fetches

    def wake_with(self, wake: Wakeup | None) -> None:
        """Set this wake-up whenever records or events arrive. With None, no wake-up is set from now on."""
        self._wake = wake
        capi.wake_on_events(self.consumer, self.wake_fd)
        self.ids.close()  # the open request for topic ids would write to the previous wake-up
        if wake:
            _wakes[id(self)] = wake
        else:
            _wakes.pop(id(self), None)

    def __del__(self) -> None:
        # In a forked process, librdkafka's locks may be held forever, and librdkafka has no thread that would write.
        if _wakes.get(id(self)) and self._process == os.getpid():
            with contextlib.suppress(Exception):  # the constructor may have failed halfway
                self.wake_with(None)
        _wakes.pop(id(self), None)

    @property
    def wake_fd(self) -> int | None:
        """The descriptor of the wake-up, or None if no wake-up is set."""
        return self._wake.fd if self._wake else None

    def wake(self) -> None:
        """Wake the thread that fetches, so that it fetches again at once. Thread-safe."""
        if wake := self._wake:
            wake.set()

    # Records

    def fetch(self, count: int, timeout: float = 0) -> Arrivals:
        """Take at most `count` messages from librdkafka's queue. Rebalance callbacks run within this call."""
        try:
            messages, events = take_messages(self.consumer, count, timeout)
        except ck.KafkaException as failure:
            self.errors.append(FetchError(self.addresses.level_of(None), str(failure)))
            return Arrivals([])
        if error := self._connection.refusal(self.consumer):
            self.report(error)
        if events:
            return self._with_events(messages, events, has_more=len(messages) + len(events) == count)
        return Arrivals(messages, len(messages) == count)

    def _with_events(self, messages: list[ck.Message], events: list[ck.Message], *, has_more: bool) -> Arrivals:
        """Handle the events and errors that were fetched together with these records."""
        ends: dict[TopicPartition, int] = {}
        lost_places: dict[TopicPartition, int] = {}
        for message in events:
            error, offset = message.error(), message.offset()
            assert error is not None  # noqa: S101  # this is what makes it an event
            if error.code() == ck.KafkaError._PARTITION_EOF and offset is not None:
                ends[self.addresses.of(message.topic(), message.partition())] = offset
            elif error.code() == ck.KafkaError._AUTO_OFFSET_RESET and offset is not None:
                lost_places[self.addresses.of(message.topic(), message.partition())] = offset
            # Librdkafka reports a fatal error once, and then fetches nothing more.
            elif error.code() == ck.KafkaError._FATAL:
                self.errors.append(self._cannot_go_on(error))
            elif is_not_unpacked(error):
                if self._unpacking.is_due(message, time.monotonic()):
                    self.errors.append(self._fetch_error(message, self._unpacking.sentence(message)))
            elif not self.is_refused(message.topic(), error):
                is_missing = error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART and message.topic() is not None
                reason = missing_topic(message.topic()) if is_missing else error.str()
                self.errors.append(self._fetch_error(message, reason))
        return Arrivals(messages, has_more, ends, lost_places)

    def _fetch_error(self, message: ck.Message, reason: str) -> FetchError:
        return FetchError(self.addresses.level_of(message.topic()), reason)

    def _cannot_go_on(self, error: ck.KafkaError) -> KafkaError:
        ended = f"{self.who} cannot continue"
        if _GROUP_REFUSED in error.str():  # in a KIP-848 group, librdkafka treats this error as fatal
            permission = Permission("Read", "Group", self.group)
            return AuthorizationError(f"{ended}: {permission.missing(self.config)} Then create a new consumer.")
        return KafkaError(
            f"{ended}: {error.str()}. Create a new consumer. If another consumer has the same group.instance.id, give "
            "each consumer an id of its own."
        )

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue a partition at this offset. Waits until librdkafka can seek. Raises `KafkaError`."""
        place = ck.TopicPartition(*self.addresses.name(partition), offset)
        self._call(retrying, lambda _: self.consumer.seek(place), _SEEK_WITHIN, _ANOTHER_CHANGE_FIRST)

    # Requests for offsets, and commits

    def commit(self, offsets: Mapping[TopicPartition, int]) -> PendingCommit:
        """For each partition, commit the offset to read next, without waiting for the answer."""
        return self.commit_with_metadata({partition: (offset, "") for partition, offset in offsets.items()})

    def commit_with_metadata(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> PendingCommit:
        """For each partition, commit the offset to read next and the exact metadata, without waiting for the answer."""
        # An interrupt must not hide a commit from `forget_commits`, because closing the client would wait for that
        # commit.
        with defer_signals():
            sent = capi.PendingCommit(self.consumer, self.addresses.commits(commits), self._explain)
            self._commits = [each for each in self._commits if each.is_open] + [sent]
        return sent

    def commit_at_once(self, offsets: Mapping[TopicPartition, int]) -> Mapping[capi.Partition, KafkaError] | None:
        """Commit offsets, and wait briefly for the answer.

        Returns the errors of the partitions that were refused, or None if there was no answer.
        """
        commits = self.addresses.commits({partition: (offset, "") for partition, offset in offsets.items()})
        deadline = time.monotonic() + _START_COMMITTED_WITHIN
        refusals: Mapping[capi.Partition, KafkaError] | None = None
        while time.monotonic() < deadline:
            sent = capi.PendingCommit(self.consumer, commits)
            refusals = sent.refused(max(0.0, deadline - time.monotonic()))
            sent.forget()
            if refusals is not None and not refusals:
                break
            time.sleep(_COMMIT_AGAIN_AFTER)
        return refusals

    def committed(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition, or None if there is no commit."""
        places = self.addresses.to_kafka(partitions)
        return self.addresses.offsets(self._call(self.consumer.committed, places, timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of each partition's first record at or after a time, or None if there is no such record.

        Times are in milliseconds since the epoch. Raises `KafkaError` if a leader does not answer, which librdkafka
        reports as an offset below `NONE_THAT_LATE`.
        """
        found = self._call(self.consumer.offsets_for_times, self.addresses.places(times), timeout)
        for each in found:
            if each.error or each.offset < NONE_THAT_LATE:
                reason = each.error.str() if each.error else "its leader does not answer"
                raise KafkaError(
                    f"Kafka did not return the offset that partition {each.partition} of {each.topic} had at the "
                    f"given time: {reason}. Try again."
                )
        return self.addresses.offsets(found)

    def bounds(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the first offset of a partition and the one after the last.

        Raises `KafkaError` if there is no answer in time.
        """
        return watermarks(self.consumer, self.addresses.name(partition), timeout)

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return a partition's end offset as of the latest fetch, or None if it is not known. This sends no request."""
        return fetched_end(self.consumer, self.addresses.name(partition))

    def ask_offset(
        self, partition: TopicPartition, place: int, within: float, isolation: str | None = None
    ) -> Question[FoundOffsets]:
        """Request the offset of a place in a partition, as `ask_offsets` describes. The answer sets the wake-up."""
        isolation = isolation or str(self.config.get("isolation.level", "read_committed"))
        return ask_offsets(self.consumer, {self.addresses.name(partition): place}, isolation, within, self.wake_fd)

    def ask_ends(self, partitions: Collection[TopicPartition], within: float) -> Question[FoundOffsets]:
        """Request the offsets at which these logs end for this client, in one request for each leader."""
        isolation = str(self.config.get("isolation.level", "read_committed"))
        places = dict.fromkeys(self.addresses.names(partitions), OFFSET_END)
        return ask_offsets(self.consumer, places, isolation, within, None)

    # Requests for topics

    def topics(self, topic: str | None, timeout: float) -> dict[str, int]:
        """Return the topics that exist in Kafka, each with its number of partitions."""
        metadata: ClusterMetadata = self._call(self.consumer.list_topics, topic, timeout)
        return {name: len(about.partitions) for name, about in metadata.topics.items() if about.error is None}

    def partition_count(self, topic: str, level: int, timeout: float) -> int:
        """Return the number of partitions of a topic at a level.

        The result is 0 if this consumer does not read the topic at that level.
        """
        subscription = self.addresses.subscription
        if not subscription.reads(topic, level):
            return 0
        name = subscription.kafka_topic(topic, level)
        return self.topics(name, timeout).get(name, 0)

    def topic_id(self, partition: TopicPartition) -> str | None:
        """Return Kafka's id of a partition's topic, or None if it is not known.

        If the topic was deleted and created again, the old id is returned until the partition begins in the new topic,
        because the partition's position still belongs to the old topic.
        """
        return self.ids.of(self.addresses.topic(partition))

    def is_new(self, partition: TopicPartition) -> bool:
        """Return whether a partition was added to its topic while this client was reading the topic."""
        return self.ids.is_new(*self.addresses.name(partition))

    # Errors, and missing permissions

    def report(self, error: HeadwayError) -> None:
        """Add an error to `errors`, and wake the thread that fetches. Thread-safe."""
        self.errors.append(error)
        self.wake()

    def report_failure(self, reason: str, topic: str | None, cause: ck.KafkaError | None = None) -> None:
        """Report that a topic cannot be read. `cause` is librdkafka's error, if there is one. Thread-safe."""
        if not self.is_refused(topic, cause):
            self.errors.append(FetchError(self.addresses.level_of(topic), reason))
        self.wake()

    @property
    def refused(self) -> str | None:
        """A sentence that names the missing permission and what to do, or None if no permission is missing."""
        return self._access.sentence()

    @property
    def lacks_a_permission(self) -> bool:
        """True if a permission was reported as missing, and no later check has found that it was granted."""
        return self._access.is_on

    def is_granted(self, now: float) -> bool:
        """Return whether all permissions are granted, without waiting.

        A missing permission is reported again from time to time.
        """
        self._report_refusal(self._access.look(now))
        return not self._access.is_on

    def hear_refusal(self, error: KafkaError) -> None:
        """Record that a producer was not permitted to use the group.

        This member might get the same error only much later.
        """
        if is_of_the_group(error):
            self.is_refused(None, librdkafka_error(error))

    def is_refused(self, topic: str | None, error: ck.KafkaError | None) -> bool:
        """Return whether this error means that a permission is missing. If so, it is reported."""
        permission = error and permission_for(error.name(), "Read", topic=topic, group=self.group)
        if not permission:
            return False
        self._report_refusal(self._access.refused(permission, time.monotonic()), topic)
        return True

    def _report_refusal(self, sentence: str | None, topic: str | None = None) -> None:
        if sentence:
            self.errors.append(FetchRefusedError(self.addresses.level_of(topic), sentence))

    def _explain(self, error: KafkaError, topic: str) -> KafkaError:
        """Return a clearer error for a refused commit. If a permission is missing, it is reported and watched."""
        cause = librdkafka_error(error)
        if cause is None or not self.is_refused(topic, cause):
            return error
        return why_refused(cause, "Read", self.config, topic=topic, group=self.group) or error

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ck.KafkaException as error:
            cause, topic = error.args[0], next(iter(self.addresses.subscription.topics), None)
            if refused := why_refused(cause, "Read", self.config, topic=topic, group=self.group):
                raise refused from error
            raise KafkaError(f"{self.who}: {cause.str()}{self._connection.because()}") from error


def _integer(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0  # librdkafka will refuse the invalid value
