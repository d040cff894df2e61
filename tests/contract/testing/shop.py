"""Workers of every kind, as a project declares them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway import (
    Batches,
    ConsumerRecord,
    Context,
    FatalError,
    ProducerRecord,
    RetriableError,
    Retries,
    RetryLater,
    exponential_backoff,
    worker,
)


@dataclass
class Order:
    number: int
    amount: float = 1.0


@worker(
    "orders",
    group="billing",
    value=Order,
    levels=3,
    retries=Retries(exponential_backoff(first=40, jitter=0), max_attempts=3),
    dead_letter_topic="orders-dead",
)
def bill(record: ConsumerRecord, context: Context) -> str:
    order: Order = record.value
    if order.number == 7 and context.attempt < 3:
        raise TimeoutError("the bank")
    if order.number == 8:
        raise RetriableError("busy", retry_after=100)
    if order.number == 9:
        raise FatalError("no such customer")
    return f"billed {order.number}"


@contextmanager
def rates() -> Iterator[dict[str, float]]:
    yield {"eur": 2.0}


@worker("prices", group="prices", produces="converted", lifespan=rates)
def convert(record: ConsumerRecord, context: Context) -> Iterator[ProducerRecord]:
    yield ProducerRecord("converted", str(float(record.value) * context.state["eur"]), record.key)


@worker("events", group="events", batches=Batches(10, linger=0.05))
async def count(records: list[ConsumerRecord]) -> int:
    return len(records)


@worker("jobs", group="jobs", executor="process", processes=2)
def compute(record: ConsumerRecord) -> int:
    return int(record.value) ** 2


@worker("calls", group="calls")
def call_later(record: ConsumerRecord) -> None:
    raise RetryLater(3600)


@worker("steps", group="steps", produces="steps", commit_mode="transactional")
def step(record: ConsumerRecord) -> ProducerRecord | None:
    left = int(record.value) - 1
    return ProducerRecord("steps", str(left)) if left else None


@worker("endless", group="endless")
def fail(record: ConsumerRecord) -> None:
    raise ValueError("never")


@worker("lost", group="lost")
def lose(record: ConsumerRecord) -> None:
    raise FatalError("no")


@worker({"clicks": 0, "payments": 1}, group="given", levels=2, config={"auto.offset.reset": "latest"})
def by_level(record: ConsumerRecord) -> tuple[str, int]:
    return record.topic, record.level


@worker("lines", group="lines", levels=3, policy="strict", max_concurrency=1)
def in_turn(record: ConsumerRecord) -> int:
    return record.level
