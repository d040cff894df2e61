"""`headway outbox refused` and `retry`, and what a user sees whose database cannot be used."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine

from headway.cli import headway
from headway.contrib.outbox import Outbox
from tests.unit.cli.missing_modules import remove


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with one row that was set aside, and one that was not."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine, outbox = create_engine(url), Outbox(levels=2)
    outbox.create(engine)
    with engine.begin() as connection:
        connection.execute(outbox.insert("orders", b"1", key="customer 7", level=1))
        connection.execute(outbox.table.update().values(error="Kafka says no."))
        connection.execute(outbox.insert("orders", b"2"))
    engine.dispose()
    return url


def outbox(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(headway, ["outbox", *arguments])
    return result.exit_code, result.output


def test_refused_rows_are_listed_until_they_are_retried(url: str) -> None:
    code, output = outbox("refused", "--database", url)
    assert (code, [word in output for word in ("customer 7", "orders", "says no")]) == (0, [True] * 3)
    assert outbox("retry", "--database", url) == (0, "1 rows will be sent again.\n")
    assert outbox("refused", "--database", url) == (0, "Kafka has refused no rows.\n")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("secret", "URL is not valid"),
        ("nosuch://user:secret@host/db", "URL is not valid"),
        ("mysql+pymysql://user:secret@host/db", "pymysql is missing"),
        ("sqlite:////no/such/folder/secret.db", "unable to open database file."),
    ],
)
def test_a_database_that_cannot_be_used_is_one_sentence_without_the_password(wrong: str, says: str) -> None:
    code, output = outbox("refused", "--database", wrong)
    assert code == 1
    assert says in output
    assert "secret" not in output
    assert "Traceback" not in output


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    code, output = outbox("refused", "--database", f"sqlite:///{tmp_path / 'empty.db'}")
    assert (code, "no such table: headway_outbox" in output) == (1, True)


def test_without_the_extra_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, "sqlalchemy", "headway.contrib.outbox")
    code, output = outbox("refused", "--database", "sqlite://")
    assert (code, "pip install 'headway[outbox]'" in output) == (1, True)
