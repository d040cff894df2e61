"""Reads the members and the commits of many groups at once, again and again, without joining any of them."""

import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from headway.errors import KafkaError
from headway.kafka.binding.capi import CommittedOffset, Partition
from headway.kafka.binding.questions import ask_all_committed
from headway.kafka.coordinator import ask_for_members_of, coordinator_client
from headway.kafka.missing_permissions import why_refused
from headway.kafka.reading.group_state import NO_GROUP
from headway.settings.config import OWN_KEYS, Config

if TYPE_CHECKING:
    from confluent_kafka.admin._group import MemberDescription


_ANSWERED_WITHIN = 5.0  # short, because a client that a restarted broker does not answer is replaced only after this


class GroupMember(NamedTuple):
    """A member of a group, and the partitions that are assigned to it."""

    member_id: str
    client_id: str
    host: str
    partitions: frozenset[Partition]


class GroupReading(NamedTuple):
    """The members and the commits of a group. `commits` has the committed offset and metadata of each partition."""

    members: tuple[GroupMember, ...]
    commits: Mapping[Partition, CommittedOffset]


class GroupsReader:
    """Reads groups with one client, which is replaced when a coordinator does not answer. Not thread-safe.

    Each read sends three requests for each group: two for its members, because librdkafka asks in the way of the new
    group protocol first, and one for its commits. `requests` counts them.
    """

    def __init__(self, config: Config) -> None:
        self._kafka = {key: value for key, value in config.items() if key not in OWN_KEYS}
        self._client: AdminClient | None = None
        self.requests = 0

    def read(self, groups: Collection[str], failures: list[str]) -> dict[str, GroupReading]:
        """Return the members and commits of these groups. A group that does not exist has neither.

        A group that cannot be read is left out, and `failures` gets a sentence that says why. Waits for at most
        five seconds.
        """
        deadline = time.monotonic() + _ANSWERED_WITHIN
        members = dict(self._members(groups, deadline, failures))
        return dict(self._with_commits(members, deadline, failures))

    def _members(
        self, groups: Collection[str], deadline: float, failures: list[str]
    ) -> Iterator[tuple[str, tuple[GroupMember, ...]]]:
        # Members are always read before commits, because librdkafka 2.16 crashes if it is asked for the commits of a
        # group whose coordinator has just started.
        self.requests += 2 * len(groups)
        client = self._connected()
        for group, answer in ask_for_members_of(client, groups).items() if groups else ():
            try:
                yield group, tuple(map(_member, answer.result(_left(deadline)).members))
            except ck.KafkaException as error:
                if error.args[0].code() in NO_GROUP:
                    yield group, ()
                else:
                    failures.append(self._sentence(group, error))
            except TimeoutError:
                failures.append(self._silence(group))

    def _with_commits(
        self, members: Mapping[str, tuple[GroupMember, ...]], deadline: float, failures: list[str]
    ) -> Iterator[tuple[str, GroupReading]]:
        self.requests += len(members)
        client = self._connected()
        asked = {group: ask_all_committed(client, group) for group in members}
        for group, question in asked.items():
            try:
                found = question.answer(_left(deadline))
            except KafkaError as error:
                failures.append(self._sentence(group, error.__cause__ or error))
            else:
                if found is None:
                    failures.append(self._silence(group))
                else:
                    commits = {place: commit for place, commit in found.items() if isinstance(commit, tuple)}
                    yield group, GroupReading(members[group], commits)
            finally:
                question.forget()

    def _connected(self) -> AdminClient:
        if self._client is None:
            self._client = coordinator_client(self._kafka)
        return self._client

    def _sentence(self, group: str, error: BaseException) -> str:
        reason = error.args[0] if isinstance(error, ck.KafkaException) else None
        if reason and (refused := why_refused(reason, "Describe", self._kafka, group=group)):
            return str(refused)
        self._client = None
        what = f"{reason.str().strip(' :.')} ({reason.name()})" if reason else str(error).rstrip(".")
        return f"The group {group} cannot be read: {what}."

    def _silence(self, group: str) -> str:
        # A client keeps asking a broker that no longer coordinates the group, so the next read uses a new one.
        self._client = None
        return f"The coordinator of the group {group} did not answer within {_ANSWERED_WITHIN:g} s."


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _member(described: "MemberDescription") -> GroupMember:
    assigned = described.assignment.topic_partitions if described.assignment else ()
    partitions = frozenset((each.topic, each.partition) for each in assigned)
    return GroupMember(described.member_id, described.client_id, described.host.removeprefix("/"), partitions)
