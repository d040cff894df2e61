"""The client of a group's member: fetches, questions to Kafka, commits, and refused rights."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import confluent_kafka as ck

from headway.core.offsets.lost_place import RESETS
from headway.core.rights import Right, right_for
from headway.errors import AuthorizationError, FetchError, FetchRefusedError, HeadwayError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import PendingCommit
from headway.kafka.binding.connection import Connection, change_credentials
from headway.kafka.binding.error_causes import librdkafka_error
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.mock_cluster import mock_at
from headway.kafka.binding.questions import FoundOffsets, Question, ask_offsets
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.unpacking import UNPACKS, Unpacking, is_not_unpacked
from headway.kafka.consumer.access_watch import AccessWatch
from headway.kafka.consumer.addresses import Addresses
from headway.kafka.consumer.group_watch import GroupWatch
from headway.kafka.consumer.missing_topics import missing_topic
from headway.kafka.missing_rights import is_of_the_group, why_refused
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
# default of a second, a small queue starves. `fetch.wait.max.ms` is short because librdkafka sends a broker only one
# fetch at a time: while flooded partitions are kept apart and full, that fetch asks for idle partitions alone, and
# nothing else is fetched until the broker answers it.
_FETCH_DEFAULTS = {
    **UNPACKS,
    "fetch.queue.backoff.ms": 1,
    "fetch.wait.max.ms": 50,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16_384,
}
# The size of one queue of librdkafka. It must hold about a fetch of 1 MB for several partitions. Otherwise the
# partition whose fetch is answered first fills it again and again, and others get nothing.
_QUEUE_KB = 4096
_SEEK_WITHIN = 5.0
_START_COMMITTED_WITHIN = 2.0
_COMMIT_AGAIN_AFTER = 0.1
_GROUP_REFUSED = "Group authorization failed"

# The errors of a seek while librdkafka still stops the partition's previous use, or while a rebalance pauses it.
_ANOTHER_CHANGE_FIRST = (ck.KafkaError._STATE, ck.KafkaError._OUTDATED, ck.KafkaError._PREV_IN_PROGRESS)

# The wake-ups of consumers that are not closed yet. Without these references, the garbage collector could close their
# sockets while librdkafka still writes to them, and it would write to the next file that gets the same descriptor.
_wakes: dict[int, Wakeup] = {}

_message_error = ck.Message.error


class Arrivals(NamedTuple):
    """The messages of one fetch from librdkafka's queue.

    `has_more` is True if the queue may have more. `ends` has the end offsets of partitions that were read to their
    ends. `lost_places` has the next offset of each partition whose log does not have that offset.
    """

    messages: list[ck.Message]
    has_more: bool = False
    ends: Mapping[TopicPartition, int] = {}
    lost_places: Mapping[TopicPartition, int] = {}


class GroupClient:
    """A client of librdkafka that reads one or more levels as a member of a group.

    `errors` gets the errors that do not belong to a call, also from the threads that find starts and missing topics.
    If a topic was deleted and created again, its user replaces the client of librdkafka.
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
        self._commits: list[PendingCommit] = []  # those that may still lack an answer
        settings = {**_FETCH_DEFAULTS, **config}
        kilobytes = _integer(settings["queued.max.messages.kbytes"])
        self.buffer_size = kilobytes * 1024
        """The most bytes of a level's records that may wait for the caller."""
        self.fetch_wait = _integer(settings["fetch.wait.max.ms"]) / 1000
        """The seconds for which librdkafka might not fetch from partitions whose queues were full."""
        if kilobytes:  # the user's value limits each level's own buffer instead
            settings["queued.max.messages.kbytes"] = _QUEUE_KB
        if str(config.get("auto.offset.reset", "latest")).lower() in RESETS:  # librdkafka refuses any other value
            settings["auto.offset.reset"] = "error"  # if the log lacks an offset, `Membership` finds another one
        self._settings = settings
        self._use(*self.make())

    def _use(self, consumer: ck.Consumer, connection: Connection) -> None:
        self.consumer, self._connection = consumer, connection
        self.ids = TopicIds(None if mock_at(self.config.get("bootstrap.servers")) else consumer)

    @property
    def group_metadata(self) -> bytes:
        """The group's metadata, which a transactional producer needs to commit offsets in it."""
        metadata: bytes = self.consumer.consumer_group_metadata()
        return metadata

    @property
    def who(self) -> str:
        """The name of this client as the beginning of a sentence."""
        return f"Level {self.levels[0]}" if len(self.levels) == 1 else f"The group {self.group} of all levels"

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for each new login. Thread-safe.

        Raises `ConfigError` for credentials that librdkafka does not accept.
        """
        self._connection.set_credentials(self.consumer, username, password)
        for settings in (self.config, self._settings):
            change_credentials(settings, username, password)
        self.watch.set_sasl_credentials(username, password)

    # Life

    def make(self) -> tuple[ck.Consumer, Connection]:
        """Return a new client of librdkafka and the state of its connections. Raises `HeadwayError`."""
        connection = Connection(self.watch.suspect)
        return make_client(ck.Consumer, self._settings, connection), connection

    def replace(self, consumer: ck.Consumer, connection: Connection) -> ck.Consumer:
        """Use another client of librdkafka. Returns the previous one, which the caller must close.

        Commits without an answer count as refused.
        """
        for sent in self._commits:
            sent.give_up("the consumer was replaced, because a topic was created again.")
        before = self.consumer
        self.ids.close()
        self._use(consumer, connection)
        capi.wake_on_events(consumer, self.wake_fd)
        return before

    def forget_commits(self) -> None:
        """Abandon the commits without an answer, because a client that closes would wait for them."""
        for sent in self._commits:
            sent.forget()

    def close(self) -> None:
        """Close the client. This may wait for a group that cannot be reached."""
        self.ids.close()
        self.consumer.close()

    # The wake-up

    def wake_with(self, wake: Wakeup | None) -> None:
        """Set this wake-up whenever records or events arrive, or none from now on."""
        self._wake = wake
        capi.wake_on_events(self.consumer, self.wake_fd)
        self.ids.close()  # its open question would write to the previous wake-up
        if wake:
            _wakes[id(self)] = wake
        else:
            _wakes.pop(id(self), None)

    def __del__(self) -> None:
        # In a forked process the locks of librdkafka may be held forever, and librdkafka has no thread that writes.
        if _wakes.get(id(self)) and self._process == os.getpid():
            with contextlib.suppress(Exception):  # the constructor may have failed half-way
                self.wake_with(None)
        _wakes.pop(id(self), None)

    @property
    def wake_fd(self) -> int | None:
        """The descriptor of the wake-up, if one is set."""
        return self._wake.fd if self._wake else None

    def wake(self) -> None:
        """Make the caller fetch again at once. Thread-safe."""
        if wake := self._wake:
            wake.set()

    # Records

    def fetch(self, count: int, timeout: float = 0) -> Arrivals:
        """Take at most `count` messages from librdkafka's queue. Rebalance callbacks run in this call."""
        try:
            messages = self.consumer.consume(count, timeout)
        except ck.KafkaException as failure:
            self.errors.append(FetchError(self.addresses.level_of(None), str(failure)))
            return Arrivals([])
        if error := self._connection.refusal(self.consumer):
            self.report(error)
        has_more = len(messages) == count
        if any(map(_message_error, messages)):
            return self._without_events(messages, has_more)
        return Arrivals(messages, has_more)

    def _without_events(self, fetched: list[ck.Message], has_more: bool) -> Arrivals:
        """Separate the messages that are events or errors from the records."""
        messages: list[ck.Message] = []
        ends: dict[TopicPartition, int] = {}
        lost_places: dict[TopicPartition, int] = {}
        for message in fetched:
            error, offset = message.error(), message.offset()
            if error is None:
                messages.append(message)
            elif error.code() == ck.KafkaError._PARTITION_EOF and offset is not None:
                ends[self.addresses.of(message.topic(), message.partition())] = offset
            elif error.code() == ck.KafkaError._AUTO_OFFSET_RESET and offset is not None:
                lost_places[self.addresses.of(message.topic(), message.partition())] = offset
            elif error.code() == ck.KafkaError._FATAL:  # librdkafka reports it once, and fetches nothing more
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
        ended = f"{self.who} cannot go on"
        if _GROUP_REFUSED in error.str():  # which librdkafka treats as fatal in a group of KIP-848
            right = Right("Read", "Group", self.group)
            return AuthorizationError(f"{ended}: {right.missing(self.config)} Then make a new consumer.")
        return KafkaError(
            f"{ended}: {error.str()}. Make a new consumer; if another one has the same group.instance.id, give each "
            "its own."
        )

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue a partition at this offset, as soon as librdkafka can. Raises `KafkaError`."""
        place = ck.TopicPartition(*self.addresses.name(partition), offset)
        self._call(retrying, lambda _: self.consumer.seek(place), _SEEK_WITHIN, _ANOTHER_CHANGE_FIRST)

    # Offsets in Kafka

    def commit(self, offsets: Mapping[TopicPartition, int]) -> PendingCommit:
        """Send a commit of the next offset to read of each partition."""
        return self.commit_with_metadata({partition: (offset, "") for partition, offset in offsets.items()})

    def commit_with_metadata(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> PendingCommit:
        """Send a commit of each partition's next offset to read with its exact metadata."""
        with defer_signals():  # a closing client waits for each commit that `forget_commits` does not know
            sent = capi.PendingCommit(self.consumer, self.addresses.commits(commits), self._explain)
            self._commits = [each for each in self._commits if each.is_open] + [sent]
        return sent

    def commit_at_once(self, offsets: Mapping[TopicPartition, int]) -> Mapping[capi.Partition, KafkaError] | None:
        """Commit offsets, and wait briefly for the answer.

        Returns the refusals, which are empty if everything was committed, or None without an answer.
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
        """Return the committed offset of each partition, or None if it has no commit."""
        places = self.addresses.to_kafka(partitions)
        return self.addresses.offsets(self._call(self.consumer.committed, places, timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's first offset at or after a time in milliseconds since the epoch, or None.

        Raises `KafkaError` if Kafka does not answer, which shows as an offset below `NONE_THAT_LATE`.
        """
        found = self._call(self.consumer.offsets_for_times, self.addresses.places(times), timeout)
        for each in found:
            if each.error or each.offset < NONE_THAT_LATE:
                reason = each.error.str() if each.error else "its leader does not answer"
                raise KafkaError(
                    f"Kafka did not return the offset that partition {each.partition} of {each.topic} had at that "
                    f"time: {reason}. Try again."
                )
        return self.addresses.offsets(found)

    def bounds(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the first offset and the one after the last. Raises `KafkaError` if they are not known in time."""
        return watermarks(self.consumer, self.addresses.name(partition), timeout)

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last record as of the latest fetch, without a request, or None if not known."""
        return fetched_end(self.consumer, self.addresses.name(partition))

    def ask_offset(
        self, partition: TopicPartition, place: int, within: float, isolation: str | None = None
    ) -> Question[FoundOffsets]:
        """Ask for the offset of a place in a partition, as `ask_offsets` does. The answer sets the wake-up."""
        isolation = isolation or str(self.config.get("isolation.level", "read_committed"))
        return ask_offsets(self.consumer, {self.addresses.name(partition): place}, isolation, within, self.wake_fd)

    # Topics

    def topics(self, topic: str | None, timeout: float) -> dict[str, int]:
        """Return the topics in Kafka with their numbers of partitions."""
        metadata: ClusterMetadata = self._call(self.consumer.list_topics, topic, timeout)
        return {name: len(about.partitions) for name, about in metadata.topics.items() if about.error is None}

    def partition_count(self, topic: str, level: int, timeout: float) -> int:
        """Return the number of partitions of a topic at a level, which is 0 if the level does not read the topic."""
        subscription = self.addresses.subscription
        if not subscription.reads(topic, level):
            return 0
        name = subscription.kafka_topic(topic, level)
        return self.topics(name, timeout).get(name, 0)

    def topic_id(self, partition: TopicPartition) -> str | None:
        """Return Kafka's id of a partition's topic, or None if it is not known.

        It is never newer than the partition's position. If the topic was deleted and created again, it is the old id
        until the partition begins in the new topic.
        """
        return self.ids.of(self.addresses.topic(partition))

    def is_new(self, partition: TopicPartition) -> bool:
        """Return whether a partition was added to its topic while this client was reading the topic."""
        return self.ids.is_new(*self.addresses.name(partition))

    # Refusals

    def report(self, error: HeadwayError) -> None:
        """Add an error, and wake the caller. Thread-safe."""
        self.errors.append(error)
        self.wake()

    def report_failure(self, reason: str, topic: str | None, cause: ck.KafkaError | None = None) -> None:
        """Report that a topic cannot be read, with librdkafka's error if there is one. Thread-safe."""
        if not self.is_refused(topic, cause):
            self.errors.append(FetchError(self.addresses.level_of(topic), reason))
        self.wake()

    @property
    def refused(self) -> str | None:
        """A sentence about the missing right with what to do, or None if no right is missing."""
        return self._access.sentence()

    @property
    def lacks_a_right(self) -> bool:
        """True if a right was refused and is not known to have been granted since."""
        return self._access.is_on

    def is_granted(self, now: float) -> bool:
        """Return whether no right is missing any more, without waiting. Reports a missing right again when due."""
        self._report_refusal(self._access.look(now))
        return not self._access.is_on

    def hear_refusal(self, error: KafkaError) -> None:
        """Note a missing right to the group that a producer learned, because this member may learn it much later."""
        if is_of_the_group(error):
            self.is_refused(None, librdkafka_error(error))

    def is_refused(self, topic: str | None, error: ck.KafkaError | None) -> bool:
        """Return whether this error means that a right is missing. If so, it is reported when due."""
        right = error and right_for(error.name(), "Read", topic=topic, group=self.group)
        if not right:
            return False
        self._report_refusal(self._access.refused(right, time.monotonic()), topic)
        return True

    def _report_refusal(self, sentence: str | None, topic: str | None = None) -> None:
        if sentence:
            self.errors.append(FetchRefusedError(self.addresses.level_of(topic), sentence))

    def _explain(self, error: KafkaError, topic: str) -> KafkaError:
        """Return why a commit was refused. A missing right is reported, and checked until it is granted."""
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
        return 0  # librdkafka will refuse the setting
