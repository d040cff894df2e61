"""The shop's workers: one takes payments for orders, one reminds customers some days later.

headway worker shop_workers --processes 2
headway relay --name shop                   # delivers the reminders when they are due
"""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

from headway import AsyncScheduler, ConsumerRecord, Context, Retries, exponential_backoff, worker
from headway.http import HttpHandler, Request

SHOP = os.environ.get("SHOP", "shop")  # the prefix of topics, groups and the scheduler
DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
BANK = os.environ.get("SHOP_BANK", "http://127.0.0.1:8090")
REMIND_AFTER = float(os.environ.get("SHOP_REMIND_AFTER", "259200"))  # seconds; three days
PATIENCE = {"delivery.timeout.ms": 10_000}  # how long a customer, or a handler, waits while Kafka is away


@dataclass
class Order:
    id: str
    customer: str
    cents: int
    express: bool = False


@dataclass
class Shared:
    orders: sqlite3.Connection
    scheduler: AsyncScheduler


def open_database() -> sqlite3.Connection:
    """Open the orders. PostgreSQL takes the same statements, from a pool; SQLite comes with Python."""
    database = sqlite3.connect(DATABASE, timeout=30, isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute("create table if not exists orders (id text primary key, customer text, cents int, state text)")
    return database


@asynccontextmanager
async def shared(settings: dict[str, Any]) -> AsyncIterator[Shared]:
    with closing(open_database()) as orders:
        async with AsyncScheduler({**settings, **PATIENCE}, name=SHOP) as scheduler:
            yield Shared(orders, scheduler)


def to_payment(record: ConsumerRecord) -> Request:
    order: Order = record.value
    payment = {"order": order.id, "customer": order.customer, "cents": order.cents}
    # The key is the order's id, because a customer who presses the button twice sends two records.
    return Request("POST", f"{BANK}/payments", json=payment, headers={"Idempotency-Key": order.id})


pay = HttpHandler(to_payment, timeout=10, per_host=20, accept={409})  # 409: the order was paid before


@worker(
    f"{SHOP}-orders",
    group=f"{SHOP}-orders",
    value=Order,
    levels=2,
    max_concurrency=50,
    retries=Retries(exponential_backoff(first=0.5, longest=60), max_attempts=20),
    dead_letter_topic=f"{SHOP}-dead",
    lifespan=shared,
)
async def take_order(record: ConsumerRecord, context: Context) -> None:
    """Store an order, request its payment, and schedule the reminder. Each step can be repeated without harm."""
    order: Order = record.value
    shop: Shared = context.state
    shop.orders.execute(
        "insert into orders values (?, ?, ?, 'new') on conflict do nothing", (order.id, order.customer, order.cents)
    )
    [(state,)] = shop.orders.execute("select state from orders where id = ?", (order.id,))
    if state == "reminded":
        return  # the button was pressed twice, and everything is done
    await pay(record)
    shop.orders.execute("update orders set state = 'paid' where id = ? and state = 'new'", (order.id,))
    await shop.scheduler.send_later(
        order.customer, order.id, f"{SHOP}-reminders", REMIND_AFTER, id=f"reminder {order.id}", if_pending="keep"
    )


@worker(f"{SHOP}-reminders", group=f"{SHOP}-reminders", dead_letter_topic=f"{SHOP}-dead", lifespan=shared)
async def remind(record: ConsumerRecord, context: Context) -> None:
    """Ask for a review. A real shop sends a mail here."""
    shop: Shared = context.state
    shop.orders.execute("update orders set state = 'reminded' where id = ?", (record.value.decode(),))
