"""Rows that come again later: after `RetryLater`, and at the deadline of their task."""

import asyncio
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType

from headway import Context, FatalError, RetriableError, RetryLater
from headway.core.retry import GiveUp, Retries, Verdict, fixed_backoff
from headway.errors import HandlerError
from headway.records.expiry import expiry_header
from headway.records.history import HEADER, history_of
from headway.spark.stage import running_calls
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.outcomes import outcome_columns
from headway.spark.stage.settings import RowHandler, Settings
from headway.spark.stage.task import Stage

SETTINGS = Settings(
    key=("key",),
    max_concurrency=8,
    time_limit=None,
    retries=Retries(fixed_backoff(0.01), max_attempts=3),
    columns=outcome_columns(IntegerType(), later=True),
    later=True,
)
SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.int32(),
        "topic": pa.string(),
        "level": pa.int32(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
SENT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_call_is_left_behind() -> Iterator[None]:
    """Calls that were left at a deadline end with the test."""
    yield
    deadline = time.monotonic() + 30
    while running_calls.given_up or running_calls.left_behind:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def record(number: int, key: bytes | None, headers: Sequence[tuple[str, bytes]] = ()) -> dict[str, Any]:
    fields = [{"key": name, "value": value} for name, value in headers]
    return {
        "key": key,
        "value": number,
        "topic": "orders",
        "level": 2,
        "partition": 1,
        "offset": number,
        "timestamp": SENT,
        "headers": fields or None,
    }


def came_of(handler: RowHandler, rows: Sequence[dict[str, Any]], settings: Settings = SETTINGS) -> list[dict[str, Any]]:
    batches = (pa.RecordBatch.from_pylist(list(rows[at : at + 50]), SCHEMA) for at in range(0, len(rows), 50))
    return [row for batch in Stage(handler, settings).run(batches) for row in batch.to_pylist()]


def again(row: dict[str, Any]) -> dict[str, Any]:
    """The record of a row that came out as `later`, as a relay delivers it."""
    own = [(each["key"], each["value"]) for each in row["headers"] or () if each["key"] != HEADER]
    return record(row["offset"] + 1_000, row["key"], [*own, (HEADER, row["history"].encode())])


def test_a_row_that_is_put_off_comes_out_with_its_time_and_its_attempts_and_others_of_its_key_go_on() -> None:
    async def call(row: InputRow, context: Context) -> int:
        if row.value == 0 and context.attempt == 2:
            raise RetryLater(60) from OSError("busy")
        if row.value == 0:
            raise ValueError("at first")
        return 1

    began = time.time()
    found = {row["value"]: row for row in came_of(call, [record(0, b"a"), record(1, b"a")])}
    assert (found[0]["outcome"], found[0]["attempts"], found[0]["result"]) == ("later", 2, None)
    assert found[0]["error"] == {
        "exception": "builtins.OSError",
        "message": "busy",
        "reason": "it is tried again later",
    }
    assert found[0]["again_at"].timestamp() - began == pytest.approx(60, abs=5)
    assert (found[1]["outcome"], found[1]["again_at"]) == ("ok", None)

    history = history_of([(HEADER, found[0]["history"])], "orders-2")
    assert history is not None
    assert (str(history.origin), history.attempts, history.since) == ("orders-2-1-0", 2, SENT.timestamp() * 1000)
    assert history.first is not None
    assert history.last is not None
    assert (history.first.message, history.last.message) == ("at first", "busy")


def test_attempts_are_counted_on_and_the_last_is_a_dead_letter_with_the_first_error_and_the_last() -> None:
    attempts = []

    async def call(row: InputRow, context: Context) -> int:
        attempts.append(context.attempt)
        assert str(row.origin) == "orders-2-1-0"
        raise RetryLater(timedelta(0)) from OSError(f"attempt {context.attempt}")  # type: ignore[arg-type]

    rows = [record(0, b"a", [("own", b"1")])]
    for _ in range(2):
        [row] = came_of(call, rows)
        assert row["outcome"] == "later"
        rows = [again(row)]
    [row] = came_of(call, rows)
    assert (row["outcome"], row["attempts"], attempts) == ("failed", 3, [1, 2, 3])
    assert (row["error"]["message"], row["error"]["reason"]) == ("attempt 3", "attempt 3 of 3 failed")
    history = history_of([(HEADER, row["history"])], "orders-2")
    assert history is not None
    assert history.first is not None
    assert history.first.message == "attempt 1"


@pytest.mark.parametrize("delay", [math.nan, math.inf, "soon", None, datetime(2026, 1, 1), object()])
def test_a_delay_that_is_none_is_a_failed_attempt(delay: Any) -> None:
    async def call(row: InputRow, context: Context) -> int:
        raise RetryLater(delay)

    [row] = came_of(call, [record(0, b"a")])
    assert (row["outcome"], row["attempts"]) == ("failed", 3)
    assert "The handler" not in row["error"]["reason"]


def test_an_expired_row_is_not_handled_and_the_next_of_its_key_is() -> None:
    async def call(row: InputRow, context: Context) -> int:
        return 1

    now = round(time.time() * 1000)
    rows = [record(0, b"a", [expiry_header(now - 1)]), record(1, b"a", [expiry_header(now + 600_000)])]
    rows += [record(2, None, [expiry_header(1)])]
    found = {row["value"]: (row["outcome"], row["attempts"]) for row in came_of(call, rows)}
    assert found == {0: ("expired", 0), 1: ("ok", 1), 2: ("expired", 0)}


@pytest.mark.parametrize("is_async", [False, True])
def test_slow_calls_do_not_hold_up_a_task_beyond_its_deadline(is_async: bool) -> None:
    release, at_least = threading.Event(), 1.5
    slow = {3, 40, 80}

    async def call_async(row: InputRow, context: Context) -> int:
        if row.value in slow:
            await asyncio.sleep(30)
        return 1

    def call(row: InputRow, context: Context) -> int:
        if row.value in slow:
            release.wait()  # which nothing interrupts
        return 1

    rows = [record(number, b"%d" % (number % 50)) for number in range(100)]
    began = time.monotonic()
    found = {
        row["value"]: row
        for row in came_of(call_async if is_async else call, rows, replace(SETTINGS, deadline=at_least))
    }
    assert at_least <= time.monotonic() - began < 10
    release.set()
    behind = {53, 90}  # of the same keys
    assert {number for number, row in found.items() if row["outcome"] == "later"} == slow | behind
    assert {number: found[number]["attempts"] for number in (*slow, *behind)} == {
        **dict.fromkeys(slow, 1),
        **dict.fromkeys(behind, 0),
    }
    assert found[53]["again_at"] >= found[3]["again_at"]
    assert "had not ended at the deadline, 1.5 s" in found[3]["error"]["message"]
    assert found[53]["error"]["reason"] == "it had not begun at the deadline"
    assert found[53]["history"] is not None


def test_what_has_no_slot_until_the_deadline_comes_again_without_an_attempt_in_the_order_of_its_key() -> None:
    async def call(row: InputRow, context: Context) -> int:
        await asyncio.sleep(0.3)
        return 1

    rows = [record(number, b"%d" % (number % 7)) for number in range(1_000)]
    came = came_of(call, rows, replace(SETTINGS, deadline=0.5))
    assert Counter(row["value"] for row in came) == Counter(range(1_000))
    later = [row for row in came if row["outcome"] == "later"]
    assert len(later) > 900
    by_key: dict[bytes, list[tuple[int, datetime]]] = defaultdict(list)
    for row in later:
        by_key[row["key"]].append((row["value"], row["again_at"]))
    for key, found in by_key.items():
        assert [number for number, _ in found] == sorted(number for number, _ in found)
        assert [at for _, at in found] == sorted(at for _, at in found)
        done = [row["value"] for row in came if row["outcome"] == "ok" and row["key"] == key]
        assert max(done, default=-1) < found[0][0]


def test_an_attempt_after_the_deadline_is_not_waited_for_and_what_is_behind_it_comes_after_it() -> None:
    async def call(row: InputRow, context: Context) -> int:
        if row.value == 0:
            raise OSError("down")
        return 1

    backoff = Retries(fixed_backoff(50), max_attempts=3)
    began = time.monotonic()
    came = came_of(
        call, [record(0, b"a"), record(1, b"a"), record(2, b"b")], replace(SETTINGS, retries=backoff, deadline=20)
    )
    assert time.monotonic() - began < 10
    found = {row["value"]: row for row in came}
    assert [found[number]["outcome"] for number in range(3)] == ["later", "later", "ok"]
    assert found[0]["again_at"].timestamp() - time.time() == pytest.approx(50, abs=10)
    assert found[1]["again_at"] == found[0]["again_at"]
    assert (found[0]["attempts"], found[1]["attempts"]) == (1, 0)


def test_rows_that_come_in_after_the_deadline_come_again_at_once() -> None:
    calls: list[int] = []
    deadline = 2.0  # long enough for the first row on a busy machine

    async def call(row: InputRow, context: Context) -> int:
        calls.append(row.value)
        return 1

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([record(0, b"a")], SCHEMA)
        time.sleep(deadline + 0.1)
        yield pa.RecordBatch.from_pylist([record(1, b"a")], SCHEMA)

    came = [row for out in Stage(call, replace(SETTINGS, deadline=deadline)).run(rows()) for row in out.to_pylist()]
    assert [(row["value"], row["outcome"]) for row in came] == [(0, "ok"), (1, "later")]
    assert calls == [0]


def test_the_deadline_counts_from_the_first_rows_of_the_task() -> None:
    async def call(row: InputRow, context: Context) -> int:
        return 1

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([], SCHEMA)
        time.sleep(2.2)
        yield pa.RecordBatch.from_pylist([record(0, b"a"), record(1, b"a")], SCHEMA)

    came = [row for out in Stage(call, replace(SETTINGS, deadline=2)).run(rows()) for row in out.to_pylist()]
    assert [(row["value"], row["outcome"]) for row in came] == [(0, "ok"), (1, "ok")]


def test_a_call_that_began_late_counts_as_no_attempt_at_the_deadline_up_to_fifty_times() -> None:
    """Else a queue that is behind makes dead letters of healthy rows: those that begin last, three times."""
    first_takes = 0.0

    async def call(row: InputRow, context: Context) -> int:
        if row.key == b"busy":
            raise RetriableError("busy", untried=True)
        await asyncio.sleep(30 if row.value else first_takes)
        return 1

    one_attempt = Retries(fixed_backoff(60), max_attempts=1)
    one_by_one = replace(SETTINGS, max_concurrency=1, retries=one_attempt, deadline=2)

    def behind_a_long_call(late: dict[str, Any]) -> list[dict[str, Any]]:
        nonlocal first_takes
        for deadline in (2, 5, 12):  # on a busy machine the late call may not even begin, which shows nothing
            first_takes = 0.6 * deadline
            batches = [pa.RecordBatch.from_pylist([row], SCHEMA) for row in (record(0, b"a"), late)]
            stage = Stage(call, replace(one_by_one, deadline=deadline))
            came = [row for out in stage.run(iter(batches)) for row in out.to_pylist()]
            came.sort(key=lambda row: int(row["value"]))
            if came[0]["outcome"] == "ok" and "had not ended at the deadline" in came[1]["error"]["message"]:
                break
        return came

    first, late = behind_a_long_call(record(1, b"b"))
    assert (first["outcome"], late["outcome"], late["attempts"]) == ("ok", "later", 1)
    assert "this does not count as an attempt, because the call had begun only " in late["error"]["message"]

    often = [record(1, b"busy")]
    for _ in range(50):
        often = [again(row) for row in came_of(call, often, one_by_one)]
    first, late = behind_a_long_call({**often[0], "key": b"b"})
    assert (first["outcome"], late["outcome"], late["attempts"]) == ("ok", "failed", 51)

    [early] = came_of(call, [record(1, b"b")], one_by_one)
    assert (early["outcome"], early["attempts"]) == ("failed", 1)


def test_more_calls_than_may_be_left_can_clean_up_after_the_deadline() -> None:
    async def call(row: InputRow, context: Context) -> int:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.2)
        return 1

    rows = [record(number, b"%d" % number) for number in range(running_calls.MOST_LEFT + 200)]
    came = came_of(call, rows, replace(SETTINGS, max_concurrency=2_000, deadline=0.5))
    assert Counter(row["outcome"] for row in came) == {"later": len(rows)}


def test_no_call_begins_after_the_deadline_while_the_rows_behind_are_waited_for() -> None:
    began: list[float] = []

    async def call(row: InputRow, context: Context) -> int:
        began.append(time.monotonic())
        await asyncio.sleep(0.05)
        return 1

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([record(number, b"a") for number in range(40)], SCHEMA)
        time.sleep(1.5)

    came = [row for out in Stage(call, replace(SETTINGS, deadline=0.5)).run(rows()) for row in out.to_pylist()]
    assert Counter(row["value"] for row in came) == Counter(range(40))
    assert len(began) <= 11  # each takes at least 0.05 s, and they run one by one
    later = sorted(row["value"] for row in came if row["outcome"] == "later")
    assert later == list(range(later[0], 40))
    # On a busy machine, the last call may still be running when the task notices that its deadline has passed.
    assert len(began) - 1 <= later[0] <= len(began)


def test_a_coroutine_that_holds_up_its_loop_ends_the_task_some_seconds_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.spark.stage.task.LONGER_BY", 0.2)
    monkeypatch.setattr("headway.spark.stage.handler_loop.LOOP_ANSWERS_WITHIN", 0.2)
    release = threading.Event()

    async def call(row: InputRow, context: Context) -> int:
        release.wait(30)
        return 1

    rows = [record(number, b"%d" % number) for number in range(5)]
    try:
        with pytest.raises(HandlerError, match=r"The coroutine for .* has blocked its event loop"):
            came_of(call, rows, replace(SETTINGS, deadline=0.2))
    finally:
        release.set()


def test_a_time_after_the_last_year_is_in_the_last_year() -> None:
    async def call(row: InputRow, context: Context) -> int:
        raise OSError("down")

    [row] = came_of(
        call, [record(0, b"a")], replace(SETTINGS, deadline=5, retries=Retries(fixed_backoff(1e14), max_attempts=3))
    )
    assert (row["outcome"], row["again_at"].year) == ("later", 9999)


@pytest.mark.parametrize("deadline", [None, 30])
def test_retries_of_a_class_of_ones_own_decide_with_a_deadline_too(deadline: float | None) -> None:
    @dataclass(frozen=True)
    class OnlyOnMondays(Retries):
        is_monday: bool = False

        def decide(self, *args: Any, **kwargs: Any) -> Verdict:
            return super().decide(*args, **kwargs) if self.is_monday else GiveUp("it is not Monday")

    async def call(row: InputRow, context: Context) -> int:
        raise OSError("down")

    [row] = came_of(call, [record(0, b"a")], replace(SETTINGS, retries=OnlyOnMondays(), deadline=deadline))
    assert (row["outcome"], row["attempts"]) == ("failed", 1)
    assert row["error"]["reason"] == "it is not Monday"


@pytest.mark.parametrize("deadline", [None, 30])
def test_a_call_that_cancels_its_own_task_and_returns_costs_the_next_one_nothing(deadline: float | None) -> None:
    async def call(row: InputRow, context: Context) -> int:
        await asyncio.sleep(0)
        if row.value == 0:
            task = asyncio.current_task()
            assert task
            task.cancel()
        return 1

    one_by_one = replace(SETTINGS, max_concurrency=1, deadline=deadline)
    came = came_of(call, [record(number, b"a") for number in range(3)], one_by_one)
    assert [(row["outcome"], row["attempts"]) for row in came] == [("ok", 1)] * 3


WAYS = st.sampled_from(
    ["ok", "fails", "fatal", "later", "untried", "sleeps", "swallows", "cancels itself", "blocks", "bad result"]
)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may strike in `gc`
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(WAYS, min_size=1, max_size=3)), min_size=1, max_size=25),
    st.booleans(),
    st.sampled_from([None, 0.02]),
    st.sampled_from([None, 0.05, 0.15]),
    st.integers(1, 8),
)
def test_each_row_comes_out_once_whatever_its_attempts_do_and_whenever_they_are_cut_off(
    plans: list[tuple[int, list[str]]], is_async: bool, limit: float | None, deadline: float | None, slots: int
) -> None:
    """Of FLINK-40456: a time-out in the moment of a retry or a cancellation left a row in flight for ever."""

    def way_of(number: int, attempt: int) -> str:
        plan = plans[number][1]
        return plan[attempt - 1] if attempt <= len(plan) else "fails"

    running: set[int] = set()
    overlaps: list[int] = []

    def answer(way: str) -> Any:
        if way in ("fails", "fatal", "later", "untried"):
            raise {
                "fails": OSError("down"),
                "fatal": FatalError("wrong"),
                "later": RetryLater(1),
                "untried": RetriableError("busy", untried=True),
            }[way]
        return "no number" if way == "bad result" else 1

    async def call_async(row: InputRow, context: Context) -> Any:
        way = way_of(row.value, context.attempt)
        if row.value in running:
            overlaps.append(row.value)
        running.add(row.value)
        try:
            await asyncio.sleep(0.03 if way == "sleeps" else 0)
            if way == "cancels itself":
                raise asyncio.CancelledError
            if way == "swallows":
                try:
                    await asyncio.sleep(0.04)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.01)
            if way == "blocks":
                time.sleep(0.01)
            return answer(way)
        finally:
            running.discard(row.value)

    def call(row: InputRow, context: Context) -> Any:
        way = way_of(row.value, context.attempt)
        if way in ("sleeps", "swallows", "blocks"):
            time.sleep(0.03)
        if way == "cancels itself":
            raise asyncio.CancelledError
        return answer(way)

    rows = [record(number, b"%d" % key) for number, (key, _) in enumerate(plans)]
    retries = Retries(fixed_backoff(0.005), max_attempts=3)
    some = replace(SETTINGS, max_concurrency=slots, time_limit=limit, deadline=deadline, retries=retries)
    began = time.monotonic()
    came = came_of(call_async if is_async else call, rows, some)
    assert Counter(row["value"] for row in came) == Counter(range(len(plans)))
    assert time.monotonic() - began < 20
    assert not overlaps
    for row in came:
        assert (row["outcome"] == "later") == (row["again_at"] is not None)
        assert row["outcome"] != "ok" or row["result"] == 1
        assert row["attempts"] <= 3 or "untried" in plans[row["value"]][1]
