"""`targetTriggerTime`: the limit of a micro-batch follows from what the last ones took, and replays read the same."""

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from headway.spark.report.level_progress import ProgressListener
from tests.spark.test_workers import await_that

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics, MicroBatches

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

COUNT = 4_000
PER_S = 1_500


@pytest.mark.slow
def test_the_limit_follows_from_the_time_that_a_handler_takes_and_a_replay_reads_the_same(
    spark: SparkSession, orders: "LevelTopics", micro_batches: "type[MicroBatches]", tmp_path: Path
) -> None:
    orders.send(0, range(COUNT))
    seen: MicroBatches

    def handle(number: int) -> None:
        if number == 1:
            orders.send(2, range(COUNT, COUNT + 10))
        time.sleep(len(seen.rows[number]) / PER_S)

    def run(into: "MicroBatches") -> None:
        options: dict[str, Any] = {**orders.options, "startingOffsets": "earliest", "targetTriggerTime": "2s"}
        stream = spark.readStream.format("headway").options(**options).load()
        query = stream.writeStream.foreachBatch(into).option("checkpointLocation", str(tmp_path)).start()
        query.processAllAvailable()
        query.stop()

    seen = micro_batches(handle)
    told: list[str] = []
    listener = ProgressListener(told.append)
    spark.streams.addListener(listener)
    run(seen)
    await_that(lambda: len(told) == len(seen.rows))
    spark.streams.removeListener(listener)
    assert ", micro-batch 0: 256 offsets in" in told[0]  # the function computes the frame twice
    assert re.search(r"\n  level 0          256 read 100%        3,744 waiting", told[0])
    assert re.search(r"level 2           10 read +\d+%            0 waiting\n", "".join(told))
    assert re.search(r"level 0 .* waiting, the oldest for \d+ s", "".join(told))
    sizes = [len(rows) for rows in seen.rows.values()]
    assert sizes[0] == 256
    assert max(sizes) <= 2 * PER_S  # 1.6 s of it are aimed at
    assert seen.all_values() == list(range(COUNT + 10))
    assert len(seen.values(2, 2)) == 10  # the high ones come with the next one

    last = max(seen.rows)
    offset = json.loads((tmp_path / "offsets" / str(last)).read_text().splitlines()[-1])
    assert offset["limit"] <= 2 * PER_S
    (tmp_path / "commits" / str(last)).unlink()
    for hidden in (tmp_path / "commits").glob(f".{last}.*"):
        hidden.unlink()
    again = micro_batches()
    run(again)
    assert again.rows[last] == seen.rows[last]
