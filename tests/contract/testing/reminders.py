"""Workers that are to be reminded, as a project declares them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway import ConsumerRecord, Context, ProducerRecord, Retries, RetryLater, Scheduler, worker


@contextmanager
def scheduler(settings: dict[str, Any]) -> Iterator[Scheduler]:
    with Scheduler(settings) as opened:
        yield opened


@worker("shipments", group="shipments", retries=Retries(max_attempts=3), dead_letter_topic="shipments-dead")
def ship(record: ConsumerRecord, context: Context) -> str:
    if context.attempt < 3:
        raise RetryLater(3600 * context.attempt)
    return f"{record.value.decode()} at attempt {context.attempt}"


@worker("carts", group="carts", produces="carts", max_concurrency=1, lifespan=scheduler)
def remind(record: ConsumerRecord, context: Context) -> ProducerRecord | None:
    """Remind of an order three times, a day apart from each other, until it is paid."""
    kind, _, number = record.value.decode().partition(" ")
    if kind == "paid":
        context.state.cancel(f"id:{number}", answered=False).stored()
    elif kind == "ordered":
        context.state.send_later(number, f"last call {number}", "carts", 3 * 86_400, id=number).wait(10)
        return ProducerRecord("carts", f"reminder {number}", number, due=86_400)
    return None


@worker("hours", group="hours", lifespan=scheduler)
def count(record: ConsumerRecord, context: Context) -> None:
    if record.value == b"begin":
        context.state.every(3600, "hour", "an hour", "hours").wait(10)
