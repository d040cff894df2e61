"""Asking Kafka again: which errors pass, and when the caller is told after all."""

import confluent_kafka as ck
import pytest

from headway.errors import KafkaError
from headway.kafka.binding.retrying import TRANSIENT, is_transient, retrying

_FOR_EVER = 3600.0
_REFUSED = ck.KafkaError.TOPIC_AUTHORIZATION_FAILED


class Kafka:
    """A Kafka that answers with these errors, one after the other, and then with "there"."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.asked = 0

    def __call__(self, seconds: float) -> str:
        assert 0 < seconds < 1  # Ctrl-C is not seen within a call
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)
        return "there"


def _error(code: int, **flags: bool) -> ck.KafkaException:
    return ck.KafkaException(ck.KafkaError(code, "", **flags))


def _ours(code: int) -> KafkaError:
    error = KafkaError("Kafka refused.")
    error.__cause__ = _error(code)
    return error


@pytest.mark.parametrize("code", TRANSIENT, ids=lambda code: ck.KafkaError(code).name())
def test_an_error_of_the_list_is_transient_whether_the_binding_raises_it_or_we_do(code: int) -> None:
    kafka = Kafka(_error(code), _ours(code))
    assert retrying(kafka, _FOR_EVER, pause=0) == "there"
    assert kafka.asked == 3


def test_every_error_of_the_list_has_a_reason_of_its_own() -> None:
    assert len(set(TRANSIENT.values())) == len(TRANSIENT)


@pytest.mark.parametrize("refusal", [_error(_REFUSED), _ours(_REFUSED), KafkaError("No broker has said so.")])
def test_any_other_error_is_raised_at_once(refusal: Exception) -> None:
    kafka = Kafka(refusal)
    with pytest.raises(type(refusal)) as raised:
        retrying(kafka, _FOR_EVER)
    assert raised.value is refusal
    assert kafka.asked == 1


def test_an_error_that_librdkafka_calls_retriable_is_transient() -> None:
    assert is_transient(ck.KafkaError(ck.KafkaError.CONCURRENT_TRANSACTIONS, "", retriable=True))
    assert not is_transient(ck.KafkaError(ck.KafkaError.CONCURRENT_TRANSACTIONS, ""))


@pytest.mark.parametrize("flag", ["fatal", "txn_requires_abort"])
def test_an_error_that_ends_the_transaction_or_the_producer_never_is_transient(flag: str) -> None:
    assert is_transient(ck.KafkaError(ck.KafkaError._TIMED_OUT, ""))
    assert not is_transient(ck.KafkaError(ck.KafkaError._TIMED_OUT, "", **{flag: True}))


def test_a_caller_may_name_further_errors_that_pass() -> None:
    assert retrying(Kafka(_error(_REFUSED)), _FOR_EVER, [_REFUSED], pause=0) == "there"


def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    first, last = _error(ck.KafkaError._TRANSPORT), _error(ck.KafkaError._TIMED_OUT)
    with pytest.raises(ck.KafkaException) as raised:
        retrying(Kafka(last), -1.0)
    assert raised.value is last
    over = iter([False, True])
    with pytest.raises(ck.KafkaException) as raised:
        retrying(Kafka(first, last, first), _FOR_EVER, is_over=lambda: next(over), pause=0)
    assert raised.value is last
