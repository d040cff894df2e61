"""Notes which records were handled, in the same database transaction as their effects."""

import time
from datetime import timedelta
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Delete, Engine, MetaData, String, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from headway.errors import ConfigError
from headway.records.record_types import ConsumerRecord

# Both databases have the same extension of SQL, but SQLAlchemy has a function for each.
_INSERTS: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


class Inbox:
    """A table of handled records, with which a handler changes a database once for each record.

        with Session(engine) as session, session.begin():
            if inbox.is_first(session, record):
                session.execute(...)  # the effects, in the same transaction

    Args:
        group: The name of the handler, for example its consumer group. Each group handles a record once.
        name: The name of the table. Several groups can share it.
        metadata: The metadata to which the table is added, so that Alembic creates it. By default the table is alone.
    """

    def __init__(self, group: str, name: str = "headway_inbox", metadata: MetaData | None = None) -> None:
        if not isinstance(group, str) or not 0 < len(group) <= 249:
            raise ConfigError("The group of an inbox must be a string of 1 to 249 characters.")
        self._group = group
        self.table = Table(
            name,
            MetaData() if metadata is None else metadata,
            Column("group", String(249), primary_key=True),
            Column("record", String(300), primary_key=True),  # its origin: topic, partition and offset
            Column("handled", BigInteger, nullable=False),  # milliseconds since the epoch
        )

    def create(self, engine: Engine) -> None:
        """Create the table if it does not exist."""
        self.table.create(engine, checkfirst=True)

    def is_first(self, session: Session | Connection, record: ConsumerRecord) -> bool:
        """Note that a record is handled, and return True unless an earlier transaction has noted this before.

        The note is part of the transaction. If another transaction that noted the same record is still open, this
        waits for its end. With asyncio: `await session.run_sync(inbox.is_first, record)`. Raises `ConfigError` if the
        database is not PostgreSQL or SQLite.
        """
        dialect = session.get_bind().dialect.name if isinstance(session, Session) else session.dialect.name
        if dialect not in _INSERTS:
            raise ConfigError(f"The database is {dialect}; an Inbox works with PostgreSQL and SQLite.")
        note = {"group": self._group, "record": str(record.origin), "handled": int(time.time() * 1000)}
        insert = _INSERTS[dialect](self.table).values(note).on_conflict_do_nothing()
        # Not every driver counts the rows of an insert, but all return them.
        return session.execute(insert.returning(self.table.c.record)).first() is not None

    def forget(self, older_than: timedelta) -> Delete:
        """Return a statement that deletes the notes that are older than this.

        Keep them longer than the topic keeps its records, and longer than you send dead letters again.
        """
        before = int((time.time() - older_than.total_seconds()) * 1000)
        columns = self.table.c
        return self.table.delete().where(columns.group == self._group, columns.handled < before)
