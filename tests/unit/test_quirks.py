"""The quirks: each fault of librdkafka that a page lists has a program that shows it, and its outcome is read right."""

import json
import signal

import pytest

from quirks.runner import GONE, NOT_SHOWN, PAGE, THERE, faults, outcome, run_apart

FAULTS = faults(PAGE.read_text())


def test_each_fault_of_the_page_has_a_quirk_or_a_reason_why_not() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| fault |" not in line]
    assert len(FAULTS) == len(rows)
    assert [each.text for each in FAULTS if not each.quirk and len(each.why_not.removeprefix("not shown: ")) < 20] == []
    assert [each.text for each in FAULTS if not each.quirk and not each.why_not.startswith("not shown: ")] == []


def test_no_two_faults_have_the_same_quirk() -> None:
    names = [each.quirk for each in FAULTS if each.quirk]
    assert len(names) == len(set(names))


RISK = json.dumps({"at_risk": "close() is called"})


@pytest.mark.parametrize(
    ("exit_code", "printed", "state"),
    [
        (0, '{"is_there": true, "seen": "a record was lost"}', THERE),
        (0, '{"is_there": false, "seen": "all records came"}', GONE),
        (0, '{"not_shown": "no Kafka could be started here"}', NOT_SHOWN),
        (-signal.SIGABRT, RISK, THERE),
        (-signal.SIGALRM, RISK, THERE),
        (0, RISK + "\n" + '{"is_there": false, "seen": "it was closed"}', GONE),
        (1, RISK, NOT_SHOWN),
        (-signal.SIGALRM, "", NOT_SHOWN),
        (-signal.SIGSEGV, "", NOT_SHOWN),
    ],
)
def test_a_process_shows_a_fault_by_its_report_or_by_dying_where_it_was_expected(
    exit_code: int, printed: str, state: str
) -> None:
    assert outcome(exit_code, printed, "").state == state


def test_a_quirk_runs_in_a_process_of_its_own_and_says_what_it_saw() -> None:
    found = run_apart("binding.lone_surrogate_in_a_header")
    assert found.state in (THERE, GONE), found.seen
