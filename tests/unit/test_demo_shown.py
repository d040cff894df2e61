"""What the demo shows: the live lines, the promises, the picture."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from demo.command import main
from demo.evidence import Evidence, Promise
from demo.live import Display, Lately, line, rows
from demo.plots import draw, finding, percentiles, rates
from demo.priority import Plan
from demo.report import show_promises, waits_table
from headway import exponential


def paper() -> Console:
    """A console that is no terminal."""
    return Console(file=io.StringIO(), width=120)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def evidence_of(waits_ms: list[list[int]]) -> Evidence:
    evidence = Evidence(len(waits_ms), 100, 10)
    for level, waits in enumerate(waits_ms):
        evidence.waits_ms[level].extend(waits)
        evidence.returned_s[level].extend(number / 10 + 0.1 for number in range(len(waits)))
    return evidence


def test_a_row_per_level_highest_first_with_what_is_above_the_share_as_burst() -> None:
    shown = rows([2, 4, 8], [900, 80, 7], [500, 80, 7], Lately(0.5, 10, [400, 60, 7]))
    assert [row[0][0] for row in shown] == ["2", "1", "0"]
    assert shown[2][1:] == ("400", "2", "8", "200", "500")
    assert shown[1][1:] == ("0", "4", "0", "40", "80")


def test_a_line_has_everything_in_kafka_and_what_waits_of_each_level() -> None:
    assert line(5, [900, 80], [500, 80]).split("  ")[-1] == (
        "980 in Kafka, 580 consumed; backlog: 0 of level 1, 400 of level 0"
    )


def test_without_a_terminal_a_line_comes_now_and_then_and_at_the_end() -> None:
    console, evidence = paper(), evidence_of([[5], [5], [5]])
    with Display(console, 3, exponential(3, 10)) as display:
        display.show(1.0, [0, 0, 0], Evidence(3, 3, 10))
        display.show(5.1, [9, 0, 0], Evidence(3, 3, 10))
        display.show(5.2, [9, 0, 0], Evidence(3, 3, 10))
        display.show(5.3, [1, 1, 1], evidence)
    assert [shown.split("s")[0].strip() for shown in text(console).splitlines()] == ["5.1", "5.3"]


def test_a_broken_promise_has_a_cross_and_is_told_apart_from_what_is_not_promised() -> None:
    console = paper()
    assert show_promises(console, [Promise("a", "1", True), Promise("b", "2", None)])
    assert not show_promises(console, [Promise("a", "1", True), Promise("c", "3", False)])
    assert [row[:3] for row in text(console).splitlines() if "promised" not in row] == ["✓ a", "– b", "✓ a", "✗ c"]


def test_the_waits_of_a_level_without_records_are_zero() -> None:
    console = paper()
    console.print(waits_table(evidence_of([[3, 1, 2], [], [7]])))
    assert "over 15 min late              │       0 │   0 │   0 │       0" in text(console)


def test_rates_and_percentiles_are_by_bin() -> None:
    edges = np.array([0.0, 0.5, 1.0, 2.0])
    at = np.array([0.1, 0.2, 0.7])
    assert rates(at, edges).tolist() == [4.0, 2.0, 0.0]
    assert percentiles(at, np.array([5.0, 9.0, 7.0]), edges, 50)[:2].tolist() == [7.0, 7.0]
    assert np.isnan(percentiles(at, at, edges, 50)[2])


def test_the_picture_says_its_finding_and_is_drawn_where_a_level_is_empty(tmp_path: Path) -> None:
    evidence = evidence_of([[2_000, 3_000, 4_000], [], [20]])
    assert finding(evidence) == "99 % of the urgent flights wait less than 20 ms; half of those on time more than 3.0 s"
    assert draw(evidence, tmp_path / "priority.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("records", [1_000, 20_000, 336_776])
def test_any_number_of_flights_takes_seconds_and_leaves_a_backlog(records: int) -> None:
    plan = Plan(records)
    assert 4 <= records / plan.sent_per_s < 22
    assert plan.worked_per_s < plan.sent_per_s
    assert plan.capacity >= sum(exponential(3, plan.capacity)) >= 7


@pytest.mark.parametrize("records", ["999", "336777", "all"])
def test_a_number_of_flights_that_there_is_not_is_one_clear_error(
    records: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--records", records])
    assert ended.value.code == 2
    assert f"it must be from 1000 to 336776, not {records}" in capsys.readouterr().err


def test_without_java_the_demo_says_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway.broker import java  # noqa: PLC0415
    from headway.errors import LocalBrokerError  # noqa: PLC0415

    def no_java(*_: object) -> None:
        raise LocalBrokerError("No Java 17 or newer was found. Install one.")

    monkeypatch.setattr(java, "_installed", lambda: iter(()))
    monkeypatch.setattr(java, "_fetch", no_java)
    assert main(["--records", "1000", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "demo: No Java 17 or newer was found. Install one.\n"
