"""Rows that come again later, on a real Spark: from the sink by the delay topics and a relay to their query."""

import asyncio
import json
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from headway import Context, Ladder, Relay, RetryLater
from headway.cli import headway as command
from headway.core.retry import Retries, fixed_backoff
from headway.dead_letters import PREFIX
from headway.delay.topics import create_topics
from headway.errors import ConfigError
from headway.records.history import HEADER
from headway.spark import InputRow, Output, outputs, parallel_map
from tests.spark.stored import Stored, committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def after_a_while(orders: "LevelTopics", level: int, count: int) -> list[Stored]:
    """So many records of a level, as soon as they are there."""
    deadline = time.monotonic() + 240
    while len(found := committed(orders.servers, f"{orders.topic}-{level}")) < count:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


@pytest.mark.slow
def test_rows_come_again_until_they_are_done_or_dead_letters_and_each_is_one_record_wherever_it_is(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    async def charge(row: InputRow, context: Context) -> str:
        number = int(row.value)
        if number == 13 or (number == 7 and context.attempt == 1):
            raise RetryLater(0.1) from OSError(f"attempt {context.attempt}")
        if number == 5 and context.attempt == 1:
            await asyncio.sleep(60)
        return json.dumps([number, context.attempt, str(row.origin)])

    create_topics({"bootstrap.servers": orders.servers}, orders.topic, Ladder.exponential(0.5, 2, 3), 2)
    kafka = {"kafka.bootstrap.servers": orders.servers}
    source = spark.readStream.format("headway").options(**kafka, subscribe=orders.topic, levels=1)
    rows = source.options(startingOffsets="earliest", includeHeaders=True).load()
    retries = Retries(fixed_backoff(0.01), max_attempts=2)
    charged = parallel_map(rows, charge, "string", key="key", retries=retries, later=True, deadline=3)
    dead = f"{orders.topic}-2"
    records = outputs(charged, Output(f"{orders.topic}-1", value="result", key="key"), dead_letter_topic=dead)
    writer = records.writeStream.format("headway").options(**kafka, schedulerName=orders.topic)
    for number in (5, 6, 7, 13):
        orders.send(0, [number], partition=number % 2, key=b"%d" % number, headers=[("own", b"%d" % number)])
    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            receipts = [json.loads(record.value or b"") for record in after_a_while(orders, 1, 3)]
            [letter] = after_a_while(orders, 2, 1)
        finally:
            query.stop()

    came, last = sorted(receipts), committed(orders.servers, f"{orders.topic}-0")
    assert [receipt[:2] for receipt in came] == [[5, 2], [6, 1], [7, 2]]
    first = {record.number: record for record in reversed(last)}
    assert [receipt[2] for receipt in came] == [
        f"{orders.topic}-0-{first[number].partition}-{first[number].offset}" for number in (5, 6, 7)
    ]
    again = [record for record in last if record.number == 7][1]
    assert (again.partition, again.key, again.headers[0]) == (1, b"7", ("own", b"7"))
    assert sum(record.number == 13 for record in last) == 2

    told = {name.removeprefix(PREFIX): value for name, value in letter.headers}
    assert (letter.value, letter.key, told["own"], told["attempts"]) == (b"13", b"13", b"13", b"2")
    assert (told["message"], told["first.message"], told["exception"]) == (
        b"attempt 2",
        b"attempt 1",
        b"builtins.OSError",
    )
    assert int(told["first.time"]) < int(told["last.time"])
    origin = [f"{orders.topic}-0", first[13].partition, first[13].offset]
    assert json.loads(told[HEADER]) == {"topic": dead, "origin": origin}


@pytest.mark.slow
def test_a_row_that_waits_is_listed_with_the_schedules_and_comes_no_more_once_it_is_cancelled(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    def charge(row: InputRow) -> str:
        raise RetryLater(3600)

    name, server = orders.topic, ["-b", orders.servers]
    create_topics({"bootstrap.servers": orders.servers}, name, Ladder.exponential(60, 2, 3), 2)
    kafka = {"kafka.bootstrap.servers": orders.servers}
    orders.send(0, [7], key=b"seven")
    read = spark.read.format("headway").options(**kafka, subscribe=name, levels=1)
    rows = read.options(includeHeaders=True, splitPartitions=False).load()
    charged = parallel_map(rows, charge, "string", key="key", retries=Retries(max_attempts=2), later=True)
    records = outputs(charged, Output(f"{name}-1", value="result"), dead_letter_topic=f"{name}-2")
    records.write.format("headway").mode("append").options(**kafka, schedulerName=name).save()

    def listed() -> list[dict[str, Any]]:
        said = CliRunner().invoke(command, ["schedule", "list", "--name", name, "--json", *server])
        assert said.exit_code == 0, said.output
        return [json.loads(line) for line in said.stdout.splitlines()]

    [waits] = listed()
    assert waits["topic"] == f"{name}-0"
    assert 3500 < datetime.fromisoformat(waits["due"]).timestamp() - time.time() < 3600
    with Relay({"bootstrap.servers": orders.servers}, name=name).running():
        said = CliRunner().invoke(command, ["schedule", "cancel", "--name", name, *server, waits["handle"]])
    assert said.exit_code == 0, said.output
    assert listed() == []
    assert len(committed(orders.servers, f"{name}-0")) == 1


def test_rows_that_may_come_again_need_the_columns_of_their_records(spark: SparkSession) -> None:
    columns = "key binary, value binary, topic string, partition int, offset long"
    frame = spark.createDataFrame([], columns)
    with pytest.raises(ConfigError, match=r"have no `headers` column\. Rows that can be .*includeHeaders=true"):
        parallel_map(frame, len, "int", key=None, later=True)
    with pytest.raises(ConfigError, match="deadline is 0; it must be"):
        parallel_map(frame, len, "int", key=None, deadline=0)
    whole = spark.createDataFrame([], f"{columns}, headers array<struct<key: string, value: binary>>")
    outcomes = parallel_map(whole, len, "int", key=None, deadline=1)
    with pytest.raises(ConfigError, match=r"have no `value` column\. Rows that can be handled again"):
        outputs(outcomes.drop("value"), dead_letter_topic="dead")
