"""The answer of a transaction that is on its way."""

import threading
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


@pytest.fixture
def sent() -> Any:
    wake, goes_on = Wakeup(), threading.Event()

    def carry_out(_: threading.Event) -> dict[Any, Any]:
        goes_on.wait(30)
        return {}

    sent = SentTransaction(carry_out, wake)
    yield sent
    goes_on.set()
    sent._ended.result(30)
    wake.close()


def test_a_transaction_that_is_not_done_has_no_answer_yet(sent: SentTransaction) -> None:
    assert sent.answer(0.0) is None


def test_a_transaction_that_ends_as_its_answer_is_given_up_has_that_answer(sent: SentTransaction) -> None:
    begun, sent._ended = sent._ended, EndsMeanwhile()
    assert sent.answer(0.0) == {}
    sent._ended = begun


def test_a_time_out_of_its_own_is_raised(sent: SentTransaction) -> None:
    begun, sent._ended = sent._ended, Future()
    sent._ended.set_exception(TimeoutError("Kafka was late."))
    with pytest.raises(TimeoutError, match="Kafka was late"):
        sent.answer(0.0)
    sent._ended = begun
