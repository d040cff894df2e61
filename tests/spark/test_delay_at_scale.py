"""Delayed delivery from DataFrames: what is pending, cancelled by predicate, counted, and audited."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headway import Ladder, Relay, Settled
from headway.core.delay.ladder import fit
from headway.delay.topics import create_topics
from headway.errors import ConfigError, NoRelayError
from headway.spark.delay import audit, cancel_where, delays, hot_seconds, occupancy, pending, summary, write_occupancy
from tests.spark.stored import committed

if TYPE_CHECKING:
    from tests.spark.conftest import LevelTopics

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
LADDER = Ladder((1000, 60_000, HOUR_MS))


def schedule(frame: DataFrame, orders: "LevelTopics", **options: Any) -> None:
    create_topics({"bootstrap.servers": orders.servers}, orders.topic, LADDER, 2)
    writer = frame.write.format("headway").mode("append").option("kafka.bootstrap.servers", orders.servers)
    writer.options(schedulerName=orders.topic, topic=f"{orders.topic}-0", **options).save()


def reminders(spark: SparkSession, count: int, seconds: str, tasks: int = 2) -> DataFrame:
    """Rows with the numbers from 0 as key and value, each due so many seconds after now."""
    number = sf.col("id").cast("string")
    due = sf.timestamp_millis(sf.unix_millis(sf.current_timestamp()) + sf.expr(f"cast(1000 * ({seconds}) as long)"))
    return spark.range(0, count, 1, tasks).select(number.alias("key"), number.alias("value"), due.alias("due"))


@pytest.mark.slow
@pytest.mark.kafka
def test_what_is_pending_is_a_dataframe_and_what_a_predicate_takes_of_it_is_cancelled_and_counted(
    spark: SparkSession, orders: "LevelTopics", tmp_path: Path
) -> None:
    config = {"bootstrap.servers": orders.servers}
    schedule(reminders(spark, 300, "if(id < 200, 7200 + id, 5)"), orders)
    there = pending(spark, config, orders.topic).cache()
    number = sf.col("key").cast("string").cast("int")

    assert there.count() == 300
    assert {row["topic_delay_ms"] for row in there.where(number < 200).collect()} == {HOUR_MS}
    page = tmp_path / "schedules.html"
    assert write_occupancy(spark, config, page, orders.topic) == 300
    assert "300 schedules are pending" in page.read_text()
    first = there.where(number == 0).collect()[0]
    assert (first["topic"], first["partition"], bytes(first["value"])) == (f"{orders.topic}-0", None, b"0")
    assert first["due"] - first["scheduled"] == pytest.approx(timedelta(hours=2), abs=timedelta(minutes=1))
    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        counts = cancel_where(spark, config, number % 2 == 0, orders.topic)
        cancelled = counts[Settled.CANCELLED]
        assert cancelled >= 100  # those that are due in two hours; of the others, some may have been delivered by then
        assert cancel_where(spark, config, number % 2 == 0, orders.topic) == {}
        came: list[int] = []
        while len(came) < 200 - cancelled:
            came = [record.number for record in committed(orders.servers, f"{orders.topic}-0")]

    assert counts.get(Settled.DELIVERED, 0) <= 150 - cancelled
    assert sum(value % 2 == 0 for value in came) == 150 - cancelled
    assert sorted(value for value in came if value % 2) == list(range(201, 300, 2))
    left = pending(spark, config, orders.topic).select(number.alias("number")).collect()
    assert sorted(row["number"] for row in left) == list(range(1, 200, 2))


@pytest.mark.slow
@pytest.mark.kafka
def test_without_a_relay_a_cancellation_by_predicate_says_so_and_is_settled_by_the_next_one(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    config = {"bootstrap.servers": orders.servers}
    schedule(reminders(spark, 10, "3600"), orders)
    with pytest.raises(NoRelayError, match=r"Of 10 cancellations, 10 were not answered within 1 s"):
        cancel_where(spark, config, "true", orders.topic, timeout=1)
    with Relay({"bootstrap.servers": orders.servers}, name=orders.topic).running():
        settled = cancel_where(spark, config, "true", orders.topic)
        assert settled.keys() <= {Settled.CANCELLED}  # those that are settled by now are not asked for again
    assert pending(spark, config, orders.topic).count() == 0


@pytest.mark.slow
@pytest.mark.kafka
def test_a_job_that_was_interrupted_and_is_run_again_schedules_each_row_once(
    spark: SparkSession, orders: "LevelTopics"
) -> None:
    rows = reminders(spark, 1_000, "3600", tasks=4).persist()  # so that a due time is the same again
    bad = sf.when((sf.col("key") == "900") & sf.lit(True), sf.lit(99)).cast("int").alias("partition")
    job = {"txnAppId": orders.topic, "txnVersion": 1}
    with pytest.raises(Exception, match=r"Row .* of its task is for partition 99"):
        schedule(rows.select("*", bad), orders, **job)
    interrupted = pending(spark, {"bootstrap.servers": orders.servers}, orders.topic).count()
    schedule(rows, orders, **job)

    keys = pending(spark, {"bootstrap.servers": orders.servers}, orders.topic).select(sf.col("key").cast("string"))
    assert interrupted < 1_000
    assert sorted(int(row["key"]) for row in keys.collect()) == list(range(1_000))


def test_a_scheduler_that_has_no_topics_is_one_sentence(spark: SparkSession, orders: "LevelTopics") -> None:
    with pytest.raises(ConfigError, match="The scheduler nobody has no topics"):
        pending(spark, {"bootstrap.servers": orders.servers}, "nobody")


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def waiting(spark: SparkSession, *dues: tuple[int, float]) -> DataFrame:
    """What is pending: its delay topic, and when it is due in seconds after noon, scheduled an hour before that."""
    rows = [
        (delay_topic, NOON + timedelta(seconds=due), NOON + timedelta(seconds=due - 3600.004))
        for delay_topic, due in dues
    ]
    return spark.createDataFrame(rows, "topic_delay_ms long, due timestamp, scheduled timestamp")


@pytest.mark.slow
def test_lines_and_hours_are_counted_and_the_hottest_seconds_come_first(spark: SparkSession) -> None:
    there = waiting(spark, (1000, 0.1), (1000, 0.9), (60_000, 0.5), (60_000, 3_700))

    counted = occupancy(there).collect()
    assert [(row["topic_delay_ms"], row["hour"].astimezone(UTC).hour, row["pending"]) for row in counted] == [
        (1000, 12, 2),
        (60_000, 12, 1),
        (60_000, 13, 1),
    ]
    hottest = hot_seconds(there, 1).collect()
    assert [(row["second"].astimezone(UTC), row["pending"]) for row in hottest] == [(NOON, 3)]


@pytest.mark.slow
def test_lines_are_proposed_from_the_delays_in_use(spark: SparkSession) -> None:
    in_use = delays(waiting(spark, (1000, 0), (1000, 5), (1000, 9)))
    assert in_use == {HOUR_MS: 3}
    assert fit(in_use, 2).delays == (1000, HOUR_MS)


def test_what_was_due_before_it_was_scheduled_counts_as_without_delay(spark: SparkSession) -> None:
    there = waiting(spark, (1000, 0)).withColumn("scheduled", sf.col("due") + sf.expr("interval 2 seconds"))
    assert delays(there) == {0: 1}


@pytest.mark.slow
def test_of_an_id_that_is_scheduled_twice_what_is_not_due_yet_is_not_lost(spark: SparkSession) -> None:
    due = [(id_, NOON + timedelta(hours=hours)) for id_ in ("none", "one", "both") for hours in (0, 2)]
    came = [("one", NOON), ("both", NOON), ("both", NOON + timedelta(hours=2))]
    scheduled = spark.createDataFrame(due, "id string, due timestamp")
    delivered = spark.createDataFrame(came, "id string, delivered timestamp")

    def verdicts(hours: int) -> dict[str, str]:
        audited = audit(scheduled, delivered, until=NOON + timedelta(hours=hours))
        return {row["id"]: row["verdict"] for row in audited.collect()}

    assert verdicts(1) == {"none": "lost", "one": "pending", "both": "delivered"}
    assert verdicts(3) == {"none": "lost", "one": "lost", "both": "delivered"}


@pytest.mark.slow
def test_each_copy_of_an_id_that_is_scheduled_twice_has_its_own_time(spark: SparkSession) -> None:
    scheduled = spark.createDataFrame(
        [(id_, NOON + timedelta(hours=hours)) for id_ in ("in time", "at once") for hours in (0, 2)],
        "id string, due timestamp",
    )
    came = [("in time", 2), ("in time", 0), ("at once", 0), ("at once", 0)]
    delivered = spark.createDataFrame(
        [(id_, NOON + timedelta(hours=hours)) for id_, hours in came], "id string, delivered timestamp"
    )
    audited = audit(scheduled, delivered, until=NOON + timedelta(hours=3))
    assert {row["id"]: row["verdict"] for row in audited.collect()} == {"in time": "delivered", "at once": "early"}


@pytest.mark.slow
def test_what_came_before_it_was_due_is_early_though_it_is_not_due_yet(spark: SparkSession) -> None:
    scheduled = spark.createDataFrame([("1", NOON), ("1", NOON + timedelta(hours=1))], "id string, due timestamp")
    delivered = spark.createDataFrame([("1", NOON - timedelta(hours=1))], "id string, delivered timestamp")
    [row] = audit(scheduled, delivered, until=NOON - timedelta(minutes=1)).collect()
    assert row["verdict"] == "early"


@pytest.mark.slow
def test_an_audit_finds_each_kind_of_fault_and_tells_how_late_the_others_were(spark: SparkSession) -> None:
    def at(seconds: float) -> datetime:
        return NOON + timedelta(seconds=seconds)

    due = {"fine": 0, "late": 0, "twice": 0, "lost": 0, "early": 1, "gone": 0, "undead": 0, "later": 3_600}
    scheduled = spark.createDataFrame([(id_, at(seconds)) for id_, seconds in due.items()], "id string, due timestamp")
    came = [("fine", 0.0), ("late", 0.25), ("twice", 0.0), ("twice", 9.0), ("early", 0.999), ("undead", 0.0)]
    came += [("stranger", 0.0)]
    delivered = spark.createDataFrame([(id_, at(late)) for id_, late in came], "id string, delivered timestamp")
    cancelled = spark.createDataFrame([("gone",), ("undead",)], "id string")

    audited = audit(scheduled, delivered, cancelled, until=at(60)).cache()

    assert {row["id"]: row["verdict"] for row in audited.collect()} == {
        "fine": "delivered",
        "late": "delivered",
        "twice": "duplicated",
        "lost": "lost",
        "early": "early",
        "gone": "cancelled",
        "undead": "delivered_though_cancelled",
        "later": "pending",
        "stranger": "never_scheduled",
    }
    totals = summary(audited).collect()[0]
    assert (totals["ids"], totals["delivered"], totals["lost"], totals["late_max"]) == (9, 2, 1, 250)
