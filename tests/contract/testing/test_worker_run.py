"""A worker of a project, run as it is declared until it is idle: on the mock and on a real Apache Kafka."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway import ConsumerRecord, Producer, ProducerRecord, Scheduler, create_topic
from headway.broker import LocalBroker
from headway.errors import ConfigError, HandlerError, KafkaError
from headway.testing import MockCluster, clock, run_until_idle
from tests.contract.testing import reminders, shop

Settings = dict[str, Any]


@pytest.fixture(params=["mock", pytest.param("kafka", marks=pytest.mark.kafka)])
def settings(request: pytest.FixtureRequest) -> Settings:
    if request.param == "mock":
        mock: MockCluster = request.getfixturevalue("headway_mock")
        return mock.settings
    return kafka_of(request.getfixturevalue("headway_broker"))


def kafka_of(broker: LocalBroker) -> Settings:
    return {"bootstrap.servers": broker.bootstrap_servers}


def orders(*numbers: int) -> list[ProducerRecord]:
    return [
        ProducerRecord("orders", f'{{"number": {number}}}', f"customer {number}", level=number % 3)
        for number in numbers
    ]


@pytest.mark.quick("mock")
def test_results_failures_and_dead_letters_are_those_of_the_declaration(settings: Settings) -> None:
    began = time.monotonic()
    run = run_until_idle(shop.bill, settings, orders(1, 7, 8, 9))
    assert time.monotonic() - began < 20  # without the declared waits
    assert sorted(run.results) == ["billed 1", "billed 7"]
    by_number = {
        number: [call for call in run.calls if call.records[0].value.number == number] for number in (1, 7, 8, 9)
    }
    assert [(call.attempt, call.wait) for call in by_number[7]] == [(1, 40.0), (2, 60.0), (3, None)]
    assert [(call.attempt, call.wait) for call in by_number[8]] == [(1, 100.0), (2, 100.0), (3, None)]
    assert [type(call.error).__name__ for call in by_number[9]] == ["FatalError"]
    assert len(run.failures) == 6
    letters = {letter.key: letter for letter in run.dead_letters}
    assert letters.keys() == {b"customer 8", b"customer 9"}
    assert letters[b"customer 9"].message == "no such customer"
    assert letters[b"customer 9"].exception == "headway.errors.FatalError"
    assert (letters[b"customer 8"].attempts, letters[b"customer 8"].value) == (3, b'{"number": 8}')
    assert {call.records[0].level for call in run.calls} == {0, 1, 2}


def test_a_run_sees_nothing_of_the_runs_before_it(settings: Settings) -> None:
    for _ in range(2):
        run = run_until_idle(shop.bill, settings, orders(1, 9))
        assert run.results == ["billed 1"]
        assert len(run.dead_letters) == 1


@pytest.mark.quick("kafka")
def test_outputs_are_listed_and_stored_and_the_lifespan_has_run(settings: Settings) -> None:
    run = run_until_idle(shop.convert, settings, [ProducerRecord("prices", "1.5", "book")])
    assert [(each.topic, each.value, each.key) for each in run.outputs] == [("converted", "3.0", b"book")]


@pytest.mark.quick("mock")
def test_batches_and_coroutines_run_as_declared(settings: Settings) -> None:
    run = run_until_idle(shop.count, settings, [ProducerRecord("events", str(i), "key") for i in range(20)])
    assert sum(run.results) == 20
    assert [len(call.records) for call in run.calls] == run.results
    assert max(run.results) > 1


@pytest.mark.quick("mock")
def test_a_worker_of_processes_runs_on_threads(settings: Settings) -> None:
    run = run_until_idle(shop.compute, settings, [ProducerRecord("jobs", str(i)) for i in range(5)])
    assert sorted(run.results) == [0, 1, 4, 9, 16]


@pytest.mark.quick("mock")
def test_a_record_that_fails_for_good_without_a_dead_letter_topic_ends_the_run(settings: Settings) -> None:
    with pytest.raises(HandlerError):
        run_until_idle(shop.lose, settings, [ProducerRecord("lost", "1")])


def test_a_worker_that_is_never_idle_is_told_with_its_last_error(headway_mock: MockCluster) -> None:
    with pytest.raises(TimeoutError, match=r"fail was not idle within 4 s: 0 records are done, 1 were stored.*never"):
        run_until_idle(shop.fail, headway_mock.settings, [ProducerRecord("endless", "1")], timeout=4, skip_waits=False)


@pytest.mark.quick("mock")
def test_without_records_a_worker_is_idle_at_once(settings: Settings) -> None:
    assert run_until_idle(shop.bill, settings).calls == []


@pytest.mark.kafka
def test_what_is_tried_again_later_is_a_schedule(headway_broker: LocalBroker) -> None:
    run = run_until_idle(shop.call_later, kafka_of(headway_broker), [ProducerRecord("calls", "ring", "customer")])
    [schedule] = run.schedules
    assert (schedule.topic, schedule.key, schedule.value) == ("calls", b"customer", b"ring")
    assert abs(schedule.due - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)


@pytest.mark.slow
@pytest.mark.kafka
def test_a_worker_that_writes_to_its_own_topic_runs_until_nothing_comes_any_more(headway_broker: LocalBroker) -> None:
    run = run_until_idle(shop.step, kafka_of(headway_broker), [ProducerRecord("steps", "4")])
    assert [int(call.records[0].value) for call in run.calls] == [4, 3, 2, 1]
    assert [each.value for each in run.outputs] == ["3", "2", "1"]


def test_the_mock_says_that_it_has_no_delay(headway_mock: MockCluster) -> None:
    with pytest.raises(
        ConfigError, match=r"^RetryLater in the handler needs delayed delivery, .* Use the fixture headway_broker"
    ):
        run_until_idle(shop.call_later, headway_mock.settings, [ProducerRecord("calls", "ring")])


def test_what_is_no_worker_is_refused(headway_mock: MockCluster) -> None:
    with pytest.raises(ConfigError, match="is not a worker"):
        run_until_idle(lambda record: None, headway_mock.settings)


def test_on_the_mock_a_run_takes_less_than_a_second(headway_mock: MockCluster) -> None:
    began = time.monotonic()
    run_until_idle(shop.bill, headway_mock.settings, orders(1))
    assert time.monotonic() - began < 3  # 0.2 s on a quiet machine


def test_a_topic_is_created_with_its_levels_in_one_call(settings: Settings, headway_topic: str) -> None:
    names = [f"{headway_topic}-{level}" for level in range(3)]
    assert create_topic(settings, headway_topic, levels=3, partitions=2) == names
    with pytest.raises(KafkaError, match="already"):
        create_topic(settings, headway_topic, levels=3)
    assert create_topic(settings, headway_topic, levels=4, exist_ok=True) == [*names, f"{headway_topic}-3"]
    assert create_topic(settings, f"{headway_topic}-dead") == [f"{headway_topic}-dead"]
    with Producer(settings) as producer:
        assert producer.send(names[2], b"one", partition=1).result(10).partition == 1


@pytest.mark.parametrize("options", [{"levels": 0}, {"partitions": 0}, {"replication_factor": 0}, {"levels": True}])
def test_a_topic_out_of_bounds_is_refused(headway_mock: MockCluster, options: Any) -> None:
    with pytest.raises(ConfigError):
        create_topic(headway_mock.settings, "orders", **options)
    with pytest.raises(ConfigError, match="This is not a valid name in Kafka"):
        create_topic(headway_mock.settings, "our orders")


def test_a_handler_of_records_is_a_function_to_call() -> None:
    from headway.testing import context, record  # noqa: PLC0415

    given = record({"number": 1}, worker=shop.bill, level=2)
    assert isinstance(given, ConsumerRecord)
    assert shop.bill(given, context()) == "billed 1"


@pytest.mark.quick("mock")
def test_a_worker_of_given_levels_that_begins_at_the_end_sees_what_is_stored_now(settings: Settings) -> None:
    records = [ProducerRecord("clicks", "1"), ProducerRecord("payments", "2")]
    for _ in range(2):
        run = run_until_idle(shop.by_level, settings, records)
        assert sorted(run.results) == [("clicks", 0), ("payments", 1)]


def test_a_record_that_is_due_later_is_refused(headway_mock: MockCluster) -> None:
    with pytest.raises(ConfigError, match="Leave out due"):
        run_until_idle(shop.by_level, headway_mock.settings, [ProducerRecord("clicks", "1", due=5)])


@pytest.mark.kafka
def test_an_advanced_clock_delivers_what_is_due_later_in_its_order(headway_broker: LocalBroker) -> None:
    given = [ProducerRecord("shipments", "early", "a"), ProducerRecord("shipments", "late", "b", due=5400)]
    run = run_until_idle(reminders.ship, kafka_of(headway_broker), given, advance=6 * 3600, timeout=90)
    assert [(call.records[0].value, call.attempt) for call in run.calls] == [
        (b"early", 1),
        (b"early", 2),  # an hour later
        (b"late", 1),  # an hour and a half after the beginning
        (b"late", 2),
        (b"early", 3),
        (b"late", 3),
    ]
    assert (run.results, run.schedules) == (["early at attempt 3", "late at attempt 3"], [])


@pytest.mark.slow
@pytest.mark.kafka
def test_a_schedule_that_is_cancelled_before_its_time_does_not_come(headway_broker: LocalBroker) -> None:
    settings = kafka_of(headway_broker)
    orders = [ProducerRecord("carts", "ordered 1"), ProducerRecord("carts", "ordered 2")]
    paid = ProducerRecord("carts", "paid 1", due=2 * 86_400)
    run = run_until_idle(reminders.remind, settings, [*orders, paid], advance=4 * 86_400, timeout=90)
    values = [call.records[0].value.decode() for call in run.calls]
    assert sorted(values[:2]) == ["ordered 1", "ordered 2"]
    assert sorted(values[2:4]) == ["reminder 1", "reminder 2"]
    assert values[4:] == ["paid 1", "last call 2"]
    assert run.schedules == []


@pytest.mark.slow
@pytest.mark.kafka
def test_what_is_due_beyond_the_advance_stays_a_schedule(headway_broker: LocalBroker) -> None:
    run = run_until_idle(
        reminders.remind,
        kafka_of(headway_broker),
        [ProducerRecord("carts", "ordered 3")],
        advance=86_400 + 60,
        timeout=90,
    )
    assert [call.records[0].value for call in run.calls] == [b"ordered 3", b"reminder 3"]
    [left] = run.schedules
    assert (left.value, left.handle) == (b"last call 3", "id:3")
    assert abs(left.due - datetime.now(UTC) - timedelta(days=3)) < timedelta(minutes=2)


@pytest.mark.slow
@pytest.mark.kafka
def test_schedules_with_an_id_are_those_of_the_run_and_no_others(headway_broker: LocalBroker) -> None:
    settings = kafka_of(headway_broker)
    run_until_idle(reminders.remind, settings, [ProducerRecord("carts", "ordered 8")])  # no relay makes it a schedule
    run = run_until_idle(reminders.remind, settings, [ProducerRecord("carts", "ordered 9")], advance=60, timeout=90)
    assert [each.value for each in run.schedules] == [b"reminder 9", b"last call 9"]
    assert run.schedules[1].handle == "id:9"


@pytest.mark.slow
@pytest.mark.kafka
def test_what_an_earlier_run_has_left_to_come_does_not_come_into_this_one(headway_broker: LocalBroker) -> None:
    settings = kafka_of(headway_broker)
    with clock(settings), Scheduler(settings) as scheduler:  # which is a run, and leaves them
        scheduler.send_later("10", "an earlier one for tomorrow", "carts", 86_400).wait(30)
        for tenths in range(1, 100, 2):  # some of them while the other run lasts, however long it takes
            scheduler.send_later("10", "an earlier one", "carts", tenths / 10).wait(30)
            scheduler.send_later("10", "one with an id", "carts", tenths / 10, id=f"earlier {tenths}").wait(30)
    run_until_idle(reminders.remind, settings)  # creates the topic, if no test before has
    run = run_until_idle(
        reminders.remind, settings, [ProducerRecord("carts", "ordered 10")], advance=2 * 86_400, timeout=90
    )
    assert [call.records[0].value for call in run.calls] == [b"ordered 10", b"reminder 10"]
    assert [each.value for each in run.schedules] == [b"last call 10"]


@pytest.mark.slow
@pytest.mark.kafka
def test_a_recurring_schedule_comes_as_often_as_the_clock_passes_its_times(headway_broker: LocalBroker) -> None:
    settings = kafka_of(headway_broker)
    run_until_idle(reminders.count, settings)  # creates the topic
    run = run_until_idle(reminders.count, settings, [ProducerRecord("hours", "begin")], advance=5.5 * 3600, timeout=90)
    assert [call.records[0].value for call in run.calls] == [b"begin", *[b"an hour"] * 5]
    assert [each.value for each in run.schedules] == [b"an hour"]


def test_the_mock_and_other_values_have_no_clock_to_advance(headway_mock: MockCluster) -> None:
    with pytest.raises(ConfigError, match=r"advance= needs delayed delivery, which the mock cluster does not support"):
        run_until_idle(shop.bill, headway_mock.settings, advance=5)
    for value in (-1, float("inf"), "5"):
        with pytest.raises(ConfigError, match="advance is"):
            run_until_idle(shop.bill, headway_mock.settings, advance=value)  # type: ignore[arg-type]


def test_a_record_that_fails_for_ever_ends_the_run_soon(headway_mock: MockCluster) -> None:
    with pytest.raises(TimeoutError, match=r"not idle after 100 attempts at one record: .*ValueError\('never'\)"):
        run_until_idle(shop.fail, headway_mock.settings, [ProducerRecord("endless", "1")], timeout=600)


def test_a_record_for_a_topic_that_the_worker_does_not_read_is_refused(headway_mock: MockCluster) -> None:
    with pytest.raises(ConfigError, match=r"does not read oders-1, only orders-0, orders-1, orders-2"):
        run_until_idle(shop.bill, headway_mock.settings, [ProducerRecord("oders", "1", level=1)])
    with pytest.raises(ConfigError, match="does not read jobs-0, only jobs"):
        run_until_idle(shop.compute, headway_mock.settings, [ProducerRecord("jobs-0", "1")])


@pytest.mark.quick("mock")
def test_what_was_stored_is_handled_in_the_order_of_its_levels(settings: Settings) -> None:
    given = [ProducerRecord("lines", f"{level}", level=level) for level in (0, 1, 2) for _ in range(5)]
    run = run_until_idle(shop.in_turn, settings, given, partitions=1)
    assert run.results == [2] * 5 + [1] * 5 + [0] * 5
