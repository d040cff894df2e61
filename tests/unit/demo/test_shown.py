"""What the demo shows: the live lines, the promises, the picture."""

import io
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from demo.command import main
from demo.evidence import Evidence, Promise, promises
from demo.live import Display, Lately, Working, line, rows
from demo.machine import Machine
from demo.plots import draw, finding, percentiles, rates
from demo.priority import Plan
from demo.report import show_promises, verdict, waits_table
from headway import exponential_shares


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
    shown = line(5, [900, 80], [500, 80])
    assert shown.split() == ["5.0", "s", "980", "in", "Kafka", "580", "consumed", "waiting", "0", "+", "400"]
    assert len(line(1_000, [250_405, 50_075, 36_296], [0, 0, 0])) < 80


def test_without_a_terminal_a_line_comes_now_and_then_and_at_the_end() -> None:
    console, evidence = paper(), evidence_of([[5], [5], [5]])
    with Display(console, 3, exponential_shares(3, 10)) as display:
        display.show(1.0, [0, 0, 0], Evidence(3, 3, 10))
        display.show(5.1, [9, 0, 0], Evidence(3, 3, 10))
        display.show(5.2, [9, 0, 0], Evidence(3, 3, 10))
        display.show(5.3, [1, 1, 1], evidence, last=True)
    assert [shown.split("s")[0].strip() for shown in text(console).splitlines()] == ["5.1", "5.3"]


def test_a_broken_promise_has_a_cross_and_is_told_apart_from_what_could_not_be_shown() -> None:
    console = paper()
    made = [Promise("a", "1", True), Promise("b", "not shown: none came", None), Promise("c", "3", False)]
    show_promises(console, made)
    marks = [row.split()[:2] for row in text(console).splitlines()[1:]]
    assert marks == [["✓", "a"], ["–", "b"], ["✗", "c"]]


def test_the_end_says_what_was_kept_what_could_not_be_shown_and_what_was_broken() -> None:
    kept, untold, broken = Promise("a", "1", True), Promise("b", "2", None), Promise("c", "3", False)
    assert verdict([kept, kept]) == "all 2 promises were kept."
    assert verdict([kept, broken, untold]) == (
        "1 of 3 promises were kept, and 1 could not be shown by this run: b, and 1 broken: c."
    )


def test_what_is_promised_and_seen_has_80_columns() -> None:
    console = Console(file=io.StringIO())
    names = [made.promised for made in promises(evidence_of([[1], [2], [3]]), [1, 1, 1], conserves_work=True)]
    show_promises(console, [Promise(name, "100.0% of 36,021 that met a backlog", True) for name in names])
    assert len(text(console).splitlines()) == 1 + 6
    assert max(map(len, text(console).splitlines())) <= 80


def test_where_there_is_no_terminal_what_goes_on_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo.live.FIRST_LINE_S", 0.01)
    console = paper()
    with Working(console, "Spark starts …") as working:
        until(lambda: "Spark starts …" in text(console))
        working.say("7 of 9 flights")
        until(lambda: "7 of 9 flights" in text(console))


def until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def under_backlog(evidence: Evidence, passed: int, met: int) -> Evidence:
    """The same, with so many urgent flights of which so many pass the one on time before them."""
    evidence.poll_of[: 2 * met] = array("l", [1, 0] * passed + [1, 2] * (met - passed))
    evidence.level_of[: 2 * met] = bytes([0, len(evidence.waits_ms) - 1] * met)
    evidence.under_backlog.extend(bytes([1, 1, 1]))
    return evidence


def test_the_picture_says_its_finding_and_is_drawn_where_a_level_is_empty(tmp_path: Path) -> None:
    evidence = under_backlog(evidence_of([[2_000, 3_099, 4_000], [], [20]]), 10, 10)
    assert finding(evidence) == "99 % of the urgent flights wait 20 ms at most; half of those on time 3.0 s or more"
    assert draw(evidence, tmp_path / "priority.png").read_bytes().startswith(b"\x89PNG")


def test_the_title_of_the_picture_is_true_on_a_machine_whose_pauses_are_longer_than_the_waits() -> None:
    evidence = under_backlog(evidence_of([[20], [], [1_201]]), 29, 30)
    assert finding(evidence) == "96 % of the urgent flights pass the flight on time sent last before them"


def test_the_title_of_the_picture_says_so_where_nothing_had_to_wait() -> None:
    assert finding(evidence_of([[3], [], [3]])) == "Nothing had to wait in this run: it does not show priority"


@pytest.mark.parametrize("records", [1_000, 20_000, 336_776])
def test_any_number_of_flights_takes_seconds_if_the_machine_can(records: int) -> None:
    plan = Plan(records)
    assert 8 < plan.seconds(per_s=20_000) < 25
    assert plan.capacity >= sum(exponential_shares(3, plan.capacity)) >= 7


def test_a_slow_machine_is_told_longer_times_and_gives_micro_batches_longer() -> None:
    quick, slow = Machine.measured(0.8, 20_000), Machine.measured(2.4, 20_000)
    assert 60 < quick.seconds(336_776) < 120
    assert slow.seconds(336_776) == pytest.approx(3 * quick.seconds(336_776))
    assert slow.follow_up_after(336_776) == 3 * quick.follow_up_after(336_776)
    assert quick.having_sent(5_000, Plan(336_776)).slowdown == 4.0
    assert slow.having_sent(2_500, Plan(20_000)).slowdown == pytest.approx(3.0)
    assert quick.having_sent(500, Plan(336_776)) == Machine.measured(80.0, 20_000)  # one look says no more


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

    monkeypatch.setattr(java, "installed_javas", lambda: iter(()))
    monkeypatch.setattr(java, "fetch_java", no_java)
    assert main(["--records", "1000", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "demo: No Java 17 or newer was found. Install one.\n"
