"""The thread that takes delivery reports in quiet times."""

import logging
import threading
from contextlib import closing

import pytest

from headway.kafka.producer.report_pump import ReportPump


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_unexpected_error_is_logged_and_later_reports_are_taken(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    again = threading.Event()
    errors = [error("from a callback")]

    def take_reports(timeout: float) -> None:
        if errors:
            raise errors.pop()
        again.set()

    with caplog.at_level(logging.ERROR), closing(ReportPump(take_reports)) as pump:
        pump.start()
        try:
            assert again.wait(10)
        finally:
            pump.stop()
    assert "Taking delivery reports raised an unexpected error" in caplog.text
