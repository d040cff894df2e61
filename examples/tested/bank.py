"""A worker as a project has it: it books transfers, tells the customers, and sets aside what cannot be booked."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from headway import ConsumerRecord, Context, FatalError, ProducerRecord, Retries, exponential_backoff, worker

DATABASE = "bank.db"


@dataclass
class Transfer:
    id: str
    account: str
    cents: int


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """Open the accounts for as long as the worker runs; one handler at a time uses the connection."""
    with closing(sqlite3.connect(DATABASE, check_same_thread=False)) as connection:
        connection.execute("create table if not exists bookings (id text primary key, account text, cents int)")
        yield connection


@worker(
    "transfers",
    group="bank",
    value=Transfer,
    levels=2,
    max_concurrency=1,
    produces="notices",
    retries=Retries(exponential_backoff(first=1), max_attempts=5),
    dead_letter_topic="transfers-dead",
    lifespan=database,
)
def book(record: ConsumerRecord, context: Context) -> ProducerRecord | None:
    """Book a transfer once, however often it comes, and tell its customer the first time."""
    transfer: Transfer = record.value
    if transfer.cents <= 0:
        raise FatalError(f"transfer {transfer.id} is of {transfer.cents} cents")
    bank: sqlite3.Connection = context.state
    with bank:  # a transaction
        booked = bank.execute(
            "insert into bookings values (?, ?, ?) on conflict do nothing",
            (transfer.id, transfer.account, transfer.cents),
        )
    return ProducerRecord("notices", f"booked {transfer.id}", transfer.account) if booked.rowcount else None
