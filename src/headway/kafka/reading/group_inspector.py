"""Reads the commits of a group and the records of partitions, without joining the group."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import confluent_kafka as ck
from confluent_kafka import cimpl
from confluent_kafka.admin import AdminClient

from headway.errors import ClosedError, KafkaError
from headway.kafka.binding import capi
from headway.kafka.binding.capi import CommittedOffsets, Partition, await_connection
from headway.kafka.binding.factory import make_client
from headway.kafka.binding.retrying import retrying
from headway.kafka.binding.time_limits import BROKER_ANSWERS_WITHIN, BROKER_RESTARTS_WITHIN
from headway.kafka.binding.unpacking import Unpacking, is_not_unpacked
from headway.kafka.coordinator import ask_for_members, ask_for_offsets, coordinator_client
from headway.kafka.missing_permissions import raise_if_refused, why_not_readable, why_refused
from headway.kafka.reading.group_state import NO_GROUP, Member, members_by_partition
from headway.kafka.reading.log_bounds import LogBounds
from headway.kafka.reading.unjoined_consumer import unjoined_consumer
from headway.records.record_types import Message
from headway.runtime.lifecycle import Closable
from headway.settings.config import OWN_KEYS, Config

if TYPE_CHECKING:
    from confluent_kafka.admin._group import ConsumerGroupDescription

T = TypeVar("T")

_BATCH = 1000
_MOMENT = 0.1  # seconds
# Ranges with more offsets than this are read one after the other, because each of them may fill librdkafka's queue.
_SHORT = 1000
_AT_THE_SAME_TIME = 200

_HAS_MEMBERS = (
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
)

_DEFAULTS: Config = {
    "log_level": 2,
    # A read ends when the broker answers that there are no further records, so the broker should answer quickly.
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 1,
}
_OURS: Config = {
    "enable.partition.eof": True,
    # If Kafka deletes records because of their age during a read, the read skips them.
    "auto.offset.reset": "earliest",
}


class GroupInspector(Closable):
    """Reads the commits of one group, and the records of partitions, without joining a group.

    Raises `ConfigError` for a setting that librdkafka does not know, or a value that it does not accept. Every method
    raises `KafkaError` if Kafka refuses a request or does not answer.

    Args:
        config: The same settings as for the other clients. Headway's own keys are ignored.
        group: The name of the group.
        client: A connected client with these settings, if there is one, because connecting a new client takes time.
    """

    def __init__(self, config: Config, group: str, client: AdminClient | None = None) -> None:
        self.group = group
        self._kafka = kafka = {key: value for key, value in config.items() if key not in OWN_KEYS}
        self._admin = client or make_client(AdminClient, {"log_level": 2, **kafka})
        self._bounds = LogBounds(kafka, client=self._admin)
        self._reader = unjoined_consumer({**_DEFAULTS, **kafka, **_OURS})
        # This client is created only when needed, because it searches for the group's coordinator.
        self._committer: cimpl.Consumer | None = None
        if client is None:
            # An admin client that is asked for offsets before it knows the brokers can take 3 seconds to answer.
            with _explained("The topics could not be listed"):
                await_connection(self._admin, BROKER_ANSWERS_WITHIN)

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        if self._committer:
            self._committer.close()

    def groups(self) -> list[str]:
        """Return the names of all groups."""
        with _explained("The groups could not be listed"):
            found = self._admin.list_consumer_groups(request_timeout=BROKER_ANSWERS_WITHIN).result()
        return sorted(each.group_id for each in found.valid)

    def member_count(self) -> int:
        """Return the number of the group's members, which is 0 if the group does not exist."""
        described = self._described()
        return 0 if described is None else len(described.members)

    def members(self) -> dict[Partition, Member]:
        """Return the member to which each partition is currently assigned."""
        described = self._described()
        return {} if described is None else members_by_partition(described)

    def _described(self) -> "ConsumerGroupDescription | None":
        """Return the coordinator's description of the group, or None if the group does not exist."""
        # The request ends when the client is destroyed, so this variable keeps it alive.
        client = coordinator_client(self._kafka)
        answer = ask_for_members(client, self.group)
        try:
            return answer.result(BROKER_ANSWERS_WITHIN)
        except TimeoutError:
            raise KafkaError(
                f"The coordinator of the group {self.group} did not report within {BROKER_ANSWERS_WITHIN:g} s whether "
                "the group has members. Check that the broker that coordinates the group is up, and try again."
            ) from None
        except ck.KafkaException as error:
            if error.args[0].code() in NO_GROUP:
                return None
            raise_if_refused(_explain_group(self.group, error), "Describe", self._kafka, group=self.group)
            raise _explain_group(self.group, error) from error

    def partitions(self) -> list[Partition]:
        """Return the partitions for which the group has committed an offset."""
        self._require_permission()
        found = self._asked(self._committed_partitions)
        return sorted((each.topic, each.partition) for each in found if each.offset >= 0)

    def _committed_partitions(self) -> list[ck.TopicPartition]:
        # The request ends when the client is destroyed, so this variable keeps it alive.
        client = coordinator_client(self._kafka)
        answer = ask_for_offsets(client, self.group)
        with _explained(f"The commits of the group {self.group} could not be listed"):
            try:
                return list(answer.result(BROKER_ANSWERS_WITHIN).topic_partitions or ())
            except TimeoutError:
                raise KafkaError(
                    f"The coordinator of the group {self.group} did not list its commits within "
                    f"{BROKER_ANSWERS_WITHIN:g} s. Check that the broker that coordinates the group is up, and try "
                    "again."
                ) from None

    def committed(self, partitions: Collection[Partition]) -> dict[Partition, tuple[int, bytes]]:
        """Return the committed offset and exact metadata of each partition that has a commit."""
        if not partitions:
            return {}
        found = self._asked(lambda: capi.committed(self._group_client(), list(partitions), BROKER_ANSWERS_WITHIN))
        return {partition: commit for partition, commit in found.items() if commit is not None}

    def _group_client(self) -> cimpl.Consumer:
        """Return the client for the group's commits.

        Raises `KafkaError` if this client is not permitted to see the group.

        The permission is checked first, because librdkafka does not report a missing permission for a request for
        commits. Instead, it searches for the coordinator until the request times out.
        """
        if self._committer is None:
            self._require_permission()
            ours = {"enable.auto.commit": False, "group.id": self.group}
            self._committer = make_client(cimpl.Consumer, {"log_level": 2, **self._kafka, **ours})
        return self._committer

    def _require_permission(self) -> None:
        """Raise `KafkaError` if this client is not permitted to see the group.

        The check requests the group's description rather than its offsets, because librdkafka 2.16 crashes the process
        if an admin client requests the offsets of a group whose coordinator has just started (`rd_kafka_cgrp_op`,
        called with no group).
        """
        # The request ends when the client is destroyed, so this variable keeps it alive.
        client = coordinator_client(self._kafka)
        answer = ask_for_members(client, self.group)
        try:
            answer.result(BROKER_ANSWERS_WITHIN)
        except TimeoutError:
            pass  # the next request will also time out, and will report this
        except ck.KafkaException as error:
            if refused := why_refused(error.args[0], "Describe", self._kafka, group=self.group):
                raise refused from error

    def starts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the first offset of each partition that was not deleted yet.

        Partitions that do not exist are left out.
        """
        return self._bounds.starts(partitions)

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the end offset of each partition. Partitions that do not exist are left out."""
        return self._bounds.ends(partitions)

    def offset_at(self, partition: Partition, timestamp: int, end: int) -> int:
        """Return the first offset at or after a time, or `end` if there is none.

        The time is in milliseconds since the epoch.
        """
        offset = self._bounds.at(timestamp, [partition]).get(partition)
        return end if offset is None else offset

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Message]:
        """Yield the records from offset `start` up to but not including `end`.

        If a transaction is open, the records end before it.
        """
        if start < end:
            yield from (message for _, message in self._read_at_once({partition: (start, end)}))

    def _unreadable(self, message: Message, error: ck.KafkaError) -> KafkaError:
        if is_not_unpacked(error):
            return KafkaError(Unpacking(self._kafka).sentence(message))
        return KafkaError(
            f"Partition {message.partition()} of {message.topic()} cannot be read: {error.str().rstrip('.')}."
        )

    def read_together(self, ranges: Mapping[Partition, tuple[int, int]]) -> Iterator[tuple[Partition, Message]]:
        """Yield the records of several ranges as `read` does. The records of each range are in order.

        Short ranges are read at the same time.
        """
        short = {place: (start, end) for place, (start, end) in ranges.items() if 0 < end - start <= _SHORT}
        waiting = iter(short.items())
        while some := dict(islice(waiting, _AT_THE_SAME_TIME)):
            yield from self._read_at_once(some)
        for place, (start, end) in ranges.items():
            if place not in short:
                yield from ((place, message) for message in self.read(place, start, end))

    def _read_at_once(self, ranges: Mapping[Partition, tuple[int, int]]) -> Iterator[tuple[Partition, Message]]:
        self._reader.assign([ck.TopicPartition(*place, start) for place, (start, _) in ranges.items()])
        try:
            yield from self._read_assigned(ranges)
        finally:
            # Otherwise the client would keep fetching, at the end of a log a hundred times a second. A generator that
            # was not read to its end may be closed after the client.
            with suppress(ClosedError):
                self._reader.assign([])

    def _read_assigned(self, ranges: Mapping[Partition, tuple[int, int]]) -> Iterator[tuple[Partition, Message]]:
        left = {place: end for place, (_, end) in ranges.items()}
        moved = time.monotonic()
        while left:
            messages = self._reader.take(_BATCH, _MOMENT)
            for message in messages:
                place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
                if place in ranges and place not in left:
                    continue  # the record is after the end of its range
                if (error := message.error()) is not None and error.code() != ck.KafkaError._PARTITION_EOF:
                    raise why_not_readable(error, place[0], self._kafka) or self._unreadable(message, error)
                if error is not None or offset + 1 >= left[place]:
                    end = left.pop(place)
                    if error is not None or offset >= end:
                        continue
                yield place, message
            moved = self._time_of_progress(moved, messages, next(iter(left), None))

    def _time_of_progress(self, moved: float, messages: Sequence[Message], place: Partition | None) -> float:
        """Return the time of the last record that was read. Raises `KafkaError` if that is too long ago."""
        now = time.monotonic()
        if messages or place is None or now - moved <= BROKER_RESTARTS_WITHIN:
            return now if messages else moved
        raise KafkaError(
            f"No record of partition {place[1]} of {place[0]} arrived for {BROKER_RESTARTS_WITHIN:g} s. Check that the "
            "partition's broker is up."
        )

    def commit(self, offsets: CommittedOffsets) -> None:
        """Commit offsets with their exact metadata, and wait for the answer.

        Raises `KafkaError` while the group has members.
        """
        self._asked(lambda: self._commit(offsets))

    def _asked(self, call: Callable[[], T]) -> T:
        """Return the result of a call about the group.

        Raises `AuthorizationError` if this client is not permitted to use the group.
        """
        try:
            return retrying(lambda _: call(), BROKER_ANSWERS_WITHIN)
        except KafkaError as error:
            raise_if_refused(error, "Describe", self._kafka, group=self.group)
            raise

    def _commit(self, offsets: CommittedOffsets) -> None:
        refused = capi.PendingCommit(self._group_client(), offsets).refused(BROKER_ANSWERS_WITHIN)
        if refused is None:
            raise KafkaError(
                f"Kafka did not answer a commit of the group {self.group} within {BROKER_ANSWERS_WITHIN:g} s."
            )
        for error in refused.values():
            if _code(error) in _HAS_MEMBERS:
                raise KafkaError(
                    f"The group {self.group} has members, so Kafka accepts commits only from these. Stop the members "
                    "first."
                ) from error
            raise error


def _explain_group(group: str, error: ck.KafkaException) -> KafkaError:
    explained = KafkaError(f"The coordinator could not describe the group {group}: {error.args[0].str().rstrip('.')}.")
    explained.__cause__ = error
    return explained


def _code(error: KafkaError) -> int | None:
    cause = error.__cause__
    return cause.args[0].code() if isinstance(cause, ck.KafkaException) else None


@contextmanager
def _explained(failure: str) -> Iterator[None]:
    try:
        yield
    except ck.KafkaException as error:
        raise KafkaError(f"{failure}: {error.args[0].str().rstrip('.')}.") from error
