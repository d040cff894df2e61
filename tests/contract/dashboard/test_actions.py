"""The dashboard's actions on a real Kafka: what is sent again arrives once, and nothing happens unasked."""

import logging
import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from headway.broker import LocalBroker
from headway.dashboard import app
from headway.delay.relay.relay import Relay
from headway.delay.scheduler import Scheduler
from headway.priority.consumer import PriorityConsumer
from headway.priority.producer import Producer
from tests.contract.conftest import Cluster
from tests.contract.dashboard.served import until

OWN = {"Origin": "http://localhost"}


def letters_of(cluster: Cluster, topic: str, exceptions: list[str]) -> str:
    """Store a dead letter for each exception, as a parallel consumer writes them. Returns the dead-letter topic."""
    dead = f"{topic}-dead"
    cluster.create_topics([dead])
    with Producer(cluster.config({})) as producer:
        for number, exception in enumerate(exceptions):
            failure = {"exception": exception, "message": "no", "topic": f"{topic}-1", "partition": "0", "offset": "7"}
            headers = [(f"headway.error.{name}", text.encode()) for name, text in failure.items()]
            producer.send(dead, f"order {number}".encode(), "ann", partition=0, headers=headers).result(30)
    return dead


def arrived(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """Read what has arrived at level 1 of a topic, and see that nothing follows."""
    found: list[bytes] = []
    with PriorityConsumer(cluster.consumer_config(f"reads-{topic}-again")) as consumer:
        consumer.subscribe(topic)
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline
            found.extend(each.value for each in consumer.poll(0.2))
        found.extend(each.value for each in consumer.poll(1.0))
    return found


class Operator:
    """A browser that uses the forms of a dashboard. `form` is the address of a page with a form."""

    def __init__(self, page: Any, form: str) -> None:
        self.browser = TestClient(page, base_url="http://localhost", headers=OWN)
        found = until(lambda: re.search(r'name="csrf" value="(\w+)"', self.browser.get(form).text))
        self.csrf = str(found[1])

    def send(self, path: str, **fields: Any) -> str:
        """Send a form, wait until the action is over or asks, and return its page."""
        answer = self.browser.post(path, data={"csrf": self.csrf, **fields})
        assert answer.status_code == 200, answer.text
        return self.wait(str(answer.url))

    def wait(self, address: str) -> str:
        """Wait for the end, or the question, of an action."""
        page: str = until(lambda: (text := self.browser.get(address).text) and "data-over" in text and text)
        return page


@pytest.fixture
def topic(kafka_cluster: Cluster) -> str:
    return kafka_cluster.topic()


def test_one_letter_that_is_sent_again_arrives_once_and_its_user_is_logged(
    kafka_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headway.dashboard")
    dead = letters_of(kafka_cluster, topic, ["shop.Declined", "shop.Declined"])
    with app(kafka_cluster.config({}), groups=[topic], allow_actions=True) as page:
        operator = Operator(page, f"/dead/letter?topic={dead}&place=0:0")
        assert "1 dead letter sent again to" in operator.send("/dead/send-again", topic=dead, place="0:0")
        again = operator.send("/dead/send-again", topic=dead, place="0:0")
        assert "already settled" in again
    assert arrived(kafka_cluster, topic, 1) == [b"order 0"]
    told = [each.getMessage() for each in caplog.records if each.name == "headway.dashboard"]
    assert any("from testclient: Send dead letters of" in each and "1 dead letter sent again" in each for each in told)


def test_all_letters_that_match_are_sent_only_after_the_question_is_answered(
    kafka_cluster: Cluster, topic: str
) -> None:
    dead = letters_of(kafka_cluster, topic, ["shop.Declined", "shop.Unknown", "shop.Declined"])
    with app(kafka_cluster.config({}), groups=[topic], allow_actions=True) as page:
        operator = Operator(page, f"/dead/letter?topic={dead}&place=0:0")
        asked = operator.send("/dead/send-again", topic=dead, exception="shop.Declined")
        assert f"Send 2 dead letters again to {topic}-1?" in asked
        refused = operator.send("/action/answer", id=action_of(asked), answer="no")
        assert "Nothing was sent, because it was not confirmed" in refused
        asked = operator.send("/dead/send-again", topic=dead, exception="shop.Declined")
        done = operator.send("/action/answer", id=action_of(asked), answer="yes")
        assert "2 dead letters sent again to" in done
        none_left = operator.send("/dead/send-again", topic=dead, exception="shop.Declined")
        assert "Nothing was sent" in none_left
    assert sorted(arrived(kafka_cluster, topic, 2)) == [b"order 0", b"order 2"]


def test_records_are_held_and_released_with_a_rule(kafka_cluster: Cluster, topic: str) -> None:
    with app(kafka_cluster.config({}), groups=[topic], allow_actions=True) as page:
        operator = Operator(page, "/rules")
        held = {"group": topic, "where": "key = 'ann''s'", "why": "their bank is down", "minutes": "30"}
        done = operator.send("/rules/hold", **held)
        [rule] = re.findall(r"The rule (r-\w+) is stored", done)
        until(lambda: "their bank is down" in operator.browser.get("/rules").text)
        assert rule in operator.browser.get("/").text or "key = " in operator.browser.get("/").text
        assert f"The rule {rule} of {topic} is ended" in operator.send("/rules/end", group=topic, rule=rule)
        assert "has no rule" in operator.send("/rules/end", group=topic, rule=rule)
        until(lambda: "their bank is down" not in operator.browser.get("/rules").text)
        for wrong in ({"where": "colour = red"}, {"minutes": "-1"}, {"group": ""}, {"where": "x" * 4001}):
            answer = operator.browser.post("/rules/hold", data={"csrf": operator.csrf, **held, **wrong})
            assert answer.status_code == 400


def action_of(page: str) -> str:
    found = re.search(r'name="id" value="(\w+)"', page)
    assert found
    return found[1]


def test_a_schedule_is_cancelled_by_the_relay_that_has_it(headway_broker: LocalBroker, kafka_cluster: Cluster) -> None:
    config, name = kafka_cluster.config({}), f"delay-of-{kafka_cluster.topic(1)}"
    with Scheduler(config, name=name) as scheduler:
        handle = scheduler.send_later("ann", b"unpaid", f"{name}-target", 3600)
        handle.wait()
    with Relay(config, name=name).running(), app(config, groups=["none"], allow_actions=True) as page:
        next_ones = f"/schedules/next?name={name}"
        operator = Operator(page, next_ones)
        assert str(handle) in operator.browser.get(next_ones).text
        assert "1 cancelled." in operator.send("/schedules/cancel", name=name, handle=str(handle))
        assert "Nothing is pending" in operator.browser.get(next_ones).text
