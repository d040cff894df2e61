"""What all tests share. The real Apache Kafka comes from `headway.testing.fixtures`, as it does for users."""

import signal

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# A test run in the background ignores Ctrl-C, and all that it starts would too; what Ctrl-C does is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs that tests start: they read their arguments when they are imported.
collect_ignore = ["broker/secrets_program.py", "spark/programs/secrets.py"]

# How long an example takes, or takes to be made, says how busy the machine is.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that take a broker, so that `-m "not kafka"` leaves them out."""
    for item in items:
        if {"headway_broker", "headway_secure_broker"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
    """Spark's tests go to one process, which alone has a session; of all others each goes where there is time."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """How tests are divided, where several processes run them."""
    return OneSpark(config, log)
