"""The demo's step for priority, on a machine that sends less than was planned."""

import time
from collections.abc import Iterator

import pytest

from demo import flights, priority
from demo.evidence import promises
from headway.broker import LocalBroker

RECORDS, PER_S = 4_000, 1_500


def slowly() -> Iterator[flights.FlightRecord]:
    """The flights, as a slow machine reads them."""
    for number, flight in enumerate(flights.records(RECORDS)):
        if number % 15 == 0:
            time.sleep(15 / PER_S)
        yield flight


@pytest.mark.slow
def test_a_machine_that_sends_a_tenth_of_what_was_planned_has_a_backlog_and_shows_priority(
    headway_broker: LocalBroker,
) -> None:
    plan = priority.Plan(RECORDS, at_least_s=0.4)

    outcome = priority.run(headway_broker.bootstrap_servers, slowly(), plan, "fair", topic="slowly-sent")

    assert outcome.sent_per_s < plan.sent_per_s / 5
    made = promises(outcome.evidence, outcome.sent, conserves_work=True)
    assert {promise.promised: promise.kept for promise in made} == dict.fromkeys((each.promised for each in made), True)
