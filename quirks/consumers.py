"""Faults of consumers."""

import ctypes
import json
import statistics
import struct
import subprocess
import sys
import time
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from headway.broker import LocalBroker
from headway.kafka.binding.librdkafka import handle_of
from quirks import clients
from quirks.proxy import Proxy
from quirks.verdict import NotShownError, Verdict, kafka
from tests.contract.mock_brokers import mock_brokers

LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_COMMIT_OFFSETS, _FETCH_OFFSETS, _FIND_COORDINATOR, _HEARTBEAT = 8, 9, 10, 68
_NOT_COORDINATOR, _GROUP_DENIED = 16, 30


def offset_fetch_fails() -> Verdict:
    """An OffsetFetch is answered NOT_COORDINATOR, once."""
    topic = clients.name()
    refused: list[bytes] = []
    clients.create(kafka(), topic)
    clients.fill(kafka(), topic, 10)

    def meddle(api: int, request: bytes, answer: bytes) -> bytes:
        if api != _FETCH_OFFSETS or refused:
            return answer
        refused.append(request)
        return _refused_group(request, topic)

    proxy = Proxy(kafka(), meddle)
    reader = clients.consumer(proxy.address, topic, partition_assignment_strategy="cooperative-sticky")
    reader.subscribe([topic])
    came = len(clients.take(reader, 10, 25))
    if not refused:
        raise NotShownError("the consumer asked for no committed offsets")
    assigned = [each.partition for each in reader.assignment()]
    return Verdict(not came, f"{came} of 10 records came within 25 s; the assignment is {assigned}")


def _refused_group(request: bytes, group: str) -> bytes:
    """Return an answer to an OffsetFetch of version 8 or 9 that has an error for the group and names no partition."""
    version, number = struct.unpack_from(">hi", request, 2)
    if version < 8:
        raise NotShownError(f"OffsetFetch has version {version}; 8 was expected")
    name = group.encode()
    compact = bytes([len(name) + 1]) + name
    error = struct.pack(">h", _NOT_COORDINATOR)
    return struct.pack(">ibi", number, 0, 0) + b"\x02" + compact + b"\x01" + error + b"\0\0"


def heartbeat_answer_is_lost() -> Verdict:
    """The one answer to a heartbeat (KIP-848) that takes a partition away from a member does not arrive."""
    topic = clients.name()
    answers: list[bytes] = []
    clients.create(kafka(), topic, 2)

    def meddle(api: int, _request: bytes, answer: bytes) -> bytes | None:
        if api == _HEARTBEAT and _assigns(answer):
            answers.append(answer)
            return None if len(answers) == 2 else answer
        return answer

    proxy = Proxy(kafka(), meddle)
    first, second = (
        clients.consumer(address, topic, group_protocol="consumer") for address in (proxy.address, kafka())
    )
    first.subscribe([topic])
    clients.wait_until(lambda: _polled(first), "the first member was given nothing")
    second.subscribe([topic])
    clients.wait_until(
        lambda: _polled(second) is not None and _polled(first) and len(answers) == 2, "no answer was lost"
    )
    deadline = time.monotonic() + 40
    while not _polled(second) and time.monotonic() < deadline:
        _polled(first)
    have = [[each.partition for each in member.assignment()] for member in (first, second)]
    return Verdict(not have[1], f"40 s after the loss the members have {have[0]} and {have[1]} of partitions 0 and 1")


def _polled(member: ck.Consumer) -> list[ck.TopicPartition]:
    """Return the assignment of a member after a poll."""
    member.poll(0.1)
    return member.assignment()


def _assigns(answer: bytes) -> bool:
    """Return whether an answer to a ConsumerGroupHeartbeat has an assignment with partitions."""
    at = 4 + 1 + 4  # number, tags, throttle time
    [error] = struct.unpack_from(">h", answer, at)
    at += 2
    at += answer[at] or 1  # an error's text, or null
    if error:
        return False
    at += answer[at] or 1  # the member's id
    at += 4 + 4  # its epoch, and the heartbeats' interval
    return answer[at] == 1 and answer[at + 1] > 1


def batch_beyond_the_limit() -> Verdict:
    """A compressed batch unpacks to more than `receive.message.max.bytes`."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        sends = clients.producer(brokers.bootstrap_servers, compression_codec="zstd", message_max_bytes=20_000_000)
        sends.produce("orders", bytes(10_000_000), partition=0)
        sends.flush(20)
        reader = clients.consumer(
            brokers.bootstrap_servers, receive_message_max_bytes=2_000_000, fetch_max_bytes=1_000_000
        )
        reader.assign([ck.TopicPartition("orders", 0, 0)])
        errors, deadline = [], time.monotonic() + 5
        while time.monotonic() < deadline:
            message = reader.poll(0.1)
            if message is not None and message.error() is None:
                return Verdict(False, "the batch was read")
            if message is not None:
                errors.append(str(message.error()))
        named = any("receive.message.max.bytes" in error for error in errors)
        return Verdict(not named, f"in 5 s {len(errors)} errors, such as {errors[:1]}")


_CLOSING = """
import sys, time
import confluent_kafka as ck
members = [
    ck.Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "log_level": 0,
                 "partition.assignment.strategy": "cooperative-sticky"})
    for _ in range(6)
]
for member in members:
    member.subscribe(["orders"], on_assign=lambda *_: None, on_revoke=lambda *_: None)
deadline = time.monotonic() + 10
while not any(member.assignment() for member in members[:3]) and time.monotonic() < deadline:
    for member in members[:3]:
        member.poll(0.01)
for member in members:
    member.close()
"""


def close_while_the_group_meets() -> Verdict:
    """Members close while their group rebalances."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        command = [sys.executable, "-W", "ignore", "-c", _CLOSING, brokers.bootstrap_servers]
        for number in range(8):
            started = [subprocess.Popen([*command, clients.name()]) for _ in range(4)]
            deadline = time.monotonic() + 30
            while any(each.poll() is None for each in started) and time.monotonic() < deadline:
                time.sleep(0.1)
            if hanging := [each for each in started if each.poll() is None]:
                for each in hanging:
                    each.kill()
                return Verdict(True, f"{len(hanging)} of {4 * number + 4} processes did not end within 30 s")
        return Verdict(False, "32 processes ended")


def full_queue_waits_a_second() -> Verdict:
    """A consumer whose fetch queue is full now and then."""
    topic = clients.name()
    clients.create(kafka(), topic)
    clients.fill(kafka(), topic, 20_000, size=100)
    took = {backoff: _time_to_read(topic, backoff) for backoff in (1_000, 1)}
    seen = f"20,000 records take {took[1_000]:.1f} s; with fetch.queue.backoff.ms=1 {took[1]:.1f} s"
    return Verdict(took[1_000] > 2 * took[1] + 1, seen)


def _time_to_read(topic: str, backoff: int) -> float:
    """Return the seconds that 20,000 records take, extrapolated from 25 s if they take longer."""
    reader = clients.consumer(
        kafka(), queued_min_messages=1, fetch_message_max_bytes=50_000, fetch_queue_backoff_ms=backoff
    )
    reader.assign([ck.TopicPartition(topic, 0, 0)])
    began = time.monotonic()
    came = len(clients.take(reader, 20_000, 25))
    return (time.monotonic() - began) * 20_000 / max(came, 1)


def flood_before_a_quiet_partition() -> Verdict:
    """A record of a quiet partition comes while another partition is flooded."""
    topic = clients.name()
    clients.create(kafka(), topic, 2)
    clients.fill(kafka(), topic, 50_000, partition=0)
    reader = clients.consumer(kafka(), fetch_wait_max_ms=10)
    reader.assign([ck.TopicPartition(topic, partition, 0) for partition in (0, 1)])
    clients.take(reader, 1)
    time.sleep(2)  # librdkafka's queue fills up
    clients.fill(kafka(), topic, 1, partition=1)
    time.sleep(1)
    before = 0
    while before < 50_000:
        message = reader.poll(5)
        if message is None:
            raise NotShownError("no record came within 5 s")
        if message.partition() == 1:
            break
        before += 1
    return Verdict(before > 1_000, f"{before} records of the flooded partition come before it")


def forwarded_queue_after_an_assign() -> Verdict:
    """A partition's queue is forwarded to none and back, and the partition is assigned again."""
    topic = clients.name()
    clients.create(kafka(), topic)
    clients.fill(kafka(), topic, 10)
    came = {touches: _read_again(topic, touches) for touches in (False, True)}
    return Verdict(came[True] < came[False], f"{came[True]} of 10 records came; without the forwarding {came[False]}")


def _read_again(topic: str, touches: bool) -> int:
    reader = clients.consumer(kafka())
    reader.assign([ck.TopicPartition(topic, 0, 0)])
    clients.take(reader, 10)
    if touches:
        library, handle = ctypes.CDLL(ck.cimpl.__file__), handle_of(reader)
        library.rd_kafka_queue_get_partition.restype = library.rd_kafka_queue_get_consumer.restype = ctypes.c_void_p
        library.rd_kafka_queue_get_partition.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32]
        library.rd_kafka_queue_get_consumer.argtypes = [ctypes.c_void_p]
        library.rd_kafka_queue_forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        queue = library.rd_kafka_queue_get_partition(handle, topic.encode(), 0)
        library.rd_kafka_queue_forward(queue, None)
        library.rd_kafka_queue_forward(queue, library.rd_kafka_queue_get_consumer(handle))
    reader.assign([ck.TopicPartition(topic, 0, 0)])
    return len(clients.take(reader, 10, 8))


def resume_is_late() -> Verdict:
    """All partitions of a consumer are resumed after a pause."""
    topic = clients.name()
    clients.create(kafka(), topic)
    clients.fill(kafka(), topic, 1_000)
    reader = clients.consumer(kafka(), queued_min_messages=1, fetch_message_max_bytes=100)
    place = ck.TopicPartition(topic, 0)
    reader.assign([ck.TopicPartition(topic, 0, 0)])
    waits = []
    for number in range(8):
        clients.take(reader, 1)
        reader.pause([place])
        time.sleep(0.5 + number / 10)
        reader.resume([place])
        waits.append(clients.time_to_first(reader))
    return Verdict(
        max(waits) > 0.3, f"the first record comes after {statistics.median(waits):.2f} s, at worst {max(waits):.2f} s"
    )


def seek_forgets_the_position() -> Verdict:
    """A consumer seeks to where it is."""
    topic = clients.name()
    clients.create(kafka(), topic)
    clients.fill(kafka(), topic, 10)
    place = ck.TopicPartition(topic, 0)
    reader = clients.consumer(kafka(), enable_auto_commit=False)
    reader.assign([ck.TopicPartition(topic, 0, 0)])
    clients.take(reader, 5)
    reader.seek(ck.TopicPartition(topic, 0, 5))
    [position] = reader.position([place])
    return Verdict(position.offset != 5, f"it has read up to 5, and its position is {position.offset}")


def repeated_commit_overwrites() -> Verdict:
    """Two commits are made at once, and the first is refused because the coordinator has moved."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        reader = clients.consumer(brokers.bootstrap_servers, enable_auto_commit=False)
        reader.commit(offsets=[ck.TopicPartition("orders", 0, 1)], asynchronous=False)
        brokers.refuse(_COMMIT_OFFSETS, _NOT_COORDINATOR, times=1)
        for offset in (2, 3):
            reader.commit(offsets=[ck.TopicPartition("orders", 0, offset)], asynchronous=True)
        time.sleep(2)
        [stored] = reader.committed([ck.TopicPartition("orders", 0)], timeout=10)
        return Verdict(stored.offset != 3, f"2 and then 3 were committed; the group has {stored.offset}")


def coordinator_without_a_group() -> Verdict:
    """A consumer assigns a partition and subscribes to nothing."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        brokers.refuse(_FIND_COORDINATOR, _GROUP_DENIED)
        asked = []
        reader = clients.consumer(
            brokers.bootstrap_servers,
            enable_auto_commit=False,
            statistics_interval_ms=500,
            stats_cb=lambda text: asked.append(_requests(text)),
        )
        reader.assign([ck.TopicPartition("orders", 0, 0)])
        clients.take(reader, 1, 6)
        return Verdict(asked[-1] > 0, f"{asked[-1]} FindCoordinator in 6 s")


def _requests(text: str) -> int:
    brokers: dict[str, Any] = json.loads(text)["brokers"]
    return sum(each.get("req", {}).get("FindCoordinator", 0) for each in brokers.values())


def assign_of_a_new_topic() -> Verdict:
    """A connected client is assigned a partition of a topic that it has not read before, and of one that it has."""
    topics = [clients.name() for _ in range(8)]
    for topic in topics:
        clients.create(kafka(), topic)
        clients.fill(kafka(), topic, 1)
    reader = clients.consumer(kafka(), fetch_wait_max_ms=10)
    waits = []
    for topic in topics:
        reader.assign([ck.TopicPartition(topic, 0, 0)])
        waits.append(clients.time_to_first(reader))
    median = statistics.median(waits[1:])
    return Verdict(median > 0.2, f"the first record comes after {median:.2f} s")


def refusal_is_fatal() -> Verdict:
    """A member of a KIP-848 group lacks the right, and is granted it."""
    with LocalBroker(secure=True) as broker:
        topic = clients.name()
        admin = AdminClient(broker.admin_config)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        broker.grant("app", "Read", "Topic", topic)
        broker.grant("app", "Describe", "Group", topic)
        reader = ck.Consumer(
            {**broker.client_config(), "group.id": topic, "group.protocol": "consumer", "log_level": 0}
        )
        reader.subscribe([topic])
        error, deadline = None, time.monotonic() + 30
        while not (error and error.code() == ck.KafkaError._FATAL) and time.monotonic() < deadline:
            message = reader.poll(0.5)
            error = (message and message.error()) or error
        if error is None:
            raise NotShownError("no error came")
        return Verdict(error.code() == ck.KafkaError._FATAL, f"{error.name()}: {error.str()}")


def topic_created_again() -> Verdict:
    """A topic is deleted and created again while it is read."""
    topic = clients.name()
    clients.create(kafka(), topic)
    clients.fill(kafka(), topic, 100)
    reader = clients.consumer(kafka(), topic_metadata_refresh_interval_ms=500)
    reader.assign([ck.TopicPartition(topic, 0, 0)])
    clients.take(reader, 100)
    admin = AdminClient({"bootstrap.servers": kafka(), "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)
    clients.wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic was not deleted")
    clients.create(kafka(), topic)
    clients.fill(kafka(), topic, 300)
    came = len(clients.take(reader, 300, 15))
    return Verdict(came < 300, f"{came} of the new topic's 300 records came")


def reset_is_silent() -> Verdict:
    """Records are deleted before they are read."""
    topic = clients.name()
    clients.create(kafka(), topic)
    clients.fill(kafka(), topic, 10)
    admin = AdminClient({"bootstrap.servers": kafka(), "log_level": 0})
    reader = clients.consumer(kafka(), queued_min_messages=1, fetch_message_max_bytes=1)
    place = ck.TopicPartition(topic, 0)
    reader.assign([ck.TopicPartition(topic, 0, 0)])
    clients.take(reader, 1)
    reader.pause([place])
    admin.delete_records([ck.TopicPartition(topic, 0, 10)])[ck.TopicPartition(topic, 0)].result(10)
    reader.seek(ck.TopicPartition(topic, 0, 1))
    reader.resume([place])
    errors, deadline = [], time.monotonic() + 6
    while time.monotonic() < deadline:
        message = reader.poll(0.2)
        if message is not None and message.error():
            errors.append(str(message.error()))
    [position] = reader.position([place])
    return Verdict(not errors, f"records 1 to 9 are gone: {len(errors)} errors, and the position is {position.offset}")


def list_offsets_without_a_leader() -> Verdict:
    """`list_offsets` is asked about a partition whose leader does not answer."""
    with mock_brokers() as brokers:
        leader = brokers.create("orders")[0]
        clients.fill(brokers.bootstrap_servers, "orders", 5)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0})
        places = {ck.TopicPartition("orders", number): LATEST for number in range(4)}
        place = ck.TopicPartition("orders", 0)
        admin.list_offsets(places, request_timeout=5)[place].result(10)
        brokers.answer_after(leader, 60_000)
        try:
            found = admin.list_offsets(places, request_timeout=3)[place].result(10)
        except ck.KafkaException as error:
            return Verdict(False, error.args[0].str())
        return Verdict(found.offset < 0, f"the offset is {found.offset}, and there is no error")


def list_offsets_of_many() -> Verdict:
    """`list_offsets` is asked about many partitions."""
    with mock_brokers() as brokers:
        many = 9_000
        brokers.create_with("orders", many)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0})
        admin.list_topics("orders", timeout=20)
        took = {count: min(_listed(admin, many, count) for _ in range(3)) for count in (many, 500)}
        seen = f"{took[many]:.2f} s for {many} partitions at once, {took[500]:.2f} s for 500 at a time"
        return Verdict(took[many] > 1.5 * took[500], seen)


def _listed(admin: AdminClient, many: int, at_once: int) -> float:
    began = time.process_time()
    for first in range(0, many, at_once):
        places = {ck.TopicPartition("orders", number): LATEST for number in range(first, first + at_once)}
        for each in admin.list_offsets(places, request_timeout=60).values():
            each.result(90)
    return time.process_time() - began
