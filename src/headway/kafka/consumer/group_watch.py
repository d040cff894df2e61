"""Detects assignments that a member has missed (KIP-848).

librdkafka 2.16 drops the answer to a heartbeat if it arrives after the heartbeat interval. The answer may contain an
order to give up or to take a partition. The coordinator does not repeat the order, and the group looks stable.
"""

import logging
from collections.abc import Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from headway.kafka.binding.capi import Partition
from headway.kafka.binding.connection import change_credentials
from headway.kafka.coordinator import ask_for_members, coordinator_client
from headway.settings.config import Config, settings_beside

if TYPE_CHECKING:
    from confluent_kafka.admin._group import ConsumerGroupDescription, MemberAssignment

log = logging.getLogger(__name__)

_LOOK_AT_GROUP_EVERY = 2.0
_QUIET_LOOKS = 2  # the check ends after this many consecutive answers without a difference


class GroupWatch:
    """Compares a member's partitions with its assignment at the coordinator, after the answer to a heartbeat was lost.

    The watch asks the coordinator until two consecutive answers agree with the member, or show the same difference. By
    then, a rebalance that was under way has ended. As long as no answer is lost, the watch sends no requests and keeps
    no connection.
    """

    def __init__(self, config: Config) -> None:
        self._config = settings_beside(config)
        self._group = str(config["group.id"])
        self._admin: AdminClient | None = None
        self._asked: Future[ConsumerGroupDescription] | None = None
        self._look_at: float | None = None
        self._gap: frozenset[Partition] = frozenset()
        self._quiet = 0

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for all further requests."""
        change_credentials(self._config, username, password)
        self._admin = None

    @property
    def is_on(self) -> bool:
        """True if an answer was lost and the comparison has not ended yet."""
        return self._look_at is not None

    def suspect(self) -> None:
        """Start to compare, because the answer to a heartbeat was lost."""
        self._look_at = 0.0
        self._quiet = 0

    def finds_behind(self, member_id: str | None, ours: Collection[Partition], now: float) -> bool:
        """Return whether the member has missed a change of its partitions, and must join again. This never waits.

        `ours` are the partitions that the member reads.
        """
        if self._look_at is None or now < self._look_at:
            return False
        if self._asked is None:
            self._asked = self._ask()
            return False
        if not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        self._look_at = now + _LOOK_AT_GROUP_EVERY
        gap = self._gap_of(asked, member_id, frozenset(ours))
        if gap is None:
            return False
        is_behind = bool(gap) and gap == self._gap
        self._gap = gap
        self._quiet = 0 if gap else self._quiet + 1
        if is_behind or self._quiet >= _QUIET_LOOKS:
            self._rest()
        return is_behind

    def _ask(self) -> "Future[ConsumerGroupDescription]":
        if self._admin is None:
            self._admin = coordinator_client(self._config)
        return ask_for_members(self._admin, self._group)

    def _gap_of(
        self, asked: "Future[ConsumerGroupDescription]", member_id: str | None, ours: frozenset[Partition]
    ) -> frozenset[Partition] | None:
        """Return the partitions that the member should have taken or given up, or None if these are not known."""
        try:
            members = asked.result().members
        except ck.KafkaException as error:
            log.debug("The group %s could not be described yet: %s", self._group, error.args[0].str())
            # The client would send its next request to the same broker, even if that broker is no longer the
            # coordinator.
            self._admin = None
            return None
        me = next((member for member in members if member.member_id == member_id), None)
        if me is None:
            return None
        given, target = _partitions(me.assignment), _partitions(me.target_assignment)
        return (ours - target) | ((given & target) - ours)

    def _rest(self) -> None:
        self._look_at = None
        self._gap = frozenset()
        self._admin = None


def _partitions(assignment: "MemberAssignment | None") -> frozenset[Partition]:
    found = assignment.topic_partitions if assignment else ()
    return frozenset((each.topic, each.partition) for each in found)
