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

if TYPE_CHECKING:
    from headway.broker import LocalBroker


@pytest.fixture(scope="session")
def headway_broker() -> Iterator["LocalBroker"]:
    """Yield a running Apache Kafka of one node, the same for the whole test session; its records go with it."""
    from headway.broker import LocalBroker  # noqa: PLC0415 - a test session without it starts quicker

    with LocalBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def headway_secure_broker() -> Iterator["LocalBroker"]:
    """Yield a running Apache Kafka with TLS, logins and rights, for the whole test session.

    A test that grants rights makes a user of its own with `add_user`, so that other tests do not have them.
    """
    from headway.broker import LocalBroker  # noqa: PLC0415 - a test session without it starts quicker

    with LocalBroker(secure=True) as broker:
        yield broker


@pytest.fixture
def headway_topic(request: pytest.FixtureRequest) -> str:
    """Return the name of a topic that no other test uses; it does not exist yet."""
    test = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:100]
    return f"{test}-{uuid.uuid4().hex[:8]}"
