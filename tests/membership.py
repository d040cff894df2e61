"""Members of groups, as a test meddles with them."""

import socket
import struct
from typing import Any

from confluent_kafka.admin import AdminClient

LEAVE_GROUP = 13


def expel(config: dict[str, Any], group: str) -> None:
    """Remove a classic group's only member behind its back, as a group does whose heartbeats it missed."""
    admin = AdminClient(config)
    described = admin.describe_consumer_groups([group])[group].result(30)
    [expelled] = described.members
    coordinator = described.coordinator
    with socket.create_connection((coordinator.host, coordinator.port), 10) as connection:
        body = _text("test") + _text(group) + _text(expelled.member_id)
        request = struct.pack(">hhi", LEAVE_GROUP, 1, 1) + body
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.recv(100)
    assert struct.unpack_from(">h", answer, 12)[0] == 0  # behind length, number and throttle time


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
