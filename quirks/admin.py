"""Faults of admin clients, and of librdkafka's mock."""

import contextlib
import struct
import threading
import time

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from headway.broker import LocalBroker
from quirks import clients
from quirks.proxy import Proxy
from quirks.verdict import NotShownError, Verdict, at_risk, kafka, survived
from tests.contract.mock_brokers import mock_brokers

_FIND_COORDINATOR, _DESCRIBE_GROUPS = 10, 15
_NOT_COORDINATOR = 16


def request_to_a_coordinator() -> Verdict:
    """Requests to coordinators time out while a broker is away, and the broker comes back."""
    with LocalBroker(nodes=3) as broker:
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        admins = [AdminClient(settings) for _ in range(10)]
        for number, admin in enumerate(admins):
            admin.describe_consumer_groups([f"g{number}"])[f"g{number}"].exception(60)
        at_risk("a broker comes back after requests to it as a coordinator have timed out", 80)
        for number in range(4):
            node = broker.nodes[number % 3]
            node.kill()
            _ask_for(7, admins)
            restart = threading.Thread(target=node.start, args=(60,))
            restart.start()
            _ask_for(8, admins)
            restart.join()
        survived()
    return Verdict(False, "the process survived four rounds")


def _ask_for(seconds: float, admins: list[AdminClient]) -> None:
    """Send requests with time-outs of 1 to 5 s for some time."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for number, admin in enumerate(admins):
            admin.describe_consumer_groups([f"g{number}"], request_timeout=number % 5 + 1)
        time.sleep(0.5)


def asks_the_old_coordinator() -> Verdict:
    """A group's coordinator says that it is not the coordinator any more, and the same admin client asks again."""
    group = clients.name()
    refusals: list[bytes] = []
    searches: list[bytes] = []

    def meddle(api: int, request: bytes, answer: bytes) -> bytes:
        if api == _FIND_COORDINATOR:
            searches.append(request)
        if api != _DESCRIBE_GROUPS:
            return answer
        refusals.append(request)
        return _refused_group(request, group)

    proxy = Proxy(kafka(), meddle)
    admin = AdminClient({"bootstrap.servers": proxy.address, "log_level": 0})
    for _ in range(10):
        with contextlib.suppress(ck.KafkaException):
            admin.describe_consumer_groups([group], request_timeout=5)[group].result(10)
    if not refusals:
        raise NotShownError("no question reached the coordinator")
    seen = f"{len(refusals)} requests were answered NOT_COORDINATOR, after {len(searches)} FindCoordinator"
    return Verdict(len(searches) < len(refusals), seen)


def _refused_group(request: bytes, group: str) -> bytes:
    """Return an answer to a DescribeGroups of version 5, which has the error for the group and no members."""
    version, number = struct.unpack_from(">hi", request, 2)
    if version != 5:
        raise NotShownError(f"DescribeGroups has version {version}; 5 was expected")
    name = bytes([len(group) + 1]) + group.encode()
    nothing = b"\x01" * 4  # its state, protocol type, protocol, and members
    described = struct.pack(">h", _NOT_COORDINATOR) + name + nothing + struct.pack(">i", 0) + b"\0"
    return struct.pack(">ibi", number, 0, 0) + b"\x02" + described + b"\0"


def mock_describes_no_topics() -> Verdict:
    """The mock of librdkafka is asked to describe a topic."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0})
        topics = ck.TopicCollection(["orders"])
        try:
            admin.describe_topics(topics, request_timeout=5)["orders"].result(10)
        except ck.KafkaException as error:
            return Verdict(True, str(error.args[0].str()))
        return Verdict(False, "it answers")
