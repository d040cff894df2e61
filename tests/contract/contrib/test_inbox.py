"""The inbox: a handler changes a database once for each record."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session

from headway.contrib.outbox import Inbox
from headway.errors import ConfigError
from headway.testing import record


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def inbox(engine: Engine) -> Inbox:
    inbox = Inbox("billing")
    inbox.create(engine)
    return inbox


RECORD = record(b"1", topic="payments", partition=2, offset=17)
NEXT = record(b"1", topic="payments", partition=2, offset=18)


def test_a_record_is_first_once_for_each_group(engine: Engine, inbox: Inbox) -> None:
    with engine.begin() as connection:
        assert inbox.is_first(connection, RECORD)
        assert inbox.is_first(connection, NEXT)
    with Session(engine) as session, session.begin():
        assert not inbox.is_first(session, RECORD)
        assert Inbox("reports").is_first(session, RECORD)


def test_a_transaction_that_failed_has_noted_nothing(engine: Engine, inbox: Inbox) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        assert inbox.is_first(connection, RECORD)
        transaction.rollback()
    with engine.begin() as connection:
        assert inbox.is_first(connection, RECORD)


def test_of_two_attempts_at_the_same_time_one_is_first(engine: Engine, inbox: Inbox) -> None:
    """The second one waits until the first one has committed."""
    firsts: list[bool] = []

    def attempt() -> None:
        with engine.begin() as connection:
            firsts.append(inbox.is_first(connection, RECORD))

    with engine.begin() as connection:
        firsts.append(inbox.is_first(connection, RECORD))
        other = threading.Thread(target=attempt)
        other.start()
        other.join(0.1)
        assert firsts == [True]
    other.join(30)
    assert firsts == [True, False]


def test_old_notes_are_forgotten(engine: Engine, inbox: Inbox) -> None:
    with engine.begin() as connection:
        inbox.is_first(connection, RECORD)
        connection.execute(inbox.forget(timedelta(days=1)))
        assert len(connection.execute(select(inbox.table)).all()) == 1
        connection.execute(inbox.forget(timedelta(days=-1)))
        assert connection.execute(select(inbox.table)).all() == []


def test_an_inbox_needs_a_group() -> None:
    with pytest.raises(ConfigError, match="group"):
        Inbox("")
