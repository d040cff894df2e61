"""The client of a group's member: what it fetches, what it asks Kafka, and what Kafka refuses."""

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
from headway.kafka.binding.error_causes import cause_of
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
# Of one queue of librdkafka. It must hold about a fetch of 1 MB for some partitions: otherwise the partition that
# answers first fills it again and again, and others get nothing.
_QUEUE_KB = 4096
_SEEK_WITHIN = 5.0
_START_COMMITTED_WITHIN = 2.0
_COMMIT_AGAIN_AFTER = 0.1
_GROUP_REFUSED = "Group authorization failed"

# A new partition may still be stopping its last work, or a rebalance pauses it amid the seek.
_ANOTHER_CHANGE_FIRST = (ck.KafkaError._STATE, ck.KafkaError._OUTDATED, ck.KafkaError._PREV_IN_PROGRESS)

# The wake-ups of consumers that are not closed yet. A collector could close the sockets before librdkafka has let go of
# them, and librdkafka would write to the next owner of their numbers.
_wakes: dict[int, Wakeup] = {}

_message_error = ck.Message.error


class Arrivals(NamedTuple):
    """The result of one look into librdkafka's queue.

    `has_more` is true if there may be more in it. `ends` are partitions whose ends were reached, with the end offsets,
    `lost_places` those whose logs do not have the next offset to read, with that offset.
    """

    messages: list[ck.Message]
    has_more: bool = False
    ends: Mapping[TopicPartition, int] = {}
    lost_places: Mapping[TopicPartition, int] = {}


class GroupClient:
    """A client of librdkafka that reads one or more levels as a member of a group.

    `errors` gets what is not an answer to a call; the threads that look for starts and for topics append to it, too. A
    user that finds a topic deleted and created again has the client of librdkafka replaced.
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
        self._commits: list[PendingCommit] = []  # those that may be without an answer
        settings = {**_FETCH_DEFAULTS, **config}
        kilobytes = _integer(settings["queued.max.messages.kbytes"])
        self.buffer_size = kilobytes * 1024
        """The most bytes of a level that may wait for the caller."""
        self.fetch_wait = _integer(settings["fetch.wait.max.ms"]) / 1000
        """The seconds for which librdkafka might not fetch from partitions whose queues were full."""
        if kilobytes:  # it bounds each level's buffer, which gives in turns
            settings["queued.max.messages.kbytes"] = _QUEUE_KB
        if str(config.get("auto.offset.reset", "latest")).lower() in RESETS:  # librdkafka refuses any other value
            settings["auto.offset.reset"] = "error"  # `Membership` finds another place, if the log lacks an offset
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
        """Who this is, as the beginning of a sentence."""
        return f"Level {self.levels[0]}" if len(self.levels) == 1 else f"The group {self.group} of all levels"

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with other credentials from now on; from any thread.

        Raises `ConfigError` for credentials that librdkafka does not take.
        """
        self._connection.set_credentials(self.consumer, username, password)
        for settings in (self.config, self._settings):
            change_credentials(settings, username, password)
        self.watch.set_sasl_credentials(username, password)

    # Life

    def make(self) -> tuple[ck.Consumer, Connection]:
        """Return a new client of librdkafka and the state of its connections, for `replace`; raises `HeadwayError`."""
        connection = Connection(self.watch.suspect)
        return make_client(ck.Consumer, self._settings, connection), connection

    def replace(self, consumer: ck.Consumer, connection: Connection) -> ck.Consumer:
        """Use another client of librdkafka from now on; return the previous one, which the caller must close.

        Commits without an answer count as refused.
        """
        for sent in self._commits:
            sent.give_up("the consumer was replaced, since a topic was created again.")
        before = self.consumer
        self.ids.close()
        self._use(consumer, connection)
        capi.wake_on_events(consumer, self.wake_fd)
        return before

    def forget_commits(self) -> None:
        """Wait for no commit's answer any longer: a client that closes would wait for it."""
        for sent in self._commits:
            sent.forget()

    def close(self) -> None:
        """Close the client; it may wait for a group that cannot be reached."""
        self.ids.close()
        self.consumer.close()

    # The wake-up

    def wake_with(self, wake: Wakeup | None) -> None:
        """Set this wake-up whenever records or events arrive; None ends that."""
        self._wake = wake
        capi.wake_on_events(self.consumer, self.wake_fd)
        self.ids.close()  # its question may wake
        if wake:
            _wakes[id(self)] = wake
        else:
            _wakes.pop(id(self), None)

    def __del__(self) -> None:
        # In a forked process librdkafka's locks may be held forever, and it writes nothing.
        if _wakes.get(id(self)) and self._process == os.getpid():
            with contextlib.suppress(Exception):  # it may be half made
                self.wake_with(None)
        _wakes.pop(id(self), None)

    @property
    def wake_fd(self) -> int | None:
        """The descriptor of the wake-up, if one is set."""
        return self._wake.fd if self._wake else None

    def wake(self) -> None:
        """Have the caller look again at once; from any thread."""
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
        """Sort out the messages that are events or errors."""
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
            elif error.code() == ck.KafkaError._FATAL:  # reported once, and nothing is fetched any more
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
        if _GROUP_REFUSED in error.str():  # librdkafka takes that for fatal in a group of KIP-848
            right = Right("Read", "Group", self.group)
            return AuthorizationError(f"{ended}: {right.missing(self.config)} Then make a new consumer.")
        return KafkaError(
            f"{ended}: {error.str()}. Make a new consumer; if another one has the same group.instance.id, give each "
            "its own."
        )

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Have librdkafka read on at this offset, as soon as it can. Raises `KafkaError`."""
        place = ck.TopicPartition(*self.addresses.name(partition), offset)
        self._call(retrying, lambda _: self.consumer.seek(place), _SEEK_WITHIN, _ANOTHER_CHANGE_FIRST)

    # Offsets in Kafka

    def commit(self, offsets: Mapping[TopicPartition, int]) -> PendingCommit:
        """Send a commit of the next offset to read of each partition."""
        return self.commit_with_metadata({partition: (offset, "") for partition, offset in offsets.items()})

    def commit_with_metadata(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> PendingCommit:
        """Send a commit of each partition's next offset to read with its exact metadata."""
        with defer_signals():  # a client that closes waits for every commit that is not known here
            sent = capi.PendingCommit(self.consumer, self.addresses.commits(commits), self._explain)
            self._commits = [each for each in self._commits if each.is_open] + [sent]
        return sent

    def commit_at_once(self, offsets: Mapping[TopicPartition, int]) -> Mapping[capi.Partition, KafkaError] | None:
        """Commit offsets, and wait for it for a short while.

        Return the refusals, which are empty if all is done, or None if there was no answer.
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
        """Return the committed offset of each partition, None if it has none."""
        places = self.addresses.to_kafka(partitions)
        return self.addresses.offsets(self._call(self.consumer.committed, places, timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, int | None]:
        """Return each first offset at or after a time in milliseconds since the epoch, None if there is none.

        Raises `KafkaError` if Kafka does not answer: below `NONE_THAT_LATE` an offset is not known.
        """
        found = self._call(self.consumer.offsets_for_times, self.addresses.places(times), timeout)
        for each in found:
            if each.error or each.offset < NONE_THAT_LATE:
                reason = each.error.str() if each.error else "its leader does not answer"
                raise KafkaError(
                    f"Kafka did not say which offset partition {each.partition} of {each.topic} had then: {reason}. "
                    "Try again."
                )
        return self.addresses.offsets(found)

    def bounds(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the first offset and the one after the last; raises `KafkaError` if they are not known in time."""
        return watermarks(self.consumer, self.addresses.name(partition), timeout)

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last, as in the latest fetch, without a request; None if that had none."""
        return fetched_end(self.consumer, self.addresses.name(partition))

    def ask_offset(
        self, partition: TopicPartition, place: int, within: float, isolation: str | None = None
    ) -> Question[FoundOffsets]:
        """Ask for the offset of a place in a partition, as `ask_offsets` does; the answer sets the wake-up."""
        isolation = isolation or str(self.config.get("isolation.level", "read_committed"))
        return ask_offsets(self.consumer, {self.addresses.name(partition): place}, isolation, within, self.wake_fd)

    # Topics

    def topics(self, topic: str | None, timeout: float) -> dict[str, int]:
        """Return the topics in Kafka and the number of partitions of each."""
        metadata: ClusterMetadata = self._call(self.consumer.list_topics, topic, timeout)
        return {name: len(about.partitions) for name, about in metadata.topics.items() if about.error is None}

    def partition_count(self, topic: str, level: int, timeout: float) -> int:
        """Return the number of partitions of this level of a topic; 0 if it does not exist or is another level's."""
        subscription = self.addresses.subscription
        if not subscription.reads(topic, level):
            return 0
        name = subscription.kafka_topic(topic, level)
        return self.topics(name, timeout).get(name, 0)

    def topic_id(self, partition: TopicPartition) -> str | None:
        """Return Kafka's id of the topic that a partition is read of, None if the brokers have not said it.

        It is never newer than the partition's position: if the topic was deleted and created again, it is the old id
        until the partition begins in the new topic.
        """
        return self.ids.of(self.addresses.topic(partition))

    def is_new(self, partition: TopicPartition) -> bool:
        """Return whether a partition was added to its topic while this client has read it."""
        return self.ids.is_new(*self.addresses.name(partition))

    # Refusals

    def report(self, error: HeadwayError) -> None:
        """Note an error, and have the caller see it at once; from any thread."""
        self.errors.append(error)
        self.wake()

    def report_failure(self, reason: str, topic: str | None, cause: ck.KafkaError | None = None) -> None:
        """Report that a topic cannot be read, by librdkafka's error if there is one; from any thread."""
        if not self.is_refused(topic, cause):
            self.errors.append(FetchError(self.addresses.level_of(topic), reason))
        self.wake()

    @property
    def refused(self) -> str | None:
        """The missing right and what to do, as a sentence; None if nothing is refused."""
        return self._access.sentence()

    @property
    def lacks_a_right(self) -> bool:
        """True if a right was refused and is not known to be granted since."""
        return self._access.is_on

    def is_granted(self, now: float) -> bool:
        """Look whether the missing rights are granted by now, without waiting; report them when that is due."""
        self._report_refusal(self._access.look(now))
        return not self._access.is_on

    def hear_refusal(self, error: KafkaError) -> None:
        """Take in why a producer's offsets were refused: the group's refusal may reach this member much later."""
        if is_of_the_group(error):
            self.is_refused(None, cause_of(error))

    def is_refused(self, topic: str | None, error: ck.KafkaError | None) -> bool:
        """Return whether this error says that a right is missing; if so, report it when due."""
        right = error and right_for(error.name(), "Read", topic=topic, group=self.group)
        if not right:
            return False
        self._report_refusal(self._access.refused(right, time.monotonic()), topic)
        return True

    def _report_refusal(self, sentence: str | None, topic: str | None = None) -> None:
        if sentence:
            self.errors.append(FetchRefusedError(self.addresses.level_of(topic), sentence))

    def _explain(self, error: KafkaError, topic: str) -> KafkaError:
        """Return why a commit was refused; a missing right is reported, and asked for until it is granted."""
        cause = cause_of(error)
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
        return 0  # librdkafka refuses it
