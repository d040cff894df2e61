"""Declarations that cannot work: each is refused when it is made, in a sentence with the argument and its value."""

import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest

from headway import (
    Batches,
    Ladder,
    Ordering,
    ParallelConsumer,
    PriorityConsumer,
    Producer,
    Relay,
    Retries,
    Scheduler,
    exponential_backoff,
    exponential_shares,
    fixed_backoff,
    linear_shares,
    weighted_shares,
    worker,
)
from headway.declarations import called, shown
from headway.errors import ConfigError
from headway.http import HttpHandler, Request

SERVERS = {"bootstrap.servers": "localhost:1", "log_level": 0}


def handle(record: Any) -> None: ...


def no_arguments() -> None: ...


def three_arguments(record: Any, context: Any, database: Any) -> None: ...


def by_name(record: Any, *, database: Any) -> None: ...


async def later(*_: Any) -> float:
    return 1.0


def yields(*_: Any) -> Iterator[float]:
    yield 1.0


async def yields_later(*_: Any) -> AsyncIterator[float]:
    yield 1.0


class Yielding:
    def __call__(self, record: Any) -> Iterator[float]:
        yield 1.0


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int


def declare(handler: Callable[..., Any] = handle, **options: Any) -> Any:
    return worker("orders", **{"group": "billing"} | options)(handler)


def consumer(**options: Any) -> ParallelConsumer:
    config = options.pop("config", {**SERVERS, "group.id": "billing"})
    return ParallelConsumer(config, **options)


def reading(function: Any, key: str = "value.deserializer") -> ParallelConsumer:
    return consumer(config={**SERVERS, "group.id": "billing", key: function})


def sending(function: Any) -> Producer:
    return Producer({**SERVERS, "value.serializer": function})


def prioritised(**options: Any) -> PriorityConsumer:
    config = {**SERVERS, "group.id": "billing", "levels": 3, "max.poll.records": 50}
    return PriorityConsumer(config, **options)


def asking(to_request: Any = lambda record: Request("GET", "http://h"), **options: Any) -> HttpHandler:
    return HttpHandler(to_request, **options)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    # Retries
    (lambda: Retries(0.1), "backoff is 0.1; it must be a function, called with (attempt, random_number). Give fixed"),  # type: ignore[arg-type]
    (lambda: Retries(exponential_shares), "backoff is exponential_shares, which divides a capacity among levels and"),  # type: ignore[arg-type]
    (lambda: Retries(linear_shares), "backoff is linear_shares, which divides a capacity among levels"),  # type: ignore[arg-type]
    (lambda: Retries(weighted_shares(1, 2)), "and does not return delays. Give exponential_backoff()"),  # type: ignore[arg-type]
    (lambda: Retries(lambda attempt: 1.0), "<lambda>, which cannot be called with (attempt, random_number)"),  # type: ignore[misc, arg-type]
    (lambda: Retries(later), "backoff is later, an async def or a generator function, so a call would run nothing"),  # type: ignore[arg-type]
    (
        lambda: Retries(lambda attempt, chance: -1.0),
        "<lambda>, which returned -1.0 for attempt 1 and the random number 0; it must return",
    ),
    (
        lambda: Retries(lambda attempt, chance: 0.5 - chance),
        "which returned -0.5 for attempt 1 and the random number 1",
    ),
    (lambda: Retries(lambda attempt, chance: math.inf), "which returned inf for attempt 1"),
    (lambda: Retries(lambda attempt, chance: "soon"), "which returned 'soon' for attempt 1"),  # type: ignore[arg-type, return-value]
    (lambda: Retries(share=0), "share is 0; it must be a number above 0, and at most 1."),
    (lambda: Retries(share=1.5), "share is 1.5; it must be a number above 0, and at most 1."),
    (lambda: Retries(max_attempts=0), "max_attempts is 0; it must be a whole number, at least 1, or None to try forev"),
    (lambda: Retries(max_attempts=2.5), "max_attempts is 2.5; it must be a whole number"),  # type: ignore[arg-type]
    (lambda: Retries(max_attempts=True), "max_attempts is True; it must be a whole number"),
    (lambda: Retries(max_attempts="5"), "max_attempts is '5'; it must be a whole number"),  # type: ignore[arg-type]
    (lambda: Retries(fatal=KeyError), "it must be a tuple of exception classes, such as (KeyError,)"),  # type: ignore[arg-type]
    (lambda: Retries(fatal=("KeyError",)), "fatal is ('KeyError',); it must be a tuple of exception"),  # type: ignore[arg-type]
    (lambda: Retries(delay=5), "delay is 5; it must be a function, called with (record, attempt, error)"),  # type: ignore[arg-type]
    (lambda: Retries(delay=lambda record: 5.0), "which cannot be called with (record, attempt, error)"),  # type: ignore[misc, arg-type]
    (lambda: fixed_backoff(-1), "seconds is -1; it must be a number of seconds, at least 0 and finite"),
    (lambda: fixed_backoff(timedelta(seconds=5)), "seconds is datetime.timedelta(seconds=5); it must be a number"),  # type: ignore[arg-type]
    (lambda: exponential_backoff(first=0), "first is 0; it must be a number of seconds, above 0"),
    (lambda: exponential_backoff(factor=0.5), "factor is 0.5; it must be a number, at least 1"),
    (lambda: exponential_backoff(longest=math.inf), "longest is inf; it must be a number of seconds"),
    (lambda: exponential_backoff(jitter=2), "jitter is 2; it must be a number from 0, for no jitter, to 1"),
    (lambda: Retries(by_exception=[TimeoutError]), "it must be a mapping of exception classes to back-offs"),  # type: ignore[arg-type]
    (lambda: Retries(by_exception={"TimeoutError": fixed_backoff(1)}), "it must be a mapping of exception classes"),  # type: ignore[dict-item]
    (lambda: Retries(by_exception={TimeoutError: 5}), "by_exception[TimeoutError] is 5; it must be a function"),  # type: ignore[dict-item]
    (lambda: Retries(by_exception={OSError: linear_shares}), "by_exception[OSError] is linear_shares, which divides"),  # type: ignore[dict-item]
    # Levels
    (weighted_shares, "No weights were given"),
    (lambda: weighted_shares(1, 2.5), "The weight 2.5 is not a whole number"),  # type: ignore[arg-type]
    (lambda: prioritised(distributor=5), "distributor is 5; it must be a function, called with (levels, capacity)"),
    (lambda: prioritised(distributor=handle), "distributor is handle, which cannot be called with (levels, capacity)"),
    (
        lambda: prioritised(distributor=lambda levels, capacity: 50),
        "The distributor returned 50; it must return a whole",
    ),
    (lambda: prioritised().subscribe("x", on_assign=5), "on_assign is 5; it must be a function, called with"),  # type: ignore[arg-type]
    (lambda: prioritised().subscribe("x", on_lost=later), "on_lost is later, an async def or a generator function"),
    (lambda: prioritised(policy="fairest"), "The policy 'fairest' is not one of"),
    (lambda: declare(topics_at="x"), "A worker has no option 'topics_at'"),
    (lambda: worker({"orders": "high"}, group="g")(handle), "The level of the topic 'orders' is 'high'"),  # type: ignore[dict-item]
    # Workers: each option as that of the ParallelConsumer
    (lambda: declare(no_arguments), "The handler no_arguments can be called neither with (record) nor with (record,"),
    (lambda: declare(three_arguments), "The handler three_arguments can be called neither with (record) nor with"),
    (
        lambda: declare(by_name),
        "The handler by_name can be called neither with (record) nor with (record, context)",
    ),
    (lambda: declare(yields), "The handler yields is a generator function, because it yields. Only run_and_produce"),
    (lambda: worker(5, group="billing")(handle), "A worker needs the name of a topic, as in @worker"),  # type: ignore[arg-type]
    (lambda: declare(levels=10**9), "levels is 1000000000; it must be a whole number, at least 1 and at most 1000"),
    (lambda: consumer(distributor=0), "distributor is 0; it must be a function, called with (levels, capacity)"),
    (lambda: consumer(distributor=int), "The distributor int does not take a number of levels and a capacity"),
    (lambda: declare(group=5), "The setting group.id is 5; it must be a non-empty string"),
    (lambda: declare(levels=True), "levels is True; it must be a whole number, at least 1"),
    (lambda: declare(max_concurrency=0), "max_concurrency is 0; it must be at least 1"),
    (lambda: declare(retries=5), "retries is 5; it must be a Retries, such as Retries(max_attempts=5)"),
    (
        lambda: declare(retries=Retries(max_attempts=5)),
        "max_attempts is 5, but there is no dead_letter_topic",
    ),
    (lambda: declare(time_limit=timedelta(1)), "time_limit is datetime.timedelta(days=1); it must be above 0"),
    (lambda: declare(ordering="partition by key"), "ordering is 'partition by key'; choose one of"),
    (lambda: declare(executor="async"), "executor='async' cannot run a plain function"),
    (lambda: declare(config="localhost:9092"), "The configuration is of the type str; it must be a mapping"),
    (lambda: declare(config={5: 5}), "The configuration has the key 5; the name of a setting must be a string"),
    # Values
    (lambda: declare(value=Order(7)), "cannot be called with the bytes of a record. Give a dataclass to read"),
    (
        lambda: declare(value=list[Order]),
        "value=list cannot create an instance from the bytes of a record. Give a dataclass",
    ),
    (lambda: declare(value=str), "value=str cannot create an instance from the bytes of a record. Give a dataclass"),
    (lambda: declare(value=dict), "value=dict cannot create an instance from the bytes of a record"),
    (lambda: declare(value=Colour), "value=Colour cannot create an instance from the bytes of a record"),
    (lambda: declare(value=later), "value=later is an async def or a generator function, so a call would run nothing"),
    (lambda: declare(value=no_arguments), "value=no_arguments cannot be called with the bytes of a record"),
    (lambda: reading("json"), "The setting value.deserializer is 'json'; it must be a function"),
    (
        lambda: reading(str),
        "value.deserializer=str cannot create an instance from the bytes of a record. Give a function",
    ),
    (lambda: reading(Order), "value.deserializer=Order cannot create an instance from the bytes of a record"),
    (lambda: reading(three_arguments, "key.deserializer"), "key.deserializer=three_arguments cannot be called with"),
    (lambda: reading(later), "value.deserializer=later is an async def"),
    (lambda: sending(later), "value.serializer=later is not a plain function of one argument"),
    (lambda: sending(no_arguments), "value.serializer=no_arguments is not a plain function of one argument"),
    # The parallel consumer
    (lambda: consumer(producer_config={"linger.ms": "soon"}), "Kafka's client refuses the configuration: Invalid"),
    (lambda: consumer(config=None), "The configuration is of the type NoneType; it must be a mapping"),
    (lambda: consumer(ordering="any"), "ordering is 'any'; choose one of 'key', 'key_if_any'"),
    (lambda: consumer(max_concurrency="16"), "max_concurrency is '16'; it must be a whole number, at least 1"),
    (lambda: consumer(max_concurrency=True), "max_concurrency is True; it must be a whole number"),
    (lambda: consumer(adaptive="no"), "adaptive is 'no'; it must be True or False"),
    (lambda: consumer(rate_limit="10/s"), "rate_limit is '10/s'; it must be above 0 and finite, or left out"),
    (lambda: consumer(rate_limit=math.nan), "rate_limit is nan; it must be above 0 and finite"),
    (lambda: consumer(time_limit=0), "time_limit is 0; it must be above 0 and finite"),
    (lambda: consumer(executor="threads"), "executor is 'threads'; choose one of 'thread', 'async', 'process'"),
    (lambda: consumer(executor="process", processes=1.5), "processes is 1.5; it must be a whole number, at least 1"),
    (lambda: consumer(policy="first"), "The policy 'first' is not one of capacity_burst, fair and strict"),
    (lambda: consumer(distributor=by_name), "distributor is by_name, which cannot be called with (levels, capacity)"),
    (lambda: consumer(retries=0), "retries is 0; it must be a Retries"),
    (lambda: consumer(dead_letter_topic="orders dead"), "dead_letter_topic is 'orders dead'; it must be a valid name"),
    (lambda: consumer(commit_mode="exactly-once"), "commit_mode is 'exactly-once'; choose one of 'async'"),
    (lambda: consumer(producer_config=["acks"]), "The configuration is of the type list; it must be a mapping"),
    (lambda: consumer(hand_over_timeout="10"), "hand_over_timeout is '10'; it must be a number, at least 0"),
    (lambda: consumer(hand_over_timeout=math.nan), "hand_over_timeout is nan; it must be at least 0"),
    (lambda: consumer(tenant="customer"), "tenant is 'customer'; it must be 'header:NAME' for a header"),
    (lambda: consumer(tenant="header:"), "tenant is 'header:'; it must be"),
    (lambda: consumer(tenant="key:"), "tenant is 'key:'; it must be"),
    (lambda: consumer(tenant=7), "tenant is 7; it must be"),
    (lambda: consumer(tenant=lambda: "a"), "which cannot be called with (record)"),
    (lambda: consumer(tenant=later), "tenant is later, an async def"),
    (lambda: consumer(tenant_weights={"big": 2.0}), "tenant_weights is set, but there is no tenant"),
    (lambda: consumer(tenant="key", tenant_weights=["big"]), "tenant_weights is ['big']; it must be a mapping"),
    (lambda: consumer(tenant="key", tenant_weights={7: 2.0}), "it must be a mapping from the names of tenants to"),
    (lambda: consumer(tenant="key", tenant_weights={"big": 0}), "tenant_weights['big'] is 0; it must be above 0"),
    (lambda: consumer(tenant_rate_limit={"*": 2}), "tenant_rate_limit is {'*': 2}, but there is no tenant"),
    (
        lambda: consumer(tenant="key", tenant_rate_limit="10"),
        "tenant_rate_limit is '10'; it must be a number above 0, a",
    ),
    (lambda: consumer(tenant="key", tenant_rate_limit=[10]), "tenant_rate_limit is [10]; it must be a number above 0"),
    (lambda: consumer(tenant="key", tenant_rate_limit={7: 2.0}), "tenant_rate_limit has the key 7; each key must be"),
    (lambda: consumer(tenant="key", tenant_rate_limit={"big": 0}), "tenant_rate_limit['big'] is 0; it must be above 0"),
    (lambda: consumer(tenant="key", tenant_rate_limit={"*": "1"}), "tenant_rate_limit['*'] is '1'; it must be above 0"),
    (lambda: consumer(tenant="key", tenant_rate_limit=lambda: 2.0), "which cannot be called with (tenant)"),
    (lambda: consumer(tenant="key", tenant_rate_limit=later), "tenant_rate_limit is later, an async def"),
    (lambda: declare(tenant="key", tenant_rate_limit={"big": -1}), "tenant_rate_limit['big'] is -1; it must be above"),
    (lambda: declare(tenant="header"), "tenant is 'header'; it must be"),
    (lambda: declare(tenant_weights={"big": 2.0}), "tenant_weights is set, but there is no tenant"),
    # Delay
    (lambda: Scheduler("localhost:9092"), "The configuration is of the type str; it must be a mapping"),  # type: ignore[arg-type]
    (
        lambda: Scheduler(SERVERS, name="my timers"),
        "The name of the scheduler is 'my timers', but its topics are named after",
    ),
    (lambda: Relay(SERVERS, name=""), "The name of the scheduler is '', but its topics are named after it"),
    (lambda: Relay(SERVERS, mode="fast"), "The mode is 'fast'; it must be 'exactly-once' or 'low-latency'"),  # type: ignore[arg-type]
    (lambda: Relay(SERVERS, fit="on"), "fit is 'on'; it must be 'off', 'report' or 'auto'"),  # type: ignore[arg-type]
    (lambda: Relay(SERVERS, max_delay_topics=1), "max_delay_topics is 1; it must be at least 2"),
    (lambda: Relay(SERVERS, max_delay_topics=65), "max_delay_topics is 65; it must be at most 64"),
    (lambda: Relay(SERVERS, retire_after=0), "retire_after is 0; it must be above 0"),
    (lambda: Relay(SERVERS, memory=0), "memory is 0 bytes; it must be at least 1"),
    (lambda: Relay(SERVERS, retire_after=1e308), "retire_after is 1e+308; it must be a number of seconds up to"),
    (lambda: Relay(SERVERS, memory="1 GB"), "memory is '1 GB'; it must be a whole number, at least 1"),  # type: ignore[arg-type]
    (lambda: Relay(None), "The configuration is of the type NoneType"),  # type: ignore[arg-type]
    (lambda: Ladder(1000), "The delays of the ladder are 1000; give a tuple of milliseconds"),  # type: ignore[arg-type]
    (lambda: Ladder((1000.0, 2000.0)), "A delay of the ladder is 1000.0; it must be a whole number"),  # type: ignore[arg-type]
    (lambda: Ladder.exponential(first="1s"), "The first delay of the ladder is '1s'; it must be above 0"),  # type: ignore[arg-type]
    (lambda: Ladder.exponential(base=1), "The base of the ladder is 1; it must be a number above 1"),
    (lambda: Ladder.exponential(count=0), "The number of delays of the ladder is 0; it must be at least 1"),
    (
        lambda: Ladder.exponential(count=10_000),
        "A ladder of 10000 delays, each 2.0 times as long as the one before, ends beyond",
    ),
    # Requests
    (lambda: asking("http://h"), "to_request is 'http://h'; it must be a function, called with (record)"),
    (lambda: asking(later), "to_request is later, an async def or a generator function"),
    (lambda: asking(no_arguments), "to_request is no_arguments, which cannot be called with (record)"),
    (lambda: asking(per_host=2.5), "per_host is 2.5; it must be a whole number, at least 1"),
    (lambda: asking(timeout="10"), "timeout is '10'; it must be a number, at least 0.001"),
    (lambda: asking(accept=409), "accept is 409; it must be a set of HTTP statuses, such as {409}"),
    (lambda: asking(accept=["409"]), "accept is ['409']; it must be a set of HTTP statuses"),
    (lambda: asking(on_response=handle), "it must be a function of (record, response)"),
    (lambda: asking(session=handle), "session is handle, which cannot be called with ()"),
    (lambda: asking(idempotency_key="id"), "idempotency_key is 'id'; it must be True or False"),
    (lambda: asking(max_body=None), "max_body is None; it must be a whole number, at least 0"),
    # Producers
    (lambda: Producer([]), "The configuration is of the type list"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("declaration", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_work_is_refused_when_it_is_declared(declaration: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        declaration()
    assert words in str(refused.value)
    assert str(refused.value)[-1] in ".)"


@pytest.fixture
def idle() -> Iterator[ParallelConsumer]:
    with consumer() as made:
        made.subscribe("orders")
        yield made


batches: Any = Batches
UNCALLED = "can be called neither with (record) nor with (record, context)"
AT_THE_RUN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda idle: idle.run(no_arguments), f"The handler no_arguments {UNCALLED}"),
    (lambda idle: idle.run("handle"), "The handler is 'handle'; it must be a function (record), or (record, context)"),
    (
        lambda idle: idle.run(Yielding()),
        "The handler Yielding is a generator function, because it yields. Only run_and_produce",
    ),
    (lambda idle: idle.run(functools.partial(no_arguments)), f"The handler no_arguments {UNCALLED}"),
    (lambda idle: idle.results(three_arguments), f"The handler three_arguments {UNCALLED}"),
    (lambda idle: idle.results(yields), "The handler yields is a generator function"),
    (lambda idle: idle.run_and_produce(by_name), f"The handler by_name {UNCALLED}"),
    (lambda idle: idle.run_and_produce(handle, 5), "on_output is 5; it must be a function, called with (input, output"),
    (lambda idle: idle.run_and_produce(handle, handle), "on_output is handle, which cannot be called with (input, out"),
    (
        lambda idle: idle.run(no_arguments, batches=batches(10)),
        "can be called neither with (records) nor with (records, contexts)",
    ),
    (lambda idle: idle.run(handle, batches=batches(2.5)), "max_size is 2.5; it must be a whole number, at least 1"),
    (lambda idle: idle.run(handle, batches=batches(10, "1s")), "linger is '1s'; it must be a number, at least 0"),
    (lambda idle: idle.subscribe({"orders": 1}), "The level of the topic 'orders' is 1"),
]


@pytest.mark.parametrize(("run", "words"), AT_THE_RUN, ids=[words for _, words in AT_THE_RUN])
def test_a_handler_that_cannot_be_called_is_refused_before_a_broker_is_asked(
    idle: ParallelConsumer, run: Callable[[ParallelConsumer], Any], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        run(idle)
    assert words in str(refused.value)


def test_what_is_given_to_a_function_before_is_in_no_error() -> None:
    assert called(functools.partial(three_arguments, "a secret")) == "three_arguments"
    assert called(functools.partial(Yielding(), "a secret")) == "Yielding"


def test_a_value_in_an_error_is_short_whatever_its_class_makes_of_it() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    assert shown("x" * 1000).endswith(" …")
    assert shown(Odd()).startswith("of the type ")
    assert shown(Ordering.KEY) == repr(Ordering.KEY)
