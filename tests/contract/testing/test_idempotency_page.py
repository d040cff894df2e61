"""The worker of docs/idempotency.md books each payment once, whatever comes twice and whatever fails in between."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headway import ProducerRecord
from headway.testing import MockCluster, run_until_idle

PAGE = Path(__file__).parents[3] / "docs" / "idempotency.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def variables_of(program: str) -> dict[str, Any]:
    variables: dict[str, Any] = {"__name__": "billing"}
    exec(compile(program, PAGE.name, "exec"), variables)  # noqa: S102 - our own text
    return variables


def test_payments_that_come_twice_are_booked_once(
    headway_mock: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    book = variables_of(PROGRAMS[0])["book"]
    payments = [
        ProducerRecord("payments", f'{{"id": "p{number % 10}", "account": "a{number % 2}", "cents": 5}}')
        for number in range(30)
    ]
    for _ in range(2):
        assert not run_until_idle(book, headway_mock.settings, payments).failures
    connection = sqlite3.connect("billing.db")
    assert connection.execute("select id, cents from accounts order by id").fetchall() == [("a0", 25), ("a1", 25)]
    connection.close()


def test_the_request_of_the_page_has_the_payments_own_key() -> None:
    variables = variables_of(PROGRAMS[1])
    payment = variables_of(PROGRAMS[0])["Payment"]("p1", "a1", 5)
    from headway.testing import record  # noqa: PLC0415

    assert variables["charge"](record(payment)).headers["Idempotency-Key"] == "p1"
