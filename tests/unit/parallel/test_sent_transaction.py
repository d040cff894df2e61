"""The answer of a transaction that is on its way."""

from concurrent.futures import Future
from typing import Any

import pytest

from headway.parallel.transactions import SentTransaction
from headway.runtime.wakeup import Wakeup


class EndsMeanwhile(Future[Any]):
    """A future that is done just after who waits for it has given up."""

    def result(self, timeout: float | None = None) -> Any:
        try:
            return super().result(timeout)
        except TimeoutError:
            if not self.done():
                self.set_result({})
            raise


def answer_of(transaction: Future[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is known at once of a transaction that its thread carries out so."""
    monkeypatch.setattr("headway.parallel.transactions.in_background", lambda _: transaction)
    wake = Wakeup()
    try:
        return SentTransaction(lambda _: {}, wake).answer(0.0)
    finally:
        wake.close()


def test_a_transaction_that_is_not_done_has_no_answer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of(Future(), monkeypatch) is None


def test_a_transaction_that_ends_as_its_answer_is_given_up_has_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of(EndsMeanwhile(), monkeypatch) == {}


def test_a_time_out_of_its_own_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Future[Any]()
    late.set_exception(TimeoutError("Kafka was late."))
    with pytest.raises(TimeoutError, match="Kafka was late"):
        answer_of(late, monkeypatch)
