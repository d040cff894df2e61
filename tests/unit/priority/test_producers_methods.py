"""What is on both producers, and why something is not."""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from headway import AsyncProducer, Producer, Scheduler
from headway.errors import ClosedError

NOWHERE: dict[str, Any] = {"bootstrap.servers": "localhost:1", "log_level": 0}

# Method -> whether it is to be awaited on the producers for asyncio.
METHODS = {
    "send": False,  # gives a future that is under way
    "try_send": False,
    "flush": True,
    "purge": False,
    "close": True,
    "partitions_for": True,
    "measure": False,
    "metrics": False,
    "set_sasl_credentials": False,
    "init_transactions": True,
    "begin_transaction": True,
    "commit_transaction": True,
    "abort_transaction": True,
    "send_offsets": True,
}
CONTEXTS = {"transaction"}
PROPERTIES = {"scheduler"}  # one to await on the producers for asyncio

# Attributes of the plain producers that are for the producers for asyncio, which are made of them.
BETWEEN_OUR_CLASSES = {
    "abort_after",
    "check_open",
    "count_wait",
    "destination",
    "destinations",
    "forked",
    "is_closed",
    "max_block",
    "sender",
}

# Parameter -> the producers that do not have it, and why.
MISSING = {
    "on_delivery": ({"AsyncProducer"}, "their futures take callbacks, in the loop"),
}


@pytest.fixture(scope="module")
def producers() -> Iterator[dict[str, Any]]:
    plain, awaited = Producer(NOWHERE), AsyncProducer(NOWHERE)
    yield {"Producer": plain, "AsyncProducer": awaited}
    plain.close(0)
    asyncio.run(awaited.close(0))


def public(producer: object) -> set[str]:
    return {name for name in dir(producer) if not name.startswith("_")}


def test_all_producers_have_the_same_methods(producers: dict[str, Any]) -> None:
    shared = METHODS.keys() | CONTEXTS | PROPERTIES
    for name, producer in producers.items():
        beside = set() if name.startswith("Async") else BETWEEN_OUR_CLASSES
        assert public(producer) == shared | beside, name


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_awaited_where_it_may_wait_and_takes_the_same_arguments(
    producers: dict[str, Any], method: str
) -> None:
    wanted = list(inspect.signature(getattr(producers["Producer"], method)).parameters)
    for name, producer in producers.items():
        call = getattr(producer, method)
        assert inspect.iscoroutinefunction(call) == (name.startswith("Async") and METHODS[method]), name
        left_out = {parameter for parameter, (without, _) in MISSING.items() if name in without}
        assert list(inspect.signature(call).parameters) == [each for each in wanted if each not in left_out], name


@pytest.mark.parametrize("method", [*METHODS, *CONTEXTS])
def test_defaults_are_the_same_wherever_a_parameter_is(producers: dict[str, Any], method: str) -> None:
    defaults: dict[str, set[Any]] = {}
    for producer in producers.values():
        for parameter in inspect.signature(getattr(producer, method)).parameters.values():
            defaults.setdefault(parameter.name, set()).add(parameter.default)
    assert {name: each for name, each in defaults.items() if len(each) > 1} == {}


def test_a_closed_producer_has_no_scheduler() -> None:
    producer = Producer(NOWHERE)
    producer.close(0)
    with pytest.raises(ClosedError):
        assert isinstance(producer.scheduler, Scheduler)


async def test_a_closed_producer_for_asyncio_has_none_either_and_begins_no_transaction() -> None:
    producer = AsyncProducer(NOWHERE)
    await producer.close(0)
    with pytest.raises(ClosedError):
        assert producer.scheduler
    for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(ClosedError):
            await call()
    assert await producer.flush(0) == 0
