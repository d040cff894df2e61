"""The outbox: rows of a program's own transactions become records, each once and in order."""

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from sqlalchemy import Engine, create_engine, select, text

from headway import Producer, create_topic
from headway.contrib.outbox import Outbox, OutboxRelay
from headway.errors import ConfigError, DeliveryError, FencedError, HeadwayError, SerializationError
from tests.broker.delay_cluster import DelayCluster, wait_until
from tests.contract.conftest import Cluster

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).with_name("dying_outbox_relay.py")
STEPS = ["before fence", "after fence", "after send", "before commit", "within commit", "after commit"]
STEPS_OF_DELETE = ["before delete", "after delete"]


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


def made(engine: Engine, **options: Any) -> Outbox:
    outbox = Outbox(**options)
    outbox.create(engine)
    return outbox


def name() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


def relay(cluster: Cluster, engine: Engine, outbox: Outbox, named: str | None = None) -> OutboxRelay:
    config = cluster.config({"linger.ms": 0})
    return OutboxRelay(engine, config, name=named or name(), outbox=outbox, every=0.01)


def add(engine: Engine, *inserts: Any) -> None:
    """One transaction for each record."""
    for insert in inserts:
        with engine.begin() as connection:
            connection.execute(insert)


def read(cluster: Cluster, count: int, *topics: str) -> list[ck.Message]:
    """Read this many committed records, and whatever else there is."""
    config = {"group.id": name(), "auto.offset.reset": "earliest"}
    records: list[ck.Message] = []
    with closing(ck.Consumer({**cluster.config(config), "log_level": 0})) as consumer:
        consumer.subscribe(list(topics))
        deadline = time.monotonic() + 30
        while len(records) < count and time.monotonic() < deadline:
            records += consumer.consume(1000, 0.2)
        return records + consumer.consume(1000, 0.5)


def plain(cluster: Cluster, partitions: int = 4) -> str:
    topic = f"outbox-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.config({}), topic, partitions=partitions)
    return topic


def test_a_committed_row_becomes_one_record_at_its_level_and_a_rolled_back_one_none(
    kafka_cluster: Cluster, engine: Engine
) -> None:
    outbox, topic = made(engine, levels=3), kafka_cluster.topic()
    add(engine, outbox.insert(topic, b"\x00 1", key="k", headers=[("h", b"\xff"), ("n", None)], level=2))
    with engine.connect() as connection, connection.begin() as transaction:
        connection.execute(outbox.insert(topic, "never", level=2))
        transaction.rollback()
    add(engine, outbox.insert(topic, "2", partition=1), outbox.insert(topic, None, "k", level=1))
    running = relay(kafka_cluster, engine, outbox)
    assert running.drain() == 3
    assert running.drain() == 0
    topics = [f"{topic}-{level}" for level in range(3)]
    records = {record.topic(): record for record in read(kafka_cluster, 3, *topics)}
    assert [records[each].value() for each in topics] == [b"2", None, b"\x00 1"]
    assert (records[topics[2]].key(), records[topics[2]].headers()) == (b"k", [("h", b"\xff"), ("n", None)])
    assert records[topics[0]].partition() == 1
    with engine.connect() as connection:
        assert connection.execute(select(outbox.table)).all() == []


def test_records_of_a_key_are_in_the_order_in_which_their_rows_were_added(
    kafka_cluster: Cluster, engine: Engine
) -> None:
    outbox, topic = made(engine), plain(kafka_cluster)
    with engine.begin() as connection:
        for i in range(1200):
            connection.execute(outbox.insert(topic, str(i), key=f"k{i % 7}"))
    assert relay(kafka_cluster, engine, outbox).drain() == 1200
    records = read(kafka_cluster, 1200, topic)
    assert len(records) == 1200
    for key in {record.key() for record in records}:
        values = [int(record.value() or b"") for record in records if record.key() == key]
        assert values == sorted(values)


def test_a_row_with_a_due_time_becomes_a_record_then(
    headway_broker: Any, kafka_cluster: Cluster, engine: Engine
) -> None:
    delay = DelayCluster(headway_broker.bootstrap_servers, partitions=1)
    outbox = made(engine)
    add(engine, outbox.insert(delay.target, "late", key="late", due=timedelta(seconds=1), id="reminder"))
    add(engine, outbox.insert(delay.target, "expired", key="at once", expires=0.001))
    config = kafka_cluster.config({"linger.ms": 0, "scheduler.name": delay.name})
    sender = OutboxRelay(engine, config, name=name(), outbox=outbox)
    with delay.relay():
        assert sender.drain() == 2
        delay.wait_for_keys([b"late", b"at once"])
    [late] = [message for message in delay.read() if message.key() == b"late"]
    assert late.value() == b"late"


def test_what_cannot_be_a_record_is_refused_in_the_callers_transaction() -> None:
    outbox = Outbox(levels=2)
    for wrong in ({"level": 2}, {"level": True}, {"partition": -1}, {"due": float("nan")}, {"id": "x"}):
        with pytest.raises(ConfigError):
            outbox.insert("orders", b"", **wrong)
    for wrong_value in ({"a": 1}, 1):
        with pytest.raises(ConfigError, match="Serialise it first"):
            outbox.insert("orders", wrong_value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no levels"):
        Outbox().insert("orders", b"", level=0)
    with pytest.raises(ConfigError, match="valid name"):
        outbox.insert("our orders", b"")
    with pytest.raises(ConfigError, match="expire before"):
        outbox.insert("orders", b"", due=60, expires=30)
    with pytest.raises(SerializationError, match="header"):
        outbox.insert("orders", b"", headers=[("n", 1)])  # type: ignore[list-item]


def test_a_record_that_kafka_refuses_is_set_aside_and_the_others_are_sent(
    kafka_cluster: Cluster, engine: Engine
) -> None:
    outbox, topic = made(engine), plain(kafka_cluster)
    add(
        engine,
        outbox.insert(topic, "before"),
        outbox.insert(topic, b"x" * 1_200_000),
        outbox.insert(topic, "between"),
        outbox.insert(topic, "after"),
    )
    running = relay(kafka_cluster, engine, outbox)
    assert running.drain() == 3
    assert running.refused == 1
    assert {record.value() for record in read(kafka_cluster, 3, topic)} == {b"before", b"between", b"after"}
    with engine.begin() as connection:
        [large] = connection.execute(outbox.refused()).all()
        assert "too large" in large.error
        connection.execute(outbox.table.update().values(partition=0, value=b"mended"))
        connection.execute(outbox.retry())
    assert running.drain() == 1


def test_rows_of_a_database_that_was_created_again_are_sent(kafka_cluster: Cluster, engine: Engine) -> None:
    """Their numbers are those of rows that were sent before."""
    outbox, topic, named = made(engine), plain(kafka_cluster), name()
    add(engine, outbox.insert(topic, "old"))
    assert relay(kafka_cluster, engine, outbox, named).drain() == 1
    outbox.table.drop(engine)
    outbox.create(engine)
    add(engine, outbox.insert(topic, "new"))
    assert relay(kafka_cluster, engine, outbox, named).drain() == 1
    assert len(read(kafka_cluster, 2, topic)) == 2


def test_a_newer_relay_fences_off_the_older_one(kafka_cluster: Cluster, engine: Engine) -> None:
    outbox, topic, named = made(engine), plain(kafka_cluster), name()
    older = relay(kafka_cluster, engine, outbox, named)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            older.run()
        except FencedError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    add(engine, outbox.insert(topic, "1"))
    wait_until(lambda: older.sent == 1)
    newer = relay(kafka_cluster, engine, outbox, named)
    newer.drain()
    add(engine, outbox.insert(topic, "2"))
    thread.join(30)
    assert "Run one relay" in str(ended[0])
    assert newer.drain() == 1
    assert sorted(record.value() or b"" for record in read(kafka_cluster, 2, topic)) == [b"1", b"2"]


def test_a_database_that_fails_for_a_while_only_delays_the_records(kafka_cluster: Cluster, engine: Engine) -> None:
    outbox, topic = made(engine), plain(kafka_cluster)
    running = relay(kafka_cluster, engine, outbox)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        add(engine, outbox.insert(topic, "1"))
        wait_until(lambda: running.sent == 1)
        with engine.begin() as connection:
            connection.execute(text("alter table headway_outbox rename to gone"))
        time.sleep(0.1)  # several looks at the table fail
        with engine.begin() as connection:
            connection.execute(text("alter table gone rename to headway_outbox"))
        add(engine, outbox.insert(topic, "2"))
        wait_until(lambda: running.sent == 2)
    finally:
        running.stop()
        thread.join(30)
    assert len(read(kafka_cluster, 2, topic)) == 2


def test_a_record_that_was_not_sent_in_time_is_not_set_aside(
    kafka_cluster: Cluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, topic = made(engine), plain(kafka_cluster)
    add(engine, outbox.insert(topic, "1"))
    running = relay(kafka_cluster, engine, outbox)

    def fail(*_: Any) -> None:
        raise DeliveryError("1 records of the transaction could not be handed to librdkafka within 50 seconds.")

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "commit_transaction", fail)
        with pytest.raises(DeliveryError):
            running.drain()
    assert running.refused == 0
    assert running.drain() == 1
    assert len(read(kafka_cluster, 1, topic)) == 1


def test_a_relay_without_its_table_says_so(kafka_cluster: Cluster, engine: Engine) -> None:
    with pytest.raises(Exception, match="headway_outbox"):
        relay(kafka_cluster, engine, Outbox()).run()


@pytest.mark.parametrize("step", [*STEPS, *(f"{each} again" for each in STEPS_OF_DELETE)])
def test_a_relay_that_is_killed_at_any_step_loses_and_doubles_nothing(
    kafka_cluster: Cluster, engine: Engine, database_url: str, step: str
) -> None:
    outbox, topic, named = made(engine), plain(kafka_cluster), name()
    if step.endswith("again"):  # the first list of rows exists, so a start deletes rows before it sends any
        add(engine, outbox.insert(topic, "0", key="k"))
        relay(kafka_cluster, engine, outbox, named).drain()
    values = [str(i) for i in range(1, 21)]
    with engine.begin() as connection:
        for value in values:
            connection.execute(outbox.insert(topic, value, key="k"))
    url = database_url
    killed = subprocess.run(
        [sys.executable, PROGRAM, url, kafka_cluster.bootstrap_servers, named, step.removesuffix(" again")],
        cwd=Path(__file__).parents[3],
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    relay(kafka_cluster, engine, outbox, named).drain()
    received = [(record.value() or b"").decode() for record in read(kafka_cluster, 20 + step.endswith("again"), topic)]
    assert received == (["0"] if step.endswith("again") else []) + values


def test_the_producer_of_a_relay_cannot_be_given_another_id(kafka_cluster: Cluster, engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        OutboxRelay(engine, kafka_cluster.config({"transactional.id": "mine"}), name="shop")
    for wrong in ("", "our shop/1"):
        with pytest.raises(HeadwayError):
            OutboxRelay(engine, kafka_cluster.config({}), name=wrong)


def test_a_list_that_another_program_wrote_stops_the_relay(kafka_cluster: Cluster, engine: Engine) -> None:
    outbox, named = made(engine), name()
    relay(kafka_cluster, engine, outbox, named).drain()
    with Producer(kafka_cluster.config({})) as producer:
        producer.send(f"headway-outbox-{named}", b"[1]", f"headway-outbox-{named}")
    with pytest.raises(HeadwayError, match="not a list of rows"):
        relay(kafka_cluster, engine, outbox, named).drain()
