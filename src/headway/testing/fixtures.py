"""pytest fixtures, available as soon as Headway is installed.

    def test_orders_arrive(headway_broker, headway_topic):
        config = {"bootstrap.servers": headway_broker.bootstrap_servers}
        ...

A broker is imported and started only if a test asks for it.
"""

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headway.errors import LocalBrokerError

if TYPE_CHECKING:
    from headway.broker import LocalBroker
    from headway.kafka.binding.mock_cluster import MockCluster


@pytest.fixture
def headway_mock() -> Iterator["MockCluster"]:
    """Yield librdkafka's mock cluster, new and empty for each test. It starts in milliseconds and needs no Java.

    It has no delayed delivery, no rights and no timestamps; see `docs/testing.md`.
    """
    from headway.kafka.binding.mock_cluster import MockCluster  # noqa: PLC0415 - a session that does not use it starts faster

    with MockCluster() as mock:
        yield mock


KEEPS_OLD_RECORDS = {"log.retention.ms": "-1"}
"""Otherwise, every five minutes, Kafka deletes records that a test sends with a timestamp older than a week."""


@pytest.fixture(scope="session")
def headway_broker() -> Iterator["LocalBroker"]:
    """Yield a running Apache Kafka with one node. The test session shares it; its records are deleted at the end."""
    with _local_broker()(properties=KEEPS_OLD_RECORDS) as broker:
        yield broker


@pytest.fixture(scope="session")
def headway_secure_broker() -> Iterator["LocalBroker"]:
    """Yield a running Apache Kafka with TLS, logins and rights, shared by the test session.

    A test that grants rights should create its own user with `add_user`, so that other tests do not get them.
    """
    with _local_broker()(secure=True, properties=KEEPS_OLD_RECORDS) as broker:
        yield broker


def _local_broker() -> "type[LocalBroker]":
    """Import the broker, or fail the test with a sentence that names the missing extra."""
    try:
        from headway.broker import LocalBroker  # noqa: PLC0415 - a session that does not use it starts faster
    except LocalBrokerError as error:
        pytest.fail(f"{error} The fixture headway_mock needs no extra and no Java.", pytrace=False)
    return LocalBroker


@pytest.fixture
def headway_topic(request: pytest.FixtureRequest) -> str:
    """Return a topic name that no other test uses. The topic does not exist yet."""
    test = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:100]
    return f"{test}-{uuid.uuid4().hex[:8]}"
