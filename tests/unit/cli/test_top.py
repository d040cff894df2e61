"""What `headway top` shows of a snapshot, and what its keys do."""

import json

import pytest
from rich.console import Console

from headway.cli.top.pages import print_once, screen_of
from headway.cli.top.screen import console_of
from headway.cli.top.snapshot_json import describe_snapshot
from headway.cli.top.view_state import VIEWS, ViewState
from headway.cli.top.views import VIEW_OF, TableView
from headway.core.offsets.offset_map import OffsetMap
from headway.inspection.snapshot import (
    DeadCause,
    DeadLetterStatus,
    DelayTopicStatus,
    LevelStatus,
    MemberStatus,
    PartitionStatus,
    QueueStatus,
    RuleStatus,
    SchedulerStatus,
    SeenChange,
    Snapshot,
    StuckRecord,
    TenantStatus,
)

NOW = 10_000.0
HOSTILE = "[bold]\x1b[2J</b><script>"


def stuck(offset: int = 7) -> StuckRecord:
    return StuckRecord(
        offset,
        since=NOW - 90,
        attempts=3,
        behind=52,
        done_ahead=190,
        stands_still=True,
        timestamp=NOW - 600,
        key=HOSTILE.encode(),
        headers=((HOSTILE, HOSTILE.encode()),),
        size=3,
        last_error=f"BankError: {HOSTILE}",
        behind_same_key=4,
        looked_at=100,
    )


def level(number: int, not_done: int, record: StuckRecord | None = None) -> LevelStatus:
    partition = PartitionStatus(
        2, 0, 250, 7, OffsetMap(7, (1, 190)), not_done, moved=NOW - 90, member="m1", since=NOW - 75, stuck=record
    )
    return LevelStatus(number, f"orders-{number}", f"billing-{number}", (partition,), 600.0, 12.0, 10.0, not_done / 10)


SNAPSHOT = Snapshot(
    taken_at=NOW,
    queues=(QueueStatus("orders", "billing", (level(1, 53, stuck()), level(0, 2_000))),),
    members=(MemberStatus("billing-1", "m1", HOSTILE, "10.0.0.1", 4, since=NOW - 75, was_there=True),),
    dead_letters=(
        DeadLetterStatus(
            "orders-dead",
            total=5_000,
            open=4_990,
            read=2_000,
            causes=(DeadCause(f"shop.{HOSTILE}", "orders-1", None, 1_990, NOW - 60, NOW - 5, (0, 12), HOSTILE),),
        ),
    ),
    schedulers=(
        SchedulerStatus(
            "headway-delay",
            40,
            (DelayTopicStatus(0, 1), DelayTopicStatus(60_000, 39)),
            ((0.0, 40),),
            40,
            3,
            12.0,
            0,
            1,
            NOW,
        ),
    ),
    tenants=(TenantStatus("billing", HOSTILE, 75.0, 12, 3.5),),
    rules=(
        RuleStatus("billing", "r-1", "hold", "tenant = acme", HOSTILE, "their bank is down", NOW - 100, NOW + 3600),
        RuleStatus("billing", "r-2", problem=f"A later version has made the rule {HOSTILE}."),
    ),
    changes=(SeenChange(NOW - 61, f"{HOSTILE} joined billing-1."),),
    notes=("The group mails cannot be read: not permitted.",),
)


def shown(state: ViewState, size: tuple[int, int] = (160, 40), snapshot: Snapshot | None = SNAPSHOT) -> str:
    console = Console(width=size[0], height=size[1], highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(screen_of(snapshot, state, size, NOW))
    return captured.get()


def row_with(text: str, screen: str) -> list[str]:
    return next(line.split() for line in screen.splitlines() if text in line)


def test_the_first_view_says_what_waits_at_which_level_and_for_how_many_seconds() -> None:
    assert row_with("billing-0", shown(ViewState()))[:8] == [
        *("orders", "0", "billing-0", "2,000", "10m", "0s", "3m", "20s"),
    ]


def test_the_first_view_also_has_the_stuck_record_and_the_dead_letters_if_there_is_space() -> None:
    assert "stuck (key 3)" in shown(ViewState())
    assert "dead (key 6)" in shown(ViewState())
    assert "dead (key 6" not in shown(ViewState(), (160, 12))


def test_the_stuck_record_is_shown_with_what_hangs_behind_it() -> None:
    row = row_with("2:7", shown(ViewState("stuck")))
    assert row[:2] == ["orders-1", "2:7"]
    assert row[row.index("1m") :][:9] == ["1m", "30s", "10m", "0s", "3", "52", "4+", "190", "BankError:"]


@pytest.mark.parametrize(
    ("view", "texts"),
    [
        ("partitions", ["orders-1", "250", "▓█", "1m 15s"]),
        ("members", ["billing-1", "10.0.0.1", "2,053", ">1m 15s"]),
        ("tenants", ["billing", "3.5", "1m 15s", "12"]),
        ("dead", ["only the newest 2,000 of 5,000", "4,990", "1,990", "0:12"]),
        ("relays", ["overdue, the oldest for 12.0 s", "in the delay topic of 1 m", "39"]),
        ("changes", ["1m 1s", "joined billing-1."]),
        ("rules", ["hold", "tenant = acme", "their bank is down", "1m 40s", "1h", "not known", "A later version"]),
    ],
)
def test_each_view_has_its_figures(view: str, texts: list[str]) -> None:
    screen = shown(ViewState(view))
    assert [text for text in texts if text not in screen] == []


@pytest.mark.parametrize("view", VIEWS)
def test_markup_and_control_characters_in_what_records_say_are_harmless(view: str) -> None:
    screen = shown(ViewState(view))
    assert "\x1b" not in screen
    if view not in ("levels", "relays"):
        assert "[bold]" in screen


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("size", [(80, 24), (40, 10), (10, 4), (300, 80)])
def test_a_screen_of_any_size_is_not_overflown(view: str, size: tuple[int, int]) -> None:
    lines = shown(ViewState(view), size).splitlines()
    assert len(lines) <= max(size[1], 8)
    assert max(map(len, lines)) <= size[0]


def test_on_a_narrow_screen_the_columns_that_matter_stay_readable() -> None:
    assert row_with("billing-0", shown(ViewState(), (80, 24)))[:4] == ["orders", "0", "billing-0", "2,000"]
    assert row_with("2:7", shown(ViewState("stuck"), (80, 24)))[:2] == ["orders-1", "2:7"]


def test_a_view_without_rows_says_why() -> None:
    empty = Snapshot(NOW)
    screens = [shown(ViewState(view), snapshot=empty) for view in VIEWS]
    assert "Name the groups to watch" in screens[0]
    assert all(len(screen.strip().splitlines()) > 3 for screen in screens)
    assert "Reading Kafka" in shown(ViewState(), snapshot=None)


def test_old_figures_are_marked() -> None:
    console = Console(width=160, highlight=False)
    with console.capture() as captured:
        console.print(screen_of(SNAPSHOT, ViewState(), (160, 40), NOW + 25))
    assert "25.0 s old" in captured.get()


def pressed(*keys: str, state: ViewState = ViewState(), rows: int = 100) -> ViewState:  # noqa: B008 - it is frozen
    for key in keys:
        after = state.after(key, columns=3, rows=rows, page=10)
        assert after is not None
        state = after
    return state


def test_numbers_and_tab_switch_the_view() -> None:
    assert pressed("6").view == "dead"
    assert pressed("tab", "tab").view == "stuck"
    assert pressed("left").view == "rules"
    assert pressed("0").view == "levels"


def test_s_sorts_by_each_column_in_turn_and_r_reverses() -> None:
    assert [pressed(*"s" * times).column for times in range(5)] == [None, 0, 1, 2, None]
    assert pressed("r").reverse
    assert pressed("s", "r", "2") == ViewState("partitions")


def test_a_filter_is_typed_and_cleared() -> None:
    typing = pressed("/", "q", "3", "x", "backspace")
    assert (typing.typed, typing.view) == ("q3", "levels")
    assert pressed("enter", state=typing).filter == "q3"
    assert pressed("escape", state=typing).filter == ""
    assert pressed("enter", "escape", state=typing).filter == ""


def test_rows_scroll_and_stay_within_the_table() -> None:
    assert pressed("down", "down", "up").first == 1
    assert pressed("pagedown").first == 10
    assert pressed("end").first == 90
    assert pressed("end", "down", "pagedown").first == 90
    assert pressed("down", rows=5).first == 0
    assert pressed("end", "home", "up").first == 0


def test_q_ends_it_except_while_a_filter_is_typed() -> None:
    assert ViewState().after("q", 3, 0, 10) is None
    assert pressed("?").after("q", 3, 0, 10) is None
    assert pressed("?", "x") == ViewState()


def numbers(view: TableView, column: int) -> list[str]:
    return [row[column].text for row in view.rows]


def test_numbers_are_sorted_as_numbers_the_largest_first() -> None:
    view = VIEW_OF["levels"](SNAPSHOT)
    at = [each.title for each in view.headings].index("not done")
    assert numbers(view.arranged(ViewState(column=at)), at) == ["2,000", "53"]
    assert numbers(view.arranged(ViewState(column=at, reverse=True)), at) == ["53", "2,000"]


def test_a_filter_keeps_the_rows_that_contain_it_in_any_column() -> None:
    view = VIEW_OF["levels"](SNAPSHOT)
    assert numbers(view.arranged(ViewState(filter="BILLING-0")), 2) == ["billing-0"]
    assert view.arranged(ViewState(filter="nothing")).empty == "No row contains 'nothing'. Esc clears the filter."


def test_without_a_terminal_all_is_printed_once_in_full_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    print_once(SNAPSHOT, console_of(width=10_000))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "…" not in printed
    assert "The group mails cannot be read" in printed
    assert "not done" in printed
    assert r"[bold]\x1b[2J</b><script>@10.0.0.1" in printed
    assert printed == "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def test_the_json_has_the_whole_state() -> None:
    described = json.loads(json.dumps(describe_snapshot(SNAPSHOT)))
    [queue] = described["queues"]
    [partition] = queue["levels"][0]["partitions"]
    assert (queue["not_done"], queue["levels"][0]["seconds_of_work"]) == (2_053, 5.3)
    assert (partition["stuck"]["key"], partition["stuck"]["behind"]) == (HOSTILE, 52)
    assert partition["stuck"]["headers"] == [{"name": HOSTILE, "value": HOSTILE}]
    assert partition["incomplete"] == [{"start": 7, "end": 8}]
    assert described["dead_letters"][0]["causes"][0]["newest"] == [0, 12]
    assert described["schedulers"][0]["late_seconds"] == 12.0
