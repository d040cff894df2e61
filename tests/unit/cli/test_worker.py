"""Workers without Kafka: how they are declared, found, started again, and what they log."""

import functools
import hashlib
import json
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from headway import Batches, ConsumerRecord, Ordering, Retries, worker
from headway.cli.workers import messages
from headway.cli.workers.logs import JsonLog, TextLog, handled_record
from headway.cli.workers.messages import LogStyle, MemberReport, MemberTask, Warn, from_line, order_from_line, to_line
from headway.cli.workers.progress_line import WorkersProgressLine
from headway.cli.workers.required_topics import require_topics
from headway.core.engine.suspects import RecordId, RunningAttempt, Suspects
from headway.core.restart_policy import MOST_DEATHS, RestartPolicy
from headway.errors import ConfigError
from headway.records.record_types import RecordSource
from headway.workers.find_workers import find_workers
from headway.workers.values import Value
from headway.workers.worker import Worker, worker_of


@dataclass
class Customer:
    name: str


@dataclass
class Order:
    number: int
    amount: float
    customer: Customer | None = None


class Whatever:
    """A class that is no dataclass, made of more than bytes."""

    def __init__(self, first: str, second: str) -> None: ...


def declared(topics: Any = "orders", **options: Any) -> Worker:
    @worker(topics, **{"group": "billing"} | options)
    def bill(record: ConsumerRecord, context: object) -> None: ...

    found = worker_of(bill)
    assert found is not None
    return found


def read(value: Value, raw: bytes | None) -> Any:
    reader = declared(value=value).reader
    assert reader is not None
    return reader(raw)


# The declaration


def test_a_decorated_function_stays_an_ordinary_function() -> None:
    def double(record: Any, context: object) -> Any:
        return 2 * record

    decorated = worker("orders", group="billing")(double)
    assert decorated is double
    assert decorated(21, None) == 42


def test_what_is_no_worker_has_no_options() -> None:
    assert worker_of(test_what_is_no_worker_has_no_options) is None
    assert worker_of(42) is None


def test_a_decorator_on_top_is_part_of_the_handler() -> None:
    def doubled(handler: Callable[..., int]) -> Callable[..., int]:
        return functools.wraps(handler)(lambda record, context: 2 * handler(record, context))

    @doubled
    @worker("orders", group="billing")
    def bill(record: Any, context: object) -> int:
        return int(record)

    found = worker_of(bill)
    assert found is not None
    assert found.handler(21, None) == 42


def test_options_are_those_of_the_parallel_consumer_and_the_command_line_has_the_last_word() -> None:
    servers = {"bootstrap.servers": "localhost:1", "log_level": 0}
    found = declared(ordering=Ordering.PARTITION, max_concurrency=5, retries=Retries(), dead_letter_topic="dead")
    assert found.options.ordering is Ordering.PARTITION
    assert found.options.dead_letter_topic == "dead"
    with pytest.raises(ConfigError, match="max_concurrency is 0"):
        found.consumer(servers, max_concurrency=0)
    found.consumer(servers, max_concurrency=9).close()


def test_of_an_id_of_a_member_each_process_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MagicMock()
    monkeypatch.setattr("headway.workers.worker.ParallelConsumer", made)
    found = declared(config={"group.instance.id": "billing"})
    for index in range(2):
        found.consumer({}, index=index)
    found.consumer({"group.instance.id": "house-7"}, index=3)
    assert [call.args[0]["group.instance.id"] for call in made.call_args_list] == [
        "billing-0",
        "billing-1",
        "house-7-3",
    ]


@pytest.mark.parametrize(
    ("topics", "levels", "kafka_topics"),
    [
        ("orders", None, ["orders"]),
        (["orders", "^shop_.*"], None, ["orders"]),
        ("orders", 2, ["orders-0", "orders-1"]),
        ({"payments": 1, "clicks": 0}, 2, ["clicks", "payments"]),
    ],
)
def test_the_kafka_topics_are_those_of_the_levels(topics: Any, levels: int | None, kafka_topics: list[str]) -> None:
    assert declared(topics, levels=levels).kafka_topics() == kafka_topics


@pytest.mark.parametrize(
    ("topics", "options", "sentence"),
    [
        ("", {}, "needs the name of a topic"),
        ([], {}, "needs the name of a topic"),
        ([print], {}, "needs the name of a topic"),
        ("orders", {"group": ""}, "group.id is ''; it must be a non-empty string"),
        ("orders", {"levels": 0}, "levels is 0; it must be a whole number, at least 1"),
        ("orders", {"levels": "3"}, "levels is '3'"),
        ({"payments": 2}, {"levels": 2}, "The level of the topic 'payments' is 2"),
        ("orders", {"config": {"max.poll.records": 5}}, "max.poll.records cannot be used here"),
        ("orders", {"value": Whatever}, "value=Whatever cannot be called with the bytes of a record. Give a dataclass"),
        ("orders", {"value": 5}, "value=5 cannot be called"),
        (
            "orders",
            {"hand_over_timeuot": 5},
            "A worker has no option 'hand_over_timeuot'. Did you mean 'hand_over_timeout'?",
        ),
        (
            "orders",
            {"on_assign": len, "on_revoke": id, "on_commit": len},
            "on_commit is len, which cannot be called with (error",
        ),
        ("orders", {"produces": 5}, "produces has 5; it must be the name of a Kafka topic, or a list"),
        ("orders", {"produces": []}, "produces has []; it must be"),
        ("orders", {"produces": ["bills", "no topic"]}, "produces has 'no topic'"),
        ("orders", {"on_output": print}, "on_output is set, but this worker has no outputs. Name their topics"),
        ("orders", {"produces": "bills", "on_output": len}, "on_output is len, which cannot be called with (input, "),
        ("orders", {"produces": "bills", "on_result": print}, "either sent or passed to"),
        ("orders", {"on_result": 5}, "on_result is 5; it must be a function"),
        ("orders", {"batches": 100}, "batches is 100; it must be Batches, such as Batches(100)"),
        ("orders", {"concurrency": 5}, "A worker has no option 'concurrency'. Did you mean 'max_concurrency'?"),
        ("orders", {"xyz": 5}, "Its options are adaptive, batches, "),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_a_sentence(topics: Any, options: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        declared(topics, **options)
    assert sentence in str(refused.value)


def test_only_a_function_can_be_a_worker_and_only_once() -> None:
    with pytest.raises(ConfigError, match="@worker can decorate only functions"):
        worker("orders", group="billing")(Whatever)
    once = worker("orders", group="billing")(lambda record, context: None)
    with pytest.raises(ConfigError, match="is a worker already"):
        worker("clicks", group="billing")(once)


def test_a_handler_of_which_a_call_would_run_nothing_is_refused_when_it_is_declared() -> None:
    def yields(record: ConsumerRecord, context: object) -> Iterator[int]:
        yield 1

    async def yields_later(record: ConsumerRecord, context: object) -> Any:
        yield 1

    for handler in (yields, yields_later):
        with pytest.raises(
            ConfigError,
            match=f"The handler .*{handler.__name__} is a generator function, because it yields. Only run_and",
        ):
            worker("orders", group="billing")(handler)


def test_with_outputs_a_handler_may_yield_and_what_it_yields_is_within_the_call() -> None:
    def yields(record: ConsumerRecord) -> Iterator[int]:
        yield 1
        yield 2

    found = worker_of(worker("orders", group="billing", produces=["bills", "notices-*", "*"])(yields))
    assert found is not None
    assert found.call(None, None) == [1, 2]
    assert list(yields(None)) == [1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "run"),
    [
        ({}, lambda consumer, handler: consumer.run.assert_called_once_with(handler, batches=None)),
        (
            {"batches": Batches(9, 0.5, 3)},
            lambda consumer, handler: consumer.run.assert_called_once_with(handler, batches=Batches(9, 0.5, 3)),
        ),
        (
            {"produces": "bills", "on_output": print, "batches": Batches(9)},
            lambda consumer, handler: consumer.run_and_produce.assert_called_once_with(
                handler, print, batches=Batches(9)
            ),
        ),
        (
            {"on_result": print},
            lambda consumer, handler: (
                consumer.results.assert_called_once_with(handler, batches=None),
                consumer.results.return_value.for_each.assert_called_once_with(print),
            ),
        ),
    ],
)
def test_a_worker_runs_as_it_was_declared(options: dict[str, Any], run: Callable[..., Any]) -> None:
    consumer, found = MagicMock(), declared(**options)
    found.run(consumer)
    run(consumer, found.handler)


def test_an_executor_that_does_not_run_the_handler_is_refused_when_it_is_declared() -> None:
    async def bill(record: ConsumerRecord, context: object) -> None: ...

    with pytest.raises(ConfigError, match="executor='process' cannot run an async def"):
        worker("orders", group="billing", executor="process")(bill)
    with pytest.raises(ConfigError, match="executor='async' cannot run a plain function"):
        declared(executor="async")


def test_what_a_decorator_on_top_makes_of_a_handler_is_checked_too() -> None:
    @worker("orders", group="billing")
    def bill(record: ConsumerRecord, context: object) -> None: ...

    @functools.wraps(bill)
    def yields(record: ConsumerRecord, context: object) -> Iterator[None]:
        yield bill(record, context)

    with pytest.raises(ConfigError, match=r"is a generator function, because it yields. Only run_and_produce"):
        worker_of(yields)


# Values


def test_json_becomes_a_dataclass_and_those_in_it() -> None:
    raw = b'{"number": 7, "amount": 9, "customer": {"name": "ann"}, "of a later version": 1}'
    assert read(Order, raw) == Order(7, 9.0, Customer("ann"))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"number": "7", "amount": 9}', r"Expected `int`, got `str` - at `\$.number`"),
        (b'{"number": 7}', "missing required field `amount`"),
        (b"{", "truncated"),
        (None, "it is null instead of Order"),
    ],
)
def test_what_is_no_such_json_is_an_error_that_says_why(raw: bytes | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(Order, raw)


def test_what_reads_json_can_go_to_another_process() -> None:
    reader = pickle.loads(pickle.dumps(declared(value=Order).reader))  # noqa: S301 - our own bytes
    assert reader(b'{"number": 7, "amount": 9}') == Order(7, 9.0)


def test_any_function_of_the_bytes_reads_a_value() -> None:
    assert read(json.loads, b"[1]") == [1]
    assert read(int, b"12") == 12
    assert read(lambda raw: raw.decode(), b"text") == "text"


def test_a_dataclass_that_json_cannot_be_is_refused_when_it_is_declared() -> None:
    @dataclass
    class Unreadable:
        part: "Missing"  # type: ignore[name-defined]  # noqa: F821 - that is what is tested

    with pytest.raises(ConfigError, match=r"Unreadable cannot be read from JSON: name 'Missing' is not defined"):
        declared(value=Unreadable)


# Finding


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with modules in it."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    declare = '@worker("{topic}", group="{name}")\ndef {name}(record, context): ...\n'
    bill, ship = (declare.format(topic="orders", name=name) for name in ("bill", "ship"))
    (tmp_path / "billing_w.py").write_text(f"from headway import worker\n{bill}{ship}def helper(): ...\n")
    (tmp_path / "other_w.py").write_text("from billing_w import bill\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").is_relative_to(tmp_path):
            del sys.modules[name]


def test_a_module_stands_for_all_its_own_workers(here: Path) -> None:
    assert list(find_workers(["billing_w"])) == ["billing_w:bill", "billing_w:ship"]
    assert list(find_workers(["billing_w:ship", "other_w:bill"])) == ["billing_w:ship", "other_w:bill"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("biling_w", "There is no module biling_w, because it is neither in "),
        ("billing_w.more", "There is no module billing_w.more"),
        ("billing_w.py", "is a file. Give the name of the module, as Python imports it: `headway worker billing_w`"),
        ("./shop/billing.py", "`headway worker shop.billing`"),
        ("billing_w:bil", "billing_w has no 'bil'. Did you mean billing_w:bill?"),
        ("billing_w:xyz", "billing_w has no 'xyz'. Its workers are bill, ship."),
        ("billing_w:helper", "billing_w:helper is not a worker. Decorate the function"),
        ("other_w", "defines no worker. Decorate a handler"),
        ("other_w:xyz", "It has no worker."),
    ],
)
def test_what_cannot_be_found_is_one_sentence(here: Path, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_workers([name])
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1\n1/0", r"broken_w cannot be imported \(.*broken_w.py, line 2\): ZeroDivisionError: division by zero."),
        ("import nopackage", "line 1.*ModuleNotFoundError: No module named 'nopackage'"),
        ("x = (", r"line 1\): SyntaxError: '\(' was never closed\. Correct the error"),
        ("raise SystemExit('no')", "SystemExit: no"),
        ("from headway import worker\n@worker('', group='g')\ndef f(): ...", r"line 2\): A worker needs the name"),
    ],
)
def test_an_error_in_the_module_is_one_sentence_with_its_place(here: Path, text: str, sentence: str) -> None:
    (here / "broken_w.py").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        find_workers(["broken_w"])


# Topics


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"levels": None},
            "Kafka has no topic orders, which m:f reads. There are topics for 2 levels of orders. Declare levels=2.",
        ),
        ({"topics": "clicks"}, "Kafka has no topic clicks, which m:f reads. Create it with"),
        ({"topics": "clicks", "levels": 3}, "`headway topics create clicks --levels 3`"),
        (
            {"levels": 3},
            "orders-2 is missing. Declare levels=2, or run `headway topics create orders-2 --partitions 1`.",
        ),
        ({"levels": 2, "dead_letter_topic": "dead"}, "Kafka has no topic dead, where dead letters of m:f go."),
    ],
)
def test_a_topic_that_is_missing_is_told_with_what_to_do(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        require_topics({"m:f": declared(**options)}, {"m:f": {"orders-0": 1, "orders-1": 1}})
    assert sentence in str(refused.value)


def test_a_topic_of_outputs_that_is_missing_is_told_and_a_beginning_of_names_is_not_looked_for() -> None:
    found = {"shop:bill": declared(produces=["bills-*", "notices"])}
    with pytest.raises(ConfigError, match=r"Kafka has no topic notices, where outputs of shop:bill go\. Create it"):
        require_topics(found, {"shop:bill": {"orders": 1}})
    with pytest.raises(ConfigError, match=r"outputs of shop:bill go\. Did you mean notice\? Create it"):
        require_topics(found, {"shop:bill": {"orders": 1, "notice": 1}})
    require_topics(found, {"shop:bill": {"orders": 1, "notices": 1}})


def test_two_workers_that_would_split_their_records_are_refused() -> None:
    one, other, audit = declared(levels=1), declared(levels=1, max_concurrency=2), declared(levels=1, group="audit")
    seen = {"m:f": {"orders-0": 1}, "m:g": {"orders-0": 1}}
    with pytest.raises(ConfigError, match="m:f and m:g both read orders-0 in the group billing"):
        require_topics({"m:f": one, "m:g": other}, seen)
    require_topics({"m:f": one, "m:g": audit}, seen)


# Starting again


def test_delays_grow_until_it_is_given_up_and_a_long_life_starts_anew() -> None:
    deaths = RestartPolicy()
    assert [deaths.delay(3.0) for _ in range(MOST_DEATHS)] == [0.5, 1.0, 2.0, 4.0, None]
    deaths = RestartPolicy()
    assert [deaths.delay(lived) for lived in (1, 1, 500, 1)] == [0.5, 1.0, 0.5, 1.0]


def test_deaths_while_records_ran_make_the_waits_longer_and_give_nobody_up() -> None:
    deaths = RestartPolicy()
    assert [deaths.delay(3.0, by_records=True) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert [deaths.delay(3.0) for _ in range(MOST_DEATHS)] == [30.0] * (MOST_DEATHS - 1) + [None]


def test_messages_go_through_a_line_as_they_are() -> None:
    suspects = Suspects().died([RunningAttempt(RecordId("orders", 1, 2, 3), 4, 5)], "ended with exit code 7", 6.0)
    for said in (messages.Order.STOP, messages.Order.DRAIN, Warn(suspects)):
        assert order_from_line(to_line(said)) == said
    job = MemberTask("m:f", 1, {"sasl.password": "hunter2"}, None, 30.0, LogStyle("json"))
    assert from_line(to_line(job), MemberTask) == job
    assert to_line(job).count(b"\n") == 1
    assert "hunter2" not in repr(job)


# What is shown


class Message:
    """A message as the Kafka client hands it over."""

    def topic(self) -> str:
        return "orders-2"

    def partition(self) -> int:
        return 4

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return b"customer\x1b 7"


RECORD = ConsumerRecord(Message(), RecordSource(2, "-2", lambda _: None, lambda _: None), None)  # type: ignore[arg-type]


def event(message: str, *args: Any, **fields: Any) -> logging.LogRecord:
    return logging.getLogger("shop").makeRecord("shop", logging.WARNING, "f", 1, message, args, None, extra=fields)


def test_an_event_as_json_has_its_source_its_record_and_what_it_was_given() -> None:
    found = json.loads(JsonLog("m:f", 3, LogStyle()).format(event("%r\nis late", RECORD, customer="ann", of=Whatever)))
    assert found.pop("timestamp").endswith("+00:00")
    assert found.pop("pid") > 0
    assert found.pop("message").endswith("\nis late")
    assert found == {
        "level": "warning",
        "logger": "shop",
        "worker": "m:f",
        "process": 3,
        "topic": "orders-2",
        "partition": 4,
        "offset": 7,
        "key": "customer\\x1b 7",
        "customer": "ann",
        "of": str(Whatever),
    }


def test_what_a_handler_logs_names_the_record_it_handles() -> None:
    token = handled_record.set(RECORD)
    line = TextLog("m:f[3]", LogStyle()).format(event("late"))
    handled_record.reset(token)
    assert line.endswith(" WARNING m:f[3] shop: late [orders-2, partition 4, offset 7, key customer\\x1b 7]")
    assert "partition" not in TextLog("m:f[3]", LogStyle()).format(event("late"))


def test_keys_are_hashed_or_hidden_in_logs_by_choice() -> None:
    token = handled_record.set(RECORD)
    hashed, hidden = (TextLog("m:f[3]", LogStyle(keys=keys)).format(event("late")) for keys in ("hashed", "hidden"))
    as_json = json.loads(JsonLog(None, None, LogStyle(keys="hashed")).format(event("late")))
    handled_record.reset(token)
    digits = hashlib.sha256(b"customer\x1b 7").hexdigest()[:12]
    assert hashed.endswith(f"offset 7, key {digits}]")
    assert as_json["key"] == digits
    assert hidden.endswith("offset 7]")


def test_what_a_handler_of_batches_logs_names_the_first_record_and_how_many_there_are() -> None:
    token = handled_record.set([RECORD] * 12)
    line = TextLog("m:f[3]", LogStyle()).format(event("late"))
    found = json.loads(JsonLog(None, None, LogStyle()).format(event("late")))
    handled_record.reset(token)
    assert line.endswith(" late [orders-2, partition 4, offset 7, key customer\\x1b 7 and 11 more]")
    assert (found["topic"], found["partition"], found["offset"], found["records"]) == ("orders-2", 4, 7, 12)


def test_an_error_is_a_field_of_json_and_below_a_line_of_text() -> None:
    try:
        raise ValueError("it is broken")
    except ValueError as error:
        failed = event("failed")
        failed.exc_info = (type(error), error, error.__traceback__)
    text = JsonLog(None, None, LogStyle()).format(failed)
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: it is broken")
    assert TextLog("supervisor", LogStyle(over_progress=True)).format(failed).startswith("\r\x1b[K")


def test_progress_is_the_sum_of_all_members_and_a_rate() -> None:
    line = WorkersProgressLine(sys.stderr)
    assert line.text([MemberReport(10, 0, 2, 5)], 1, now=0.0) == "10 done, 0/s, 2 running, 5 waiting; 1 process"
    text = line.text([MemberReport(10, 1), MemberReport(1000, 1, 2, 5)], 2, now=2.0)
    assert text == "1,010 done, 500/s, 2 running, 5 waiting, 2 failed attempts; 2 processes"


def test_of_a_transactional_id_each_process_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = declared(commit_mode="transactional", producer_config={"transactional.id": "billing", "linger.ms": 1})
    made = MagicMock()
    monkeypatch.setattr("headway.workers.worker.ParallelConsumer", made)
    for index in range(2):
        found.consumer({}, index=index)
    assert [call.kwargs["producer_config"] for call in made.call_args_list] == [
        {"transactional.id": "billing-0", "linger.ms": 1},
        {"transactional.id": "billing-1", "linger.ms": 1},
    ]
