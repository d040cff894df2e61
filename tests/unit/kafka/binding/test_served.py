"""The thread that serves all admin clients of a process."""

import logging
import threading
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient

from headway.kafka.binding.served import Server


class FailingAtFirst:
    """An admin client whose first poll raises an error."""

    def __init__(self) -> None:
        self.polls = 0
        self.was_polled_again = threading.Event()

    def poll(self, timeout: float) -> None:
        self.polls += 1
        if self.polls == 1:
            raise RuntimeError("unexpected")
        self.was_polled_again.set()


def test_an_unexpected_error_is_logged_and_all_clients_are_served_again(caplog: pytest.LogCaptureFixture) -> None:
    server, client = Server(), FailingAtFirst()
    with caplog.at_level(logging.ERROR):
        server.serve(cast(AdminClient, client))
        assert client.was_polled_again.wait(10)
    assert "Polling an admin client raised an unexpected error" in caplog.text
