"""pytest fixtures, there as soon as Headway is installed.

    def test_orders_arrive(headway_broker, headway_topic):
        config = {"bootstrap.servers": headway_broker.bootstrap_servers}
        ...

A broker is imported and started only when a test asks for it.
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
    """Yield librdkafka's mock cluster, a new and empty one for each test, in milliseconds and without Java.

    It has no delayed delivery, no rights and no timestamps; see `docs/testing.md`.
    """
    from headway.kafka.binding.mock_cluster import MockCluster  # noqa: PLC0415 - a session without it starts quicker

    with MockCluster() as mock:
        yield mock


KEEPS_OLD_RECORDS = {"log.retention.ms": "-1"}
"""Else Kafka deletes, every five minutes, what a test sends with a time more than a week ago."""


@pytest.fixture(scope="session")
def headway_broker() -> Iterator["LocalBroker"]:
    """Yield a running Apache Kafka of one node, the same for the whole test session; its records go with it."""
    with _local_broker()(properties=KEEPS_OLD_RECORDS) as broker:
        yield broker


@pytest.fixture(scope="session")
def headway_secure_broker() -> Iterator["LocalBroker"]:
    """Yield a running Apache Kafka with TLS, logins and rights, for the whole test session.

    A test that grants rights makes a user of its own with `add_user`, so that other tests do not have them.
    """
    with _local_broker()(secure=True, properties=KEEPS_OLD_RECORDS) as broker:
        yield broker


def _local_broker() -> "type[LocalBroker]":
    """Import the broker, or fail the test with the sentence that names the extra."""
    try:
        from headway.broker import LocalBroker  # noqa: PLC0415 - a test session without it starts quicker
    except LocalBrokerError as error:
        pytest.fail(f"{error} The fixture headway_mock needs no extra and no Java.", pytrace=False)
    return LocalBroker


@pytest.fixture
def headway_topic(request: pytest.FixtureRequest) -> str:
    """Return the name of a topic that no other test uses; it does not exist yet."""
    test = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:100]
    return f"{test}-{uuid.uuid4().hex[:8]}"
