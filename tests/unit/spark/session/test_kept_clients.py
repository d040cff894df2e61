"""Kafka clients that a Python worker keeps from one task to the next."""

from collections.abc import Iterator

import pytest

from headway.spark.session import kept_clients
from headway.spark.session.kept_clients import KeptClients


class Client:
    """A client that knows whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class InTask:
    """Spark's context, in a task."""

    @staticmethod
    def get() -> object:
        return object()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptClients[Client]:
    monkeypatch.setattr(kept_clients, "TaskContext", InTask)
    return KeptClients()


def used(kept: KeptClients[Client], made_of: str) -> Client:
    with kept.borrowed(made_of, Client) as client:
        assert not client.is_closed
        return client


def test_the_next_task_has_the_client_of_the_one_before_if_it_needs_the_same(kept: KeptClients[Client]) -> None:
    first = used(kept, "a")
    assert used(kept, "b") is not first
    assert used(kept, "a") is first


def test_an_error_or_a_task_that_ends_early_closes_the_client(kept: KeptClients[Client]) -> None:
    first = used(kept, "a")
    with pytest.raises(ValueError, match="no"), kept.borrowed("a", Client):
        raise ValueError("no")
    assert first.is_closed

    def read() -> Iterator[Client]:
        with kept.borrowed("a", Client) as client:
            yield client
            yield client

    reading = read()
    second = next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert second.is_closed
    assert used(kept, "a") not in (first, second)


def test_a_task_that_needs_two_of_a_kind_at_once_has_two_and_one_is_kept(kept: KeptClients[Client]) -> None:
    with kept.borrowed("a", Client) as outer:
        inner = used(kept, "a")
        assert inner is not outer
    assert outer.is_closed
    assert used(kept, "a") is inner


def test_the_four_that_were_used_last_are_kept(kept: KeptClients[Client]) -> None:
    clients = {name: used(kept, name) for name in "abcd"}
    used(kept, "a")
    used(kept, "e")
    assert [name for name, client in clients.items() if client.is_closed] == ["b"]


def test_outside_of_a_task_none_is_kept() -> None:
    assert used(KeptClients(), "a").is_closed
