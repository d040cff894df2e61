"""The table in which a program's own transactions store the records to send."""

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Delete,
    Engine,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    String,
    Table,
    Text,
    Update,
    select,
)

from headway.core.levels.naming import MOST_LEVELS, is_topic_name
from headway.declarations import shown
from headway.delay.due_time import When, due_at, with_expiry
from headway.errors import ConfigError
from headway.kafka.producer.headers import check_headers, header_list
from headway.records.record_types import Header

_StoredHeaders = list[tuple[str, bytes | None]]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_StoredHeaders).decode


class Outbox:
    """A table of records to send. `insert` returns the statement that adds one, as part of the caller's transaction.

        with Session(engine) as session, session.begin():
            session.add(order)
            session.execute(outbox.insert("orders", b"...", key="customer 7", level=2, due=3600))

    `headway outbox run` or an `OutboxRelay` sends the rows and deletes them.

    Args:
        name: The name of the table, in the database's default schema.
        levels: The number of levels of the topics, as in the settings of a `Producer`. By default topics have none.
        metadata: The metadata to which the table is added, so that Alembic creates it. By default the table is alone.
    """

    def __init__(
        self, name: str = "headway_outbox", *, levels: int | None = None, metadata: MetaData | None = None
    ) -> None:
        if levels is not None and not (type(levels) is int and 1 <= levels <= MOST_LEVELS):
            raise ConfigError(f"levels is {shown(levels)}; it must be a whole number from 1 to {MOST_LEVELS:,}.")
        self._levels = levels
        self.table = Table(
            name,
            MetaData() if metadata is None else metadata,
            # SQLite would otherwise use the numbers of deleted rows again, and the order would be lost.
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            # The relay notes in Kafka which rows were sent. Numbers begin again at 1 in a database that was created
            # again, so rows have a random identity, too.
            Column("uid", String(32), nullable=False),
            Column("created", BigInteger, nullable=False),  # this and `due`: milliseconds since the epoch
            Column("topic", String(249), nullable=False),
            Column("level", Integer),
            Column("partition", Integer),
            Column("key", LargeBinary),
            Column("value", LargeBinary),
            Column("headers", LargeBinary),  # JSON: pairs of a name and a base64 value
            Column("due", BigInteger),
            Column("schedule_id", Text),
            Column("error", Text),  # why Kafka refuses the record; such rows are set aside
            sqlite_autoincrement=True,
        )

    def create(self, engine: Engine) -> None:
        """Create the table if it does not exist."""
        self.table.create(engine, checkfirst=True)

    def insert(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: Iterable[Header] = (),
        *,
        level: int | None = None,
        partition: int | None = None,
        due: When | None = None,
        expires: When | None = None,
        id: str | None = None,
    ) -> Insert:
        """Return a statement that adds a record. Execute it in any session or connection, async ones included.

        The arguments are those of `Producer.send`. A `due` or `expires` in seconds counts from this call. Raises
        `ConfigError` if an argument is not valid, and `SerializationError` if a header is not. Whether the topic exists
        is known only when the row is sent.
        """
        if not is_topic_name(topic):
            raise ConfigError(f"The topic is {shown(topic)}; it must be a valid name of a topic.")
        if id is not None and due is None:
            raise ConfigError(f"id is {shown(id)}, but there is no due time. Only records with a due time have an id.")
        now = time.time()
        row = {
            "uid": uuid.uuid4().hex,
            "created": int(now * 1000),
            "topic": topic,
            "level": self._checked_level(level),
            "partition": _checked("partition", partition, 2**31 - 1),
            "key": _as_bytes("key", key),
            "value": _as_bytes("value", value),
            "headers": _as_json(headers if expires is None else with_expiry(headers, expires, due, now), topic),
            "due": None if due is None else due_at(due, now),
            "schedule_id": id,
        }
        return self.table.insert().values(row)

    def _checked_level(self, level: int | None) -> int | None:
        if self._levels is not None:
            return _checked("level", 0 if level is None else level, self._levels - 1)
        if level is not None:
            raise ConfigError(f"level is {shown(level)}, but the outbox has no levels. Use Outbox(levels=...).")
        return None

    def unsent(self, limit: int) -> Select[Any]:
        """Return a query for the first rows, in the order in which they were added, without those set aside."""
        columns = self.table.c
        return select(self.table).where(columns.error.is_(None)).order_by(columns.id).limit(limit)

    def refused(self) -> Select[Any]:
        """Return a query for the rows that were set aside, because Kafka refuses their records."""
        return select(self.table).where(self.table.c.error.is_not(None)).order_by(self.table.c.id)

    def retry(self) -> Update:
        """Return a statement that lets the relay send the rows again that were set aside."""
        return self.table.update().where(self.table.c.error.is_not(None)).values(error=None)

    def sent(self, uids: Sequence[str], ids: Sequence[int]) -> Delete:
        """Return a statement that deletes rows that were sent."""
        return self.table.delete().where(self.table.c.id.in_(ids), self.table.c.uid.in_(uids))

    def set_aside(self, row: Row[Any], reason: str) -> Update:
        """Return a statement that notes why Kafka refuses the record of a row."""
        return self.table.update().where(self.table.c.id == row.id).values(error=reason[:10_000])


def headers_of_row(row: Row[Any]) -> _StoredHeaders:
    """Return the headers of a stored record."""
    return [] if row.headers is None else _decode(row.headers)


def _checked(name: str, number: int | None, most: int) -> int | None:
    if number is None or (type(number) is int and 0 <= number <= most):
        return number
    raise ConfigError(f"{name} is {shown(number)}; it must be a whole number from 0 to {most:,}.")


def _as_bytes(name: str, field: object) -> bytes | None:
    if field is None or isinstance(field, bytes):
        return field
    if isinstance(field, str):
        return field.encode()
    raise ConfigError(f"The {name} is {type(field).__name__}; it must be bytes, a string or None. Serialise it first.")


def _as_json(headers: Iterable[Header], topic: str) -> bytes | None:
    fields = header_list(headers)
    check_headers(fields, topic)
    return _encode([(name, _as_bytes("header", value)) for name, value in fields]) if fields else None
