"""What all tests share. The real Apache Kafka comes from `headway.testing.fixtures`, as it does for users."""

import signal

import pytest

# A test run in the background ignores Ctrl-C, and all that it starts would too; what Ctrl-C does is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever takes the broker needs Kafka: `-m "not kafka"` leaves those out. One process has the Spark session."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "headway_broker" in fixtures:
            item.add_marker("kafka")
        if "spark" in fixtures:
            item.add_marker(pytest.mark.xdist_group("spark"))
