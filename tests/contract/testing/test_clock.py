"""One clock for a service under test: what it schedules and cancels, the relay, and several workers."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway import ConsumerRecord, Context, Producer, ProducerRecord, RetryLater, Scheduler, create_topic, worker
from headway.broker import LocalBroker
from headway.errors import ConfigError
from headway.testing import MockCluster, clock, run_until_idle

pytestmark = pytest.mark.kafka

Settings = dict[str, Any]
TEN_MINUTES = 600
SCHEDULER = "clock"
"""A scheduler of this file's own: a clock delivers everything that is pending, and other tests leave schedules in the
default one, one of them for each half second.
"""


@pytest.fixture
def settings(headway_broker: LocalBroker) -> Settings:
    return {"bootstrap.servers": headway_broker.bootstrap_servers}


@pytest.fixture
def topic() -> str:
    return f"reminders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def remind(topic: str) -> Callable[..., Any]:
    """A worker with a topic of its own."""

    @worker(topic, group="reminders", config={"scheduler.name": SCHEDULER})
    def remind(record: ConsumerRecord) -> str:
        return str(record.value, "utf-8")

    return remind


def order(settings: Settings, topic: str, number: str, *, pays: bool) -> None:
    """The service under test: it reminds of an order that is not paid in time."""
    with Scheduler(settings, name=SCHEDULER) as scheduler:
        scheduler.send_later(number, f"pay {number}", topic, TEN_MINUTES, id=f"{topic}-{number}")
        if pays:
            scheduler.cancel(f"id:{topic}-{number}", answered=False).stored()


@pytest.mark.slow
def test_a_reminder_that_a_service_cancels_does_not_come_and_any_other_does(
    settings: Settings, topic: str, remind: Callable[..., Any]
) -> None:
    with clock(settings, scheduler=SCHEDULER) as time:
        order(settings, topic, "1", pays=True)
        order(settings, topic, "2", pays=False)
        time.advance(TEN_MINUTES - 60)
        [before] = time.run(remind)
        assert before.results == []
        [left] = time.schedules
        assert (left.value, left.handle) == (b"pay 2", f"id:{topic}-2")
        assert abs(left.due - datetime.now(UTC) - timedelta(minutes=10)) < timedelta(minutes=1)
        time.advance(120)
        [after] = time.run(remind)
        assert (after.results, time.schedules) == (["pay 2"], [])


@pytest.mark.quick("True")
@pytest.mark.parametrize("pays", [True, False])
def test_a_run_that_advances_sees_what_the_service_has_scheduled_before_it(
    settings: Settings, topic: str, remind: Callable[..., Any], pays: bool
) -> None:
    order(settings, topic, "1", pays=pays)
    run = run_until_idle(remind, settings, advance=TEN_MINUTES + 60)
    assert run.results == ([] if pays else ["pay 1"])


@pytest.mark.slow
def test_what_recurs_comes_at_each_of_its_times_before_and_between_runs(
    settings: Settings, topic: str, remind: Callable[..., Any]
) -> None:
    with clock(settings, scheduler=SCHEDULER) as time:
        with Scheduler(settings, name=SCHEDULER) as scheduler:
            scheduler.every("0 2 * * *", "report", b"nightly", topic, id=topic)
        time.advance(2 * 86_400)
        [first] = time.run(remind)
        time.advance(86_400)
        [second] = time.run(remind)
    assert (first.results, second.results) == (["nightly"] * 2, ["nightly"])


@pytest.mark.slow
def test_several_workers_run_together_until_none_has_anything_to_do(settings: Settings) -> None:
    name = f"pictures-{uuid.uuid4().hex[:8]}"

    @worker(name, group="resize", config={"scheduler.name": SCHEDULER}, produces=[f"{name}-done"])
    def resize(record: ConsumerRecord, context: Context) -> ProducerRecord:
        if context.attempt == 1:
            raise RetryLater(3600)
        return ProducerRecord(f"{name}-done", record.value)

    @worker(f"{name}-done", group="publish", config={"scheduler.name": SCHEDULER}, produces=[f"{name}-mails"])
    def publish(record: ConsumerRecord) -> ProducerRecord:
        return ProducerRecord(f"{name}-mails", record.value, due=86_400)

    @worker(f"{name}-mails", group="mail", config={"scheduler.name": SCHEDULER})
    def mail(record: ConsumerRecord) -> str:
        return str(record.value, "utf-8")

    create_topic(settings, name)
    with clock(settings, scheduler=SCHEDULER) as time:
        with Producer(settings) as producer:
            producer.send(name, "a picture")
        ran = time.run(resize, publish, mail)
        assert [len(each.calls) for each in ran] == [1, 0, 0]
        time.advance(3600)
        ran = time.run(resize, publish, mail)
        assert [len(each.calls) for each in ran] == [1, 1, 0]
        assert [each.topic for each in ran[2].schedules] == [f"{name}-mails"]
        time.advance(86_400)
        assert time.run(resize, publish, mail)[2].results == ["a picture"]


@pytest.mark.slow
def test_a_worker_that_is_never_idle_ends_the_run(settings: Settings, remind: Callable[..., Any]) -> None:
    name = f"endless-{uuid.uuid4().hex[:8]}"

    @worker(name, group="endless", config={"scheduler.name": SCHEDULER}, produces=[name])
    def again(record: ConsumerRecord) -> ProducerRecord:
        return ProducerRecord(name, record.value)

    create_topic(settings, name)
    with clock(settings, scheduler=SCHEDULER, timeout=5) as time:
        with Producer(settings) as producer:
            producer.send(name, "1")
        with pytest.raises(TimeoutError, match=r"again was not idle within 5 s"):
            time.run(remind, again)
        with pytest.raises(ConfigError, match="is not a worker"):
            time.run(str)
        with pytest.raises(ConfigError, match="seconds is"):
            time.advance(-1)


def test_the_mock_has_no_clock(headway_mock: MockCluster) -> None:
    with (
        pytest.raises(ConfigError, match="needs delayed delivery, which the mock cluster does not support"),
        clock(headway_mock.settings),
    ):
        pass
