"""What a request to cancel or reschedule returns, by whether Kafka has stored it and a relay has answered."""

from concurrent.futures import Future
from typing import Any

import pytest

from headway import ChangeRequest, Settled
from headway.core.delay.changes import read_command
from headway.core.delay.schedule import HandleParts
from headway.delay.commands import Commands
from headway.delay.topic_names import TopicNames
from headway.errors import ConfigError, DeliveryError, KafkaError, NoRelayError


def done(result: Any = None) -> "Future[Any]":
    made: Future[Any] = Future()
    made.set_result(result)
    return made


def test_stored_returns_though_no_relay_has_answered() -> None:
    ChangeRequest("1", done(), Future()).stored(0)


def test_stored_says_so_if_kafka_does_not_answer_in_time() -> None:
    with pytest.raises(KafkaError, match=r"about the schedule 1 is not stored yet: .* within 0 s\. .*try again"):
        ChangeRequest("1", Future(), Future()).stored(0)


def test_stored_raises_what_kafka_refused_the_request_for() -> None:
    refused: Future[Any] = Future()
    refused.set_exception(DeliveryError("too large"))
    with pytest.raises(DeliveryError, match="too large"):
        ChangeRequest("1", refused, Future()).stored(0)


def test_settled_returns_the_relays_answer() -> None:
    assert ChangeRequest("1", done(), done(Settled.CANCELLED)).settled(0) is Settled.CANCELLED


def test_settled_says_so_if_no_relay_answers_in_time() -> None:
    with pytest.raises(NoRelayError, match="No relay has answered within 0 s"):
        ChangeRequest("1", done(), Future()).settled(0)


def test_settled_refuses_to_wait_for_an_answer_that_was_not_asked_for() -> None:
    with pytest.raises(ConfigError, match="was sent with answered=False"):
        ChangeRequest("1", done(), None).settled(0)


async def test_a_task_waits_for_the_same() -> None:
    request = ChangeRequest("1", done(), done(Settled.RESCHEDULED))
    await request.stored_async(5)
    assert await request.settled_async(5) is Settled.RESCHEDULED
    silent = ChangeRequest("1", Future(), Future())
    with pytest.raises(KafkaError, match="not stored yet"):
        await silent.stored_async(0)
    with pytest.raises(NoRelayError, match="No relay has answered"):
        await silent.settled_async(0)


def test_a_request_that_is_not_answered_costs_no_reader_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reader(*_: object) -> None:
        pytest.fail("a reader of answers was made")

    sent: list[str] = []

    def send(topic: str, value: bytes, key: str, partition: int) -> "Future[Any]":
        sent.append(read_command(value).token)
        return done()

    monkeypatch.setattr("headway.delay.commands.TailReader", no_reader)
    stored, answer = Commands({}, TopicNames("delay"), 1, send).ask(HandleParts(0, 5, 4, "1"), None, answered=False)
    assert stored.done()
    assert answer is None
    assert sent == [""]
