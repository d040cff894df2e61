"""What a task does, by the markers that there are: write its part, leave it as it is, or refuse with advice."""

from itertools import repeat

import pytest

from headway.kafka.producer.columnar import Columns
from headway.spark.sink.digest import RowsDigest
from headway.spark.sink.markers import Marked, Marker, WritePart

STREAM = WritePart("query", 3, 0, "second run", is_micro_batch=True)
WRITE = WritePart("job", 3, 0, "second run")


def rows(*values: int) -> RowsDigest:
    digest = RowsDigest()
    texts = [str(value) for value in values]
    digest.add(Columns(len(texts), 0, repeat("orders"), texts, repeat(None), repeat(-1), None))
    return digest


def after(*versions: tuple[int, RowsDigest], part: WritePart = STREAM, newest: int | None = None) -> Marked:
    """The markers after these versions of a part were written, in an earlier run."""
    marked = Marked()
    for version, digest in versions:
        marker = marked.with_this(part._replace(version=version, run="first run"), digest.rows, digest)
        marked = Marked.read({part.key: marker.encode()}, part)
    return marked if newest is None else marked._replace(others=(Marker(newest, 1, "1:0000000000000000"),))


def verdict(marked: Marked, digest: RowsDigest, part: WritePart = STREAM, keep_version: int | None = None) -> str:
    """As the sink goes through it."""
    if marked.is_by_this_run(part):
        return "is there"
    if marked.is_open(part):
        return "write"
    return "is there" if marked.has(part, digest, keep_version) else "refuse"


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        (after(), "write"),
        (after((2, rows(1, 2))), "write"),  # even the same rows: they come twice in the source
        (after((2, rows(1, 2)), newest=3), "write"),  # another task of it has written its part
        (after(newest=3), "write"),
        (after((3, rows(1, 2))), "is there"),
        (after((3, rows(2, 1))), "is there"),
        (after((3, rows(1, 2)), (4, rows(3, 4)), (5, rows(5))), "is there"),
        (after((3, rows(1, 3))), "refuse"),
        (after((3, rows(1))), "refuse"),
        (after((3, rows(3)), (4, rows(4))), "refuse"),
        (after((2, rows(3)), newest=4), "refuse"),  # ahead in another task
        (after(newest=4), "refuse"),
    ],
)
def test_a_part_is_written_once_and_other_rows_in_its_place_are_refused(marked: Marked, expected: str) -> None:
    assert verdict(marked, rows(1, 2)) == expected


def test_another_attempt_of_the_same_run_counts_whatever_its_rows_were() -> None:
    assert verdict(after((3, rows(1))), rows(2), STREAM._replace(run="first run")) == "is there"
    assert verdict(after((4, rows(1))), rows(2), STREAM._replace(run="first run")) == "refuse"


def test_the_version_that_is_to_be_kept_is_and_no_other() -> None:
    assert verdict(after((3, rows(1))), rows(2), keep_version=3) == "is there"
    assert verdict(after((3, rows(1))), rows(2), keep_version=2) == "refuse"
    assert verdict(after((4, rows(1))), rows(2), keep_version=3) == "refuse"
    assert verdict(after((2, rows(1)), newest=3), rows(2), keep_version=3) == "write"


def test_due_times_of_a_clock_are_no_other_rows_in_the_same_version_but_in_another() -> None:
    def due(at: int) -> RowsDigest:
        digest = RowsDigest()
        digest.add(Columns(1, 0, ["orders"], ["unpaid"], repeat(None), repeat(-1), None), due=[at])
        return digest

    assert verdict(after((3, due(1))), due(2)) == "is there"
    assert verdict(after((4, due(1))), due(2)) == "refuse"
    assert verdict(after((4, due(1))), due(1)) == "is there"


def test_what_a_marker_remembers_is_bounded() -> None:
    marked = after(*((version, rows(version)) for version in range(1_000)))
    assert marked.own is not None
    assert len(marked.own.encode()) < 2_000
    assert verdict(marked, rows(998), STREAM._replace(version=998)) == "is there"
    assert verdict(marked, rows(3)) == "refuse"


def test_a_marker_without_a_digest_stands_for_no_rows() -> None:
    bare = Marked.read({STREAM.key: b'{"version": 3, "rows": 2}'}, STREAM)
    assert verdict(bare, rows(1, 2)) == "refuse"
    assert verdict(bare, rows(1, 2), keep_version=3) == "is there"
    assert verdict(Marked(Marker(2, 2)), rows(1, 2)) == "write"


def test_a_refusal_says_what_came_what_is_there_and_how_to_go_on() -> None:
    other = after((3, rows(1)))
    assert other.refusal(STREAM, rows(2, 3), "markers").sentence == (
        "Task 0 of micro-batch 3 has 2 rows, but Kafka has 1 different ones, so it writes none. If the checkpoint is "
        "an older copy, continue from the latest checkpoint. Or write all rows since the copy, some of them a second "
        'time, with .option("markerTopic", "markers-2") from now on. If they are the same rows, but their contents '
        'differ on each run, keep the rows in Kafka with .option("keepVersion", "3"). Rows with an `identity` column '
        "do not need this. If the same rows are now divided into other tasks, divide them as before, with the same "
        "number of cores, or whatever else determines the tasks. For later versions, put "
        'repartition(n, "key") with a fixed n before the write.'
    )
    ahead = after((5, rows(1)), part=WRITE)
    assert ahead.refusal(WRITE, rows(2), "markers").sentence == (
        "Task 0 of txnAppId job, version 3 has 1 rows, but Kafka already has other rows, up to version 5, so it writes "
        "none. If these are new rows, write them under another txnAppId, or with a txnVersion above 5."
    )
