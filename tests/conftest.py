"""What all tests share. The real Apache Kafka comes from `headway.testing.fixtures`, as it does for users."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever takes the broker needs Kafka: `-m "not kafka"` leaves those out."""
    for item in items:
        if "headway_broker" in getattr(item, "fixturenames", ()):
            item.add_marker("kafka")
