"""What the driver makes of the reports of all tasks: close the version, with or without a word, or refuse."""

import itertools
import re
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import KafkaError, TransactionError
from headway.spark.sink.closing import Closing, close
from headway.spark.sink.digest import RowsDigest, summed
from headway.spark.sink.markers import Doubt, Marked, Marker, WritePart, WriteReport, divided_otherwise
from headway.spark.sink.row_sample import SampledRows, in_common
from headway.spark.sink.writers import StreamWriter, Written

RUN = WritePart("job", 3, 0, "this run")
Division = list[list[int]]


def digest(values: Iterable[int], written: SampledRows | None = None) -> RowsDigest:
    rows = RowsDigest("place", written)
    rows.add_identities(list(values))
    return rows


def markers(division: Division, run: str, version: int = 3) -> dict[bytes, bytes]:
    """The markers of a run that has written these tasks; a task without rows was not."""
    parts = {number: RUN._replace(partition=number, version=version, run=run) for number in range(len(division))}
    rows = {part: digest(division[number]) for number, part in parts.items() if division[number]}
    return {part.key: Marked().with_this(part, own.rows, own).encode() for part, own in rows.items()}


def run_of(division: Division, there: dict[bytes, bytes]) -> Closing:
    """One run of all tasks, one after the other, and then the driver; `there` are the markers before and then."""
    reports = []
    for number, values in enumerate(division):
        part = RUN._replace(partition=number)
        marked = Marked.read(there, part)
        if not values:
            continue
        own = digest(values, marked.written_elsewhere(part))
        doubt: Doubt | None = None
        is_new = False
        if marked.is_by_this_run(part) or (not marked.is_open(part) and marked.has(part, own, None)):
            pass
        elif not marked.is_open(part):
            doubt = marked.refusal(part, own, "markers")
        elif own.written.seen:
            doubt = divided_otherwise(part)
        else:
            is_new = True
            there[part.key] = marked.with_this(part, own.rows, own).encode()
        if doubt is not None:
            there[part.misfit_key] = Marker(part.version, 0, run=part.run).encode()
        reports.append(marked.report(part, own, None, is_new=is_new, doubt=doubt))
    slots = [value for key, value in there.items() if key.rpartition(b"/")[2].isdigit()]
    closing = close(reports, lambda: Marked.read(dict(enumerate(slots)), RUN).others, "markers")  # type: ignore[arg-type]
    if closing.marker is not None:
        there[RUN.closing_key] = closing.marker.encode()
    return closing


def written(markers_then: Mapping[bytes, bytes], division: Division) -> list[int]:
    """The rows that this run has written."""
    own = [Marked.read(markers_then, RUN._replace(partition=number)) for number in range(len(division))]
    return [
        value
        for number, marked in enumerate(own)
        if marked.is_by_this_run(RUN._replace(partition=number))
        for value in division[number]
    ]


def divided(rows: list[int], ends: list[int]) -> Division:
    cuts = [0, *sorted(min(end, len(rows)) for end in ends), len(rows)]
    return [rows[begin:end] for begin, end in itertools.pairwise(cuts)]


def test_a_first_run_is_closed_without_a_word_and_the_next_version_remembers_it() -> None:
    there: dict[bytes, bytes] = {}
    closing = run_of([[1, 2], [], [3]], there)
    assert closing.marker is not None
    assert (closing.marker.version, closing.marker.rows, closing.warning) == (3, 3, "")
    assert Marked.read(there, RUN).closed == closing.marker
    assert not Marked.read(there, RUN._replace(partition=7, run="another")).is_open(RUN._replace(partition=7))


rows = st.integers(1, 60).map(lambda count: list(range(count)))
ends = st.lists(st.integers(0, 60), max_size=6)


@given(rows, ends, ends, st.sets(st.integers(0, 7)), st.booleans())
def test_however_a_run_ended_and_its_rows_are_divided_then_none_is_doubled_and_success_means_that_all_are_there(
    values: list[int], first: list[int], second: list[int], lost: set[int], is_closed: bool
) -> None:
    earlier = divided(values, first)
    kept = [[] if number in lost and not is_closed else task for number, task in enumerate(earlier)]
    there = markers(kept, "an earlier run")
    if is_closed:
        total = digest(values)
        there[RUN.closing_key] = Marker(3, total.rows, total.what, run="an earlier run").encode()
    before = sorted(value for task in kept for value in task)
    now = divided(values, second)
    try:
        run_of(now, there)
    except TransactionError:
        assert kept != earlier
        assert now != earlier
        assert not set(before) & set(written(there, now))
    else:
        assert sorted(before + written(there, now)) == values


@given(rows, ends, ends)
def test_the_digests_of_tasks_add_up_to_the_same_in_each_division(
    values: list[int], first: list[int], second: list[int]
) -> None:
    one, other = (summed((digest(task).what, "") for task in divided(values, ends)) for ends in (first, second))
    assert one == other == (digest(values).what, "")


@pytest.mark.parametrize("what", ["", "1", "1:zz", "1:00000000000000000", "9" * 30 + ":0000000000000000"])
def test_what_is_no_digest_makes_no_sum(what: str) -> None:
    assert summed([(what, ""), (digest([1]).what, "")]) is None
    assert summed([(digest([1]).what, "yesterday")]) is None
    assert summed([]) is None


def test_rows_for_several_targets_make_no_sum() -> None:
    assert summed([(RowsDigest("here").what, ""), (RowsDigest("there").what, "")]) is None


def test_other_rows_of_a_closed_version_are_refused_as_a_whole() -> None:
    there: dict[bytes, bytes] = {}
    run_of([[1, 2], [3]], there)
    later = {key: value.replace(b"this run", b"first run") for key, value in there.items()}
    sentence = "In total, txnAppId job, version 3 has 4 rows, but Kafka has 3 different ones, so it writes none."
    with pytest.raises(TransactionError, match=re.escape(sentence)):
        run_of([[1], [2, 3], [4]], later)


def test_a_task_that_is_gone_in_a_second_run_is_noticed() -> None:
    there = markers([[1], [2], [3]], "an earlier run")
    with pytest.raises(
        TransactionError, match="together have 2 rows, but according to the markers, Kafka has 3 rows of this version"
    ):
        run_of([[1], [2]], there)


def test_who_writes_nothing_is_told_once_with_the_rows_that_are_there() -> None:
    closing = run_of([[1, 2], [3], [4]], markers([[1, 2], [], [4]], "an earlier run"))
    assert closing.warning == (
        "2 of 3 tasks with rows of txnAppId job, version 3 wrote nothing: according to the markers in markers, "
        "Kafka already has their 3 rows, from an earlier run or another attempt."
    )


@pytest.mark.parametrize("messages", [[], [None], [Written(0)], [Written(5)]])
def test_a_micro_batch_without_rows_or_for_at_least_once_is_closed_without_kafka(
    messages: list[Written | None],
) -> None:
    StreamWriter(KafkaError("no broker answers")).commit([*messages], 3)


def test_a_micro_batch_with_rows_is_not_done_before_it_is_closed() -> None:
    rows = digest([1])
    written = Written(1, WriteReport(RUN, rows.what, rows.when, is_new=True))
    with pytest.raises(KafkaError, match="no broker answers"):
        StreamWriter(KafkaError("no broker answers")).commit([written], 3)


# Samples


def test_a_large_part_is_found_among_others_by_its_sample_and_no_other_is() -> None:
    sample = digest(range(10_000)).sample.encode()
    assert len(sample) <= 128 * 8
    assert digest(range(9_000, 40_000), SampledRows([sample])).written.seen > 3
    assert digest(range(10_000, 400_000), SampledRows([sample])).written.seen == 0
    assert in_common(sample, digest(range(9_990)).sample.encode())
    assert not in_common(sample, digest(range(10_000, 20_000)).sample.encode())


def test_a_sample_is_the_same_whatever_the_batches_in_which_rows_come() -> None:
    at_once, by_batches = digest(range(3_000)), RowsDigest("place")
    for first in range(0, 3_000, 500):
        by_batches.add_identities(range(first, first + 500))
    assert at_once.sample.encode() == by_batches.sample.encode()


def test_rows_that_are_alike_say_nothing_of_where_they_were_written() -> None:
    twice = RowsDigest()
    for _ in range(2):
        twice.add_identities(["a"])
        twice.add_identities(["b"])
    assert twice.sample.encode() == b""
    others = RowsDigest(written=SampledRows([digest([1]).sample.encode()]))
    for value in (1, 2, 1):
        others.add_identities([value])
    assert others.written.seen == 0


@pytest.mark.parametrize("sample", [b"", b"abc", b"\0" * 9])
def test_a_sample_of_any_bytes_is_read(sample: bytes) -> None:
    assert SampledRows([sample, sample]).seen == 0
    assert not in_common(digest([1]).sample.encode(), sample)


def test_rows_for_another_target_are_refused_at_once_unless_they_are_to_be_kept() -> None:
    marked = Marked.read(markers([[1], [2]], "an earlier run"), RUN)
    assert marked.for_another_target(RUN, "place") is None
    refused = marked.for_another_target(RUN._replace(partition=5, is_micro_batch=True), "elsewhere")
    assert "Task 5 of micro-batch 3 would write to other topics, or another cluster" in str(refused)
    assert marked.for_another_target(RUN._replace(version=4), "elsewhere") is None
    assert marked.for_another_target(RUN._replace(run="an earlier run"), "elsewhere") is None
