"""Fixtures for pytest, which are available in every test session once Headway is installed.

    def test_orders_arrive(headway_broker, headway_topic):
        config = {"bootstrap.servers": headway_broker.bootstrap_servers}
        ...

A broker is imported and started only if a test uses its fixture.
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
    """Yield librdkafka's mock cluster, new and empty for each test.

    The mock starts in milliseconds and needs no Java. It does not support delayed delivery, permissions or timestamps;
    see `docs/testing.md`.
    """
    from headway.kafka.binding.mock_cluster import MockCluster  # noqa: PLC0415 - sessions without the mock start faster

    with MockCluster() as mock:
        yield mock


KEEPS_OLD_RECORDS = {"log.retention.ms": "-1"}
"""With Kafka's default, records that a test sends with a timestamp older than a week are deleted within minutes."""


@pytest.fixture(scope="session")
def headway_broker() -> Iterator["LocalBroker"]:
    """Yield a running Apache Kafka with one node, which all tests of the session share.

    Its records are deleted at the end of the session.
    """
    with _local_broker()(properties=KEEPS_OLD_RECORDS) as broker:
        yield broker


@pytest.fixture(scope="session")
def headway_secure_broker() -> Iterator["LocalBroker"]:
    """Yield a running Apache Kafka with TLS, logins and permissions, which all tests of the session share.

    A test that grants permissions should create its own user with `add_user`, so that other tests do not get them.
    """
    with _local_broker()(secure=True, properties=KEEPS_OLD_RECORDS) as broker:
        yield broker


def _local_broker() -> "type[LocalBroker]":
    """Import the class `LocalBroker`. If an extra is missing, fail the test with a sentence that names it."""
    try:
        from headway.broker import LocalBroker  # noqa: PLC0415 - sessions without a broker start faster
    except LocalBrokerError as error:
        pytest.fail(f"{error} The fixture headway_mock needs no extra and no Java.", pytrace=False)
    return LocalBroker


@pytest.fixture
def headway_topic(request: pytest.FixtureRequest) -> str:
    """Return the name of a topic that no other test uses and that does not exist yet."""
    test = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:100]
    return f"{test}-{uuid.uuid4().hex[:8]}"
