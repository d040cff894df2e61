"""The writers of `df.writeStream.format("headway")` and `df.write.format("headway")`, which write rows to Kafka.

Delivery is exactly once. Each task writes its rows in one Kafka transaction together with a *marker*: a record in the
marker topic that names the version (the micro-batch, or the write's `txnVersion`) and identifies the rows.

Before a task writes, it initialises the transactional id of its query and Spark partition. Kafka then fences off the
producers of all earlier attempts and aborts their transactions. Then the task reads the markers. The task writes
nothing if it finds one of these markers under its own number:

- A marker of the same run: an earlier attempt committed its transaction, but died before it could report to Spark.
- A marker of an earlier run for the same rows: the version is being replayed after a restart.

Without such a marker, the rows might still be in Kafka, because an earlier run may have divided the same rows into
other tasks. There are two safeguards against writing them twice:

- After all tasks, the driver *closes* the version with a marker for all its rows. No task writes rows of a closed
  version, or of a version that is older than a closed one.
- While the version is open, a task that recognises its rows in the marker of another task writes none of them and
  reports a *doubt*. The driver adds up the digests of all tasks and compares the sum with the markers. If Kafka does
  not have exactly these rows, the driver raises an error, because skipping the rows would lose them, and writing them
  would duplicate others.
"""

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headway.errors import ConfigError, FencedError, KafkaError, TransactionError
from headway.kafka.admin import Admin
from headway.kafka.binding.time_limits import BROKER_RESTARTS_WITHIN
from headway.kafka.producer.columnar import ColumnarProducer, Columns
from headway.kafka.reading.commit_markers import CommitMarkers, create_marker_topic, marker_partition
from headway.spark.session.error_messages import one_sentence
from headway.spark.sink.closing import close
from headway.spark.sink.digest import RowsDigest
from headway.spark.sink.markers import Marked, Marker, WritePart, WriteReport, divided_otherwise, read_marker
from headway.spark.sink.options import SinkOptions, check_columns, for_batch, for_stream, parse, topics_of
from headway.spark.sink.rows import chunks
from headway.spark.sink.scheduled_rows import DueRows, SchedulerDelayTopics, delay_topic_settings, find_delay_topics

log = logging.getLogger(__name__)

_LOOK_FOR_COMMIT_EVERY = 0.5  # seconds between checks of whether another attempt has committed
_NO_ROWS_WITHIN = 0.005  # seconds to wait before a slot is opened, because tasks without rows end sooner
_PREPARED_FOR = 10.0  # seconds for which the checks of Kafka are valid, so that not every micro-batch repeats them


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The message of a task that has ended: how many rows it added to Kafka, which is 0 if Kafka already had them.

    `report` is None if the task had no rows, and for writes whose rows are never compared with the rows of an earlier
    run.
    """

    rows: int
    report: WriteReport | None = None


class Target(NamedTuple):
    """The destination of the rows: the options of the write, the delay topics, and the identity of the target topics.

    `delay_topics` holds the scheduler's delay topics, and is None if the rows have no column `due`. `named` is False
    for a batch write without `txnAppId`, which is never repeated after a restart. `place` is a hash of the cluster's id
    and the names of the target topics.
    """

    options: SinkOptions
    delay_topics: SchedulerDelayTopics | None
    named: bool = True
    place: str = ""

    def producer(self, transactional_id: str | None = None) -> ColumnarProducer:
        """Create the producer for one task's rows. If a `transactional_id` is given, the producer is transactional."""
        defaults = delay_topic_settings(in_transaction=transactional_id is not None) if self.delay_topics else {}
        return ColumnarProducer({**defaults, **self.options.kafka}, transactional_id)

    def markers(self) -> CommitMarkers:
        """Create a reader of the marker topic."""
        return CommitMarkers(self.options.kafka, self.options.marker_topic, read_marker, lasting=self.named)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query.

    Spark also creates a writer just to abort a micro-batch, which needs no connection to Kafka. So `stream_writer` does
    not raise an error from Kafka; `write` and `commit` raise it. Otherwise it would hide the error that made Spark
    abort the micro-batch.
    """

    def __init__(self, target: Target | KafkaError) -> None:
        self._target = target
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows of a micro-batch."""
        if isinstance(self._target, KafkaError):
            with one_sentence():
                raise self._target
        return write_part(self._target, iterator, _part_of_query(self._run))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Close the micro-batch. Spark calls this after all tasks of the micro-batch have succeeded."""
        if not reports_of(messages):
            return
        if isinstance(self._target, KafkaError):
            with one_sentence():
                raise self._target
        close_version(self._target, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. If several writes have the same `txnAppId` and `txnVersion`, only the first takes effect."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run = uuid.uuid4().hex
        self._app_id = target.options.app_id or f"write-{self._run}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows."""
        version = self._target.options.version or 0
        return write_part(self._target, iterator, WritePart(self._app_id, version, _task().partitionId(), self._run))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Close the version. Spark calls this after all tasks of the write have succeeded."""
        close_version(self._target, messages)


def stream_writer(schema: StructType, given: Mapping[str, str]) -> StreamWriter:
    """Create the writer for a streaming query. Raises `ConfigError` if an option or a column is not valid."""
    with one_sentence():
        options = for_stream(parse(given))
        try:
            return StreamWriter(_checked(schema, options, named=True))
        except KafkaError as refused:
            return StreamWriter(refused)


def batch_writer(schema: StructType, given: Mapping[str, str], *, overwrite: bool) -> BatchWriter:
    """Create the writer for `df.write`.

    Raises `ConfigError` if an option or a column is not valid, and `KafkaError` if Kafka cannot be reached or rejects a
    request.
    """
    with one_sentence():
        if overwrite:
            raise ConfigError('Kafka topics can only be appended to. Write with .mode("append").')
        options = for_batch(parse(given))
        return BatchWriter(_checked(schema, options, named=bool(options.app_id)))


def _checked(schema: StructType, options: SinkOptions, *, named: bool) -> Target:
    """Check the columns, prepare Kafka, and return the target. `named` has the same meaning as in `Target`."""
    check_columns(schema, options)
    if not named:
        options = replace(options, marker_topic=f"{options.marker_topic}-unnamed")
    marker_topic = options.marker_topic if options.delivery == "exactly_once" else None
    scheduler_name = options.scheduler_name if "due" in schema.fieldNames() else None
    now = int(time.monotonic() / _PREPARED_FOR)
    delay_topics, cluster = _prepare(marker_topic, scheduler_name, tuple(options.kafka.items()), named, now)
    return Target(options, delay_topics, named, _place(cluster, topics_of(schema, options)))


def _place(cluster: str, topics: Sequence[str]) -> str:
    return blake2b("\0".join((cluster, *topics)).encode(), digest_size=6).hexdigest()


@lru_cache(maxsize=16)
def _prepare(
    marker_topic: str | None, scheduler_name: str | None, kafka: tuple[tuple[str, str], ...], named: bool, now: int
) -> tuple[SchedulerDelayTopics | None, str]:
    """Check on the driver, before any task starts, that Kafka can be used, and create the topics that do not exist.

    The topics are the marker topic and the scheduler's delay topics. Returns the delay topics and the id of the
    cluster. `now` is part of the cache key, so that the result is used for ten seconds only: Spark keeps this process
    for later queries, and the topics can be deleted in the meantime.
    """
    admin = Admin(dict(kafka), BROKER_RESTARTS_WITHIN if named else 0.0)
    if marker_topic:
        create_marker_topic(admin, marker_topic, lasting=named)
    else:
        admin.topics()
    return find_delay_topics(dict(kafka), scheduler_name) if scheduler_name else None, admin.cluster_id()


def write_part(target: Target, batches: Iterator[pa.RecordBatch], part: WritePart) -> Written:
    """Write the rows of a task, and return how many were written.

    With exactly-once delivery, the rows and their marker are written in one transaction, and rows that Kafka already
    has are not written again.
    """
    is_once = target.options.delivery == "exactly_once"
    with one_sentence(), _opened_beside(target, part) if is_once else nullcontext() as slot_when_open:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return Written(0)
        rows = chain([first], batches)
        if slot_when_open:
            return _write_once(target, slot_when_open(), rows, part)
        with target.producer() as producer:
            return Written(_send(producer, target, rows))


class Slot(NamedTuple):
    """The slot of a Spark partition: its producer, the reader of its markers, and the markers that were read.

    A slot belongs to one Spark partition of a query, in all versions. A part, in contrast, is the rows of the partition
    in one version. The producer has fenced off all earlier attempts. The markers were read after that, so none can be
    missing.
    """

    producer: ColumnarProducer
    markers: CommitMarkers
    marked: Marked


@contextmanager
def _slot(target: Target, part: WritePart) -> Iterator[Slot]:
    with target.producer(f"headway-sink-{part.slot}") as producer, target.markers() as markers:
        yield Slot(producer, markers, Marked.read(markers.newest(part.key), part))


@contextmanager
def _opened_beside(target: Target, part: WritePart) -> Iterator[Callable[[], Slot]]:
    """Open the part's slot on a thread while the caller waits for its first rows.

    Yields a function that waits for the slot and returns it, or raises the error that prevented it from being opened.
    The thread waits a few milliseconds before it opens the slot, because many tasks have no rows and end without a
    slot.
    """
    decided, is_wanted = threading.Event(), True

    def take() -> Slot | None:
        decided.wait(_NO_ROWS_WITHIN)
        return opened.enter_context(_slot(target, part)) if is_wanted else None

    def slot() -> Slot:
        decided.set()
        return taking.result()  # type: ignore[return-value]  # not None while `is_wanted` is true

    with ExitStack() as opened, ThreadPoolExecutor(1, thread_name_prefix="headway-slot") as thread:
        taking = thread.submit(take)
        try:
            yield slot
        finally:
            is_wanted = False
            decided.set()


def _write_once(target: Target, slot: Slot, batches: Iterator[pa.RecordBatch], part: WritePart) -> Written:
    options = target.options
    producer, markers, marked = slot
    keeps = options.keep_version == part.version
    if marked.is_by_this_run(part):
        return Written(0, marked.report(part, RowsDigest(), options.keep_version))
    if not keeps and (refused := marked.for_another_target(part, target.place)):
        raise refused
    if not marked.is_open(part):
        return Written(0, _compared(target, slot, batches, part))
    # An unnamed write is never repeated after a restart, so no other run will compare its rows with the rows of this
    # write.
    digest = RowsDigest(target.place, None if keeps else marked.written_elsewhere(part)) if target.named else None
    began, may_take = time.monotonic(), producer.transaction_timeout
    try:
        rows = _send(producer, target, batches, digest)
        if digest is not None and not keeps:
            now = Marked.read(markers.again(part.key), part)
            if digest.written.seen or now.since(marked, part, digest):
                producer.abandon()
                _note_misfit(target, slot, part)
                return Written(0, now.report(part, digest, options.keep_version, doubt=divided_otherwise(part)))
            if not now.is_open(part):  # the producer closes without a commit, so no reader sees the transaction
                doubt = now.refusal(part, digest, options.marker_topic)
                return Written(0, now.report(part, digest, options.keep_version, doubt=doubt))
        marker = marked.with_this(part, rows, digest or RowsDigest())
        producer.mark(options.marker_topic, markers.partition_of(part.key), part.key, marker.encode())
        producer.commit()
    except FencedError as error:
        if (took := time.monotonic() - began) > may_take:
            raise TransactionError(
                f"A task took {took:.0f} s to write its rows, but its transaction times out after {may_take:g} s. "
                "Divide the rows into more tasks, or raise the option `kafka.transaction.timeout.ms`."
            ) from error
        if (other := _other_attempt_commits(markers, part, may_take)) is None:
            raise
        return Written(0, other.report(part, RowsDigest(), options.keep_version))
    return Written(rows, marked.report(part, digest, options.keep_version, is_new=True) if digest else None)


def _compared(target: Target, slot: Slot, batches: Iterator[pa.RecordBatch], part: WritePart) -> WriteReport:
    """Compute the digest of rows that must not be written, and report whether Kafka already has these rows."""
    options, digest, before = target.options, RowsDigest(target.place), 0
    producer, _, marked = slot
    for batch in batches:
        deque(_chunks(batch, options, producer, digest=digest, first=before), maxlen=0)  # `_chunks` updates the digest
        before += batch.num_rows
    if marked.has(part, digest, options.keep_version):
        return marked.report(part, digest, options.keep_version)
    if marked.may_be_closed(part) and not marked.is_misfit(part):
        _note_misfit(target, slot, part)
    return marked.report(part, digest, options.keep_version, doubt=marked.refusal(part, digest, options.marker_topic))


def _note_misfit(target: Target, slot: Slot, part: WritePart) -> None:
    """Write a marker that stops further tasks of this run from writing.

    The run's rows, or their division into tasks, differ from an earlier run's. Without the marker, Kafka would get rows
    of both runs, and the tasks of the next run would have to match the tasks of both.
    """
    topic, key = target.options.marker_topic, part.misfit_key
    slot.producer.mark(topic, marker_partition(key), key, Marker(part.version, 0, run=part.run).encode())
    slot.producer.commit()


def reports_of(messages: Sequence[WriterCommitMessage | None]) -> list[WriteReport]:
    """Return the reports in the tasks' messages. There are none if no task had rows, or delivery is at least once."""
    return [each.report for each in messages if isinstance(each, Written) and each.report]


def close_version(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Close the version whose tasks sent these messages by writing a marker for all its rows.

    Raises `TransactionError` if Kafka has different rows of this version, and `KafkaError` if the marker cannot be
    written.
    """
    reports = reports_of(messages)
    if not reports or not target.named:
        return
    part, topic = reports[0].part, target.options.marker_topic

    def markers_in_kafka() -> list[Marker]:
        with target.markers() as markers:
            found = markers.newest(part.closing_key)
        kept = (part.closing_key, part.misfit_key)
        return [read_marker(value) for key, value in found.items() if key not in kept]

    with one_sentence():
        closing = close(reports, markers_in_kafka, topic)
        if closing.warning:
            log.warning("%s", closing.warning)
        if closing.marker is not None:
            with target.producer() as producer:
                producer.partitions(topic)  # connect now, because otherwise librdkafka sends nothing for half a second
                producer.mark(topic, marker_partition(part.closing_key), part.closing_key, closing.marker.encode())
                producer.flush()


def _other_attempt_commits(markers: CommitMarkers, part: WritePart, within: float) -> Marked | None:
    """Wait until the attempt that fenced off this one commits, for at most `within` seconds.

    Returns the markers if that attempt belongs to this run and has committed, and None otherwise. If this attempt
    failed instead of waiting, Spark would start a new attempt, which would fence off the other one. With speculative
    execution, attempts would fence each other off until Spark fails the job.
    """
    deadline = time.monotonic() + within
    while (marked := Marked.read(markers.newest(part.key), part)).is_open(part):
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_FOR_COMMIT_EVERY)
    return marked if marked.is_by_this_run(part) else None


def _send(
    producer: ColumnarProducer, target: Target, batches: Iterator[pa.RecordBatch], digest: RowsDigest | None = None
) -> int:
    due_rows = DueRows(target.delay_topics, target.options.kafka) if target.delay_topics else None
    rows = before = 0
    for batch in batches:
        for columns in _chunks(batch, target.options, producer, due_rows=due_rows, digest=digest, first=before):
            producer.send(columns)
            rows += columns.rows
        before += batch.num_rows
    producer.flush()
    return rows


def _chunks(batch: pa.RecordBatch, options: SinkOptions, producer: ColumnarProducer, **more: Any) -> Iterator[Columns]:
    return chunks(batch, options.topic, producer.partitions, priorities=options.priorities, **more)


def _task() -> Any:
    return TaskContext.get()


def _part_of_query(run: str) -> WritePart:
    task = _task()
    query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
    return WritePart(query, int(batch), task.partitionId(), run, is_micro_batch=True)
