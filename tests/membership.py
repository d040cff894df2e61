"""Members of groups, as a test meddles with them."""

import socket
import struct
from typing import Any

from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient

LEAVE_GROUP = 13
CONSUMER_GROUP_HEARTBEAT = 68


def expel(config: dict[str, Any], group: str) -> None:
    """Remove a group's only member behind its back, as a group does whose heartbeats it missed."""
    admin = AdminClient({"log_level": 0, **config})
    described = admin.describe_consumer_groups([group])[group].result(30)
    [expelled] = described.members
    coordinator = described.coordinator
    with socket.create_connection((coordinator.host, coordinator.port), 10) as connection:
        if described.type is ConsumerGroupType.CONSUMER:
            request = _last_heartbeat(group, expelled.member_id)
        else:
            request = struct.pack(">hhi", LEAVE_GROUP, 1, 1) + _text("test") + _text(group) + _text(expelled.member_id)
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.recv(100)
    behind = 13 if described.type is ConsumerGroupType.CONSUMER else 12  # length, number, tags and throttle time
    assert struct.unpack_from(">h", answer, behind)[0] == 0


def _last_heartbeat(group: str, member_id: str) -> bytes:
    """Return the request by which a member of KIP-848 leaves: a heartbeat of the epoch -1."""
    header = struct.pack(">hhi", CONSUMER_GROUP_HEARTBEAT, 0, 1) + _text("test") + b"\0"
    nothing = b"\0"
    member = _compact(group) + _compact(member_id) + struct.pack(">i", -1)
    return header + member + nothing * 2 + struct.pack(">i", -1) + nothing * 4


def _compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
