"""`df.writeStream.format("headway")` and `df.write.format("headway")`: rows to Kafka.

Exactly once: the rows of a task and a marker with the batch's number are written in one transaction. A task first takes
the transactional id of its query and partition, which fences off all earlier attempts and ends their transactions. Then
it reads the markers. If it has a marker from this same run, an earlier attempt committed and died before Spark knew. If
it has one from another run, with the same rows, the batch is a replay after a restart. In both cases the task writes
nothing.

If there is no marker of its own, its rows may still be there: the same rows may have been divided into other tasks. So
the driver closes each batch with a marker for all its rows, and no task writes rows of a batch that is closed, or older
than a closed one. In a batch that is not closed, a task whose rows are found in the marker of another task commits
nothing and reports a doubt. The driver adds up the digests of all tasks, and sees from the sum whether Kafka has
exactly these rows. If it has different ones, an error is raised: skipping the rows would lose them, and writing them
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
from headway.spark.sink.scheduled_rows import DueRows, SchedulerLines, find_lines, line_settings

log = logging.getLogger(__name__)

_LOOK_FOR_COMMIT_EVERY = 0.5  # seconds
_NO_ROWS_WITHIN = 0.005  # seconds; a task without rows ends within this time
_PREPARED_FOR = 10.0  # seconds; Spark creates a writer for each micro-batch, which need not ask Kafka again


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The number of rows that a task has added to Kafka; 0 if Kafka already had them.

    `report` is None for a task without rows, and for writes that are never compared.
    """

    rows: int
    report: WriteReport | None = None


class Target(NamedTuple):
    """The destination of the rows. `lines` has the delay topics, if there is a column for due times.

    A `named` write can be repeated after a restart; an unnamed one never is. `place` identifies the cluster and the
    topics.
    """

    options: SinkOptions
    lines: SchedulerLines | None
    named: bool = True
    place: str = ""

    def producer(self, transactional_id: str | None = None) -> ColumnarProducer:
        """Create a producer for the rows of one task."""
        defaults = line_settings(in_transaction=transactional_id is not None) if self.lines else {}
        return ColumnarProducer({**defaults, **self.options.kafka}, transactional_id)

    def markers(self) -> CommitMarkers:
        """Create a reader of the markers."""
        return CommitMarkers(self.options.kafka, self.options.marker_topic, read_marker, lasting=self.named)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a query's micro-batches.

    Spark creates another writer to commit and to abort a micro-batch, and an abort needs nothing from Kafka. So if
    Kafka refuses something, the error is raised when rows are written. Raised earlier, it would hide the reason for
    which Spark aborts.
    """

    def __init__(self, target: Target | KafkaError) -> None:
        self._target = target
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task of one micro-batch."""
        if isinstance(self._target, KafkaError):
            with one_sentence():
                raise self._target
        return write_part(self._target, iterator, _part_of_query(self._run))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Close the micro-batch once all its tasks have ended."""
        if not reports_of(messages):
            return
        if isinstance(self._target, KafkaError):
            with one_sentence():
                raise self._target
        close_version(self._target, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once; under the same `txnAppId` and `txnVersion` only the first write takes effect."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run = uuid.uuid4().hex
        self._app_id = target.options.app_id or f"write-{self._run}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        version = self._target.options.version or 0
        return write_part(self._target, iterator, WritePart(self._app_id, version, _task().partitionId(), self._run))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Close the version once all its tasks have ended."""
        close_version(self._target, messages)


def stream_writer(schema: StructType, given: Mapping[str, str]) -> StreamWriter:
    """Create the writer for a query. Raises `ConfigError` for invalid options and columns."""
    with one_sentence():
        options = for_stream(parse(given))
        try:
            return StreamWriter(_checked(schema, options, named=True))
        except KafkaError as refused:
            return StreamWriter(refused)


def batch_writer(schema: StructType, given: Mapping[str, str], *, overwrite: bool) -> BatchWriter:
    """Create the writer for a DataFrame. Raises `ConfigError` for its arguments, and `KafkaError` if Kafka refuses."""
    with one_sentence():
        if overwrite:
            raise ConfigError('Kafka topics can only be appended to. Write with .mode("append").')
        options = for_batch(parse(given))
        return BatchWriter(_checked(schema, options, named=bool(options.app_id)))


def _checked(schema: StructType, options: SinkOptions, *, named: bool) -> Target:
    """Return the target after checking the columns and Kafka. For `named`, see `Target`."""
    check_columns(schema, options)
    if not named:
        options = replace(options, marker_topic=f"{options.marker_topic}-unnamed")
    marker_topic = options.marker_topic if options.delivery == "exactly_once" else None
    scheduler_name = options.scheduler_name if "due" in schema.fieldNames() else None
    now = int(time.monotonic() / _PREPARED_FOR)
    lines, cluster = _prepare(marker_topic, scheduler_name, tuple(options.kafka.items()), named, now)
    return Target(options, lines, named, _place(cluster, topics_of(schema, options)))


def _place(cluster: str, topics: Sequence[str]) -> str:
    return blake2b("\0".join((cluster, *topics)).encode(), digest_size=6).hexdigest()


@lru_cache(maxsize=16)
def _prepare(
    marker_topic: str | None, scheduler_name: str | None, kafka: tuple[tuple[str, str], ...], named: bool, now: int
) -> tuple[SchedulerLines | None, str]:
    """Check Kafka, on the driver and before any task. Creates the topic for markers and missing delay topics.

    Returns the scheduler's delay topics and the id of the cluster. `now` is part of the cache's key, so that Kafka is
    asked again after a while: topics can be deleted, and Spark keeps this process for later queries.
    """
    admin = Admin(dict(kafka), BROKER_RESTARTS_WITHIN if named else 0.0)
    if marker_topic:
        create_marker_topic(admin, marker_topic, lasting=named)
    else:
        admin.topics()
    return find_lines(dict(kafka), scheduler_name) if scheduler_name else None, admin.cluster_id()


def write_part(target: Target, batches: Iterator[pa.RecordBatch], part: WritePart) -> Written:
    """Write the rows of a task in one transaction with its marker, unless Kafka already has them."""
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
    """A part's slot: its producer has fenced off earlier attempts, and its markers were read after that."""

    producer: ColumnarProducer
    markers: CommitMarkers
    marked: Marked


@contextmanager
def _slot(target: Target, part: WritePart) -> Iterator[Slot]:
    with target.producer(f"headway-sink-{part.slot}") as producer, target.markers() as markers:
        yield Slot(producer, markers, Marked.read(markers.newest(part.key), part))


@contextmanager
def _opened_beside(target: Target, part: WritePart) -> Iterator[Callable[[], Slot]]:
    """Open the slot while the caller waits for the first rows. Yields a function that returns the slot, or raises.

    Many tasks have no rows, and end before a slot is opened for them.
    """
    decided, is_wanted = threading.Event(), True

    def take() -> Slot | None:
        decided.wait(_NO_ROWS_WITHIN)
        return opened.enter_context(_slot(target, part)) if is_wanted else None

    def slot() -> Slot:
        decided.set()
        return taking.result()  # type: ignore[return-value]  # not None, because it is wanted

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
    # Nothing is ever compared with the rows of an unnamed write, which is never repeated after a restart.
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
            if not now.is_open(part):  # the producer ends without a commit, so nothing of the transaction is ever read
                doubt = now.refusal(part, digest, options.marker_topic)
                return Written(0, now.report(part, digest, options.keep_version, doubt=doubt))
        marker = marked.with_this(part, rows, digest or RowsDigest())
        producer.mark(options.marker_topic, markers.partition_of(part.key), part.key, marker.encode())
        producer.commit()
    except FencedError as error:
        if (took := time.monotonic() - began) > may_take:
            raise TransactionError(
                f"A task took {took:.0f} s, but its transaction may take {may_take:g} s. Divide the rows into more "
                "tasks, or raise the option kafka.transaction.timeout.ms."
            ) from error
        if (other := _other_attempt_commits(markers, part, may_take)) is None:
            raise
        return Written(0, other.report(part, RowsDigest(), options.keep_version))
    return Written(rows, marked.report(part, digest, options.keep_version, is_new=True) if digest else None)


def _compared(target: Target, slot: Slot, batches: Iterator[pa.RecordBatch], part: WritePart) -> WriteReport:
    """Read rows that must not be written, and report whether Kafka has them."""
    options, digest, before = target.options, RowsDigest(target.place), 0
    producer, _, marked = slot
    for batch in batches:
        deque(_chunks(batch, options, producer, digest=digest, first=before), maxlen=0)  # only for the digest
        before += batch.num_rows
    if marked.has(part, digest, options.keep_version):
        return marked.report(part, digest, options.keep_version)
    if marked.may_be_closed(part) and not marked.is_misfit(part):
        _note_misfit(target, slot, part)
    return marked.report(part, digest, options.keep_version, doubt=marked.refusal(part, digest, options.marker_topic))


def _note_misfit(target: Target, slot: Slot, part: WritePart) -> None:
    """Stop further tasks of this run from writing, because its rows, or their division, differ from an earlier run's.

    Otherwise Kafka would have rows of both runs, and a later run would have to match the tasks of each of them.
    """
    topic, key = target.options.marker_topic, part.misfit_key
    slot.producer.mark(topic, marker_partition(key), key, Marker(part.version, 0, run=part.run).encode())
    slot.producer.commit()


def reports_of(messages: Sequence[WriterCommitMessage | None]) -> list[WriteReport]:
    """Return the reports in the messages of tasks. There are none without rows, or for at-least-once delivery."""
    return [each.report for each in messages if isinstance(each, Written) and each.report]


def close_version(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Close the version whose tasks have sent these messages, with a marker for all its rows.

    Raises `TransactionError` if Kafka has different rows for it, and `KafkaError`.
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
                producer.partitions(topic)  # unless it is connected, librdkafka only starts after half a second
                producer.mark(topic, marker_partition(part.closing_key), part.closing_key, closing.marker.encode())
                producer.flush()


def _other_attempt_commits(markers: CommitMarkers, part: WritePart, within: float) -> Marked | None:
    """Wait for the attempt that fenced off this one. Returns its markers if it belongs to this run and has committed.

    If this task failed instead, Spark would start it again, and it would fence off the other attempt. With speculation,
    two attempts would end each other until Spark gives up.
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
    due_rows = DueRows(target.lines, target.options.kafka) if target.lines else None
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
