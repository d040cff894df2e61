"""The page about what is pending: text from rows."""

from datetime import UTC, datetime, timedelta

from headway.core.delay.ladder import Ladder
from headway.spark.delay.page import schedules_page

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_the_page_counts_by_hour_and_line_and_compares_the_ladders() -> None:
    occupancy = [
        {"topic_delay_ms": 0, "hour": NOON, "pending": 1},
        {"topic_delay_ms": 60_000, "hour": NOON, "pending": 2_000},
        {"topic_delay_ms": 60_000, "hour": NOON + timedelta(hours=3), "pending": 7},
    ]
    ladders = {"in use": Ladder.exponential(), "proposed": Ladder((1000, 60_000))}

    text = schedules_page("Pending schedules", occupancy, [{"second": NOON, "pending": 900}], {60_000: 2_008}, ladders)

    assert "2,008 schedules are pending" in text
    assert text.count("<rect") == 3
    assert "2026-01-01 12:00:00</td><td>900" in text
    assert "<td>proposed</td><td>2</td><td>2.0</td>" in text


def test_nothing_pending_is_a_page_too() -> None:
    assert "0 schedules are pending" in schedules_page("Nothing", [], [], {}, {"in use": Ladder((1000,))})
