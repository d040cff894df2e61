"""The demo's step for delayed delivery."""

import pytest

from demo import flights, later
from headway.broker import LocalBroker


@pytest.mark.slow
def test_follow_ups_of_late_departures_come_once_and_not_early(headway_broker: LocalBroker) -> None:
    outcome = later.run(headway_broker.bootstrap_servers, flights.records(1000))
    assert outcome.scheduled > 200
    assert all(promise.kept for promise in outcome.promises())
