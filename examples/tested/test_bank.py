"""Tests of the bank: of its handler as a function, and of its worker on a mock of Kafka. They need no Java.

python -m pytest examples/tested
"""

import sqlite3
from pathlib import Path

import bank
import pytest

from headway import FatalError, ProducerRecord
from headway.testing import MockCluster, context, record, run_until_idle


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give each test a database of its own."""
    path = str(tmp_path / "bank.db")
    monkeypatch.setattr(bank, "DATABASE", path)
    return path


def transfer(id: str, cents: int = 100, level: int = 0) -> ProducerRecord:
    return ProducerRecord("transfers", f'{{"id": "{id}", "account": "a1", "cents": {cents}}}', "a1", level=level)


def test_a_transfer_of_nothing_is_refused() -> None:
    given = record(bank.Transfer("t1", "a1", 0), worker=bank.book)
    with pytest.raises(FatalError, match="0 cents"):
        bank.book(given, context())


def test_the_second_time_nothing_is_booked_and_nobody_is_told() -> None:
    given = record(bank.Transfer("t1", "a1", 100), worker=bank.book)
    with bank.database() as connection:
        first = bank.book(given, context(state=connection))
        assert first is not None
        assert first.value == "booked t1"
        assert bank.book(given, context(attempt=2, state=connection)) is None


def test_the_worker_books_each_transfer_once_and_tells_of_it(headway_mock: MockCluster, database: str) -> None:
    run = run_until_idle(bank.book, headway_mock.settings, [transfer("t1"), transfer("t1", level=1), transfer("t2")])
    assert sorted(output.value for output in run.outputs) == ["booked t1", "booked t2"]
    assert not run.failures
    with sqlite3.connect(database) as connection:
        assert connection.execute("select sum(cents) from bookings").fetchone() == (200,)
    connection.close()


def test_what_cannot_be_booked_is_set_aside_and_holds_nothing_up(headway_mock: MockCluster) -> None:
    broken = ProducerRecord("transfers", '{"id": "t3"}', "a1", level=0)
    run = run_until_idle(bank.book, headway_mock.settings, [transfer("t1", cents=0), broken, transfer("t2")])
    assert [output.value for output in run.outputs] == ["booked t2"]
    assert sorted(letter.exception.rpartition(".")[2] for letter in run.dead_letters) == [
        "DeserializationError",
        "FatalError",
    ]


def test_a_database_that_is_locked_is_tried_again_after_a_second(
    headway_mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, fails = bank.book, iter([True, False])

    class Busy(sqlite3.Connection):
        def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
            if sql.startswith("insert") and next(fails):
                raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, *values)  # type: ignore[arg-type]

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=Busy, **options))
    run = run_until_idle(book, headway_mock.settings, [transfer("t1")])
    [failure] = run.failures
    assert failure.wait == 1.0
    assert [output.value for output in run.outputs] == ["booked t1"]
