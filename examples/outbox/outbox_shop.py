"""A shop whose orders and payments are in one database each, and are equal in the end, whatever is killed.

export HEADWAY_OUTBOX_DATABASE=sqlite:///shop.db
headway topics create payments --levels 2
headway outbox run --name shop &
headway worker outbox_shop &
python outbox_shop.py ann 1250
"""

import os
import sys

from sqlalchemy import create_engine, text

from headway import ConsumerRecord, worker
from headway.contrib.outbox import Inbox, Outbox

SHOP = create_engine(os.environ.get("HEADWAY_OUTBOX_DATABASE", "sqlite:///shop.db"))
BANK = create_engine(os.environ.get("BANK_DATABASE", "sqlite:///bank.db"))
TOPIC = os.environ.get("PAYMENTS", "payments")
OUTBOX, INBOX = Outbox(levels=2), Inbox(TOPIC)


def create_tables() -> None:
    OUTBOX.create(SHOP)
    INBOX.create(BANK)
    with SHOP.begin() as transaction:
        transaction.execute(text("create table if not exists orders (customer text, cents int)"))
    with BANK.begin() as transaction:
        transaction.execute(text("create table if not exists accounts (customer text primary key, cents int)"))


def order(customer: str, cents: int) -> None:
    """Store the order and the record of its payment, or neither."""
    with SHOP.begin() as transaction:
        transaction.execute(text("insert into orders values (:c, :n)"), {"c": customer, "n": cents})
        transaction.execute(OUTBOX.insert(TOPIC, str(cents), key=customer, level=int(cents >= 1000)))


@worker(TOPIC, group=TOPIC, levels=2, max_concurrency=1)  # SQLite has one writer
def pay(record: ConsumerRecord) -> None:
    with BANK.begin() as transaction:
        if not INBOX.is_first(transaction, record):
            return  # an earlier attempt has booked this payment
        transaction.execute(
            text(
                "insert into accounts values (:c, :n)"
                " on conflict (customer) do update set cents = accounts.cents + excluded.cents"
            ),
            {"c": record.key.decode(), "n": int(record.value)},
        )


if __name__ == "__main__":
    create_tables()
    order(sys.argv[1], int(sys.argv[2]))
