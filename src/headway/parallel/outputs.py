"""Converts the return values of handlers to outputs, and sends outputs if the run does not use transactions.

A record is done when all its outputs are stored. Outputs in transactions are sent by `transactions.py`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from headway.core.levels.naming import level_topic
from headway.core.outgoing_record import ANY_PARTITION, NOW
from headway.delay.due_time import with_expiry
from headway.delay.schedule_encoder import check_size
from headway.errors import DeliveryError, DeliveryRefusedError, HeadwayError, KafkaError, SerializationError
from headway.execution.dispatch import Dispatch
from headway.execution.jobs import Job
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.headers import check_headers, check_timestamp, header_list
from headway.kafka.producer.sendable import is_partition, no_partition
from headway.kafka.producer.targets import Targets
from headway.kafka.serialization import key_writer, value_writer
from headway.parallel.call_results import CallResults
from headway.parallel.delayed_outputs import DelayedOutputs
from headway.parallel.handler_output import HandlerOutput, OutputKind
from headway.records.record_types import ConsumerRecord, Header, ProducerRecord, RecordMetadata
from headway.settings.config import Config, OutputSettings

log = logging.getLogger(__name__)

OnOutput = Callable[[Any, ProducerRecord, RecordMetadata], Any]
"""A callback that is called with (input, output, metadata) for each stored output.

The input is the `ConsumerRecord` that the output was made from, or a list of records for batches. The metadata has the
position of the stored output.
"""

_MOST_BYTES = 1_000_000  # librdkafka's default for message.max.bytes


class HandlerOutputs:
    """Converts the `ProducerRecord`s that handlers return to outputs. Calls `on_output` for each stored output.

    With `results`, the results of calls are outputs, too. If `returns_outputs` is False, what handlers return is only
    the result of a call. Otherwise the results have no value.
    """

    def __init__(
        self,
        settings: OutputSettings,
        client: ProducerClient,
        on_output: OnOutput | None,
        connection: Config,
        scheduler: str,
        *,
        of_batches: bool = False,
        returns_outputs: bool = True,
        results: CallResults | None = None,
    ) -> None:
        self._of_batches = of_batches
        self._returns_outputs = returns_outputs
        self.results = results
        self._write_key = key_writer(settings.key_serializer)
        self._write_value = value_writer(settings.value_serializer)
        config = {**connection, **settings.kafka}
        self.delayed = DelayedOutputs(config, scheduler, self._write_key, self._write_value)
        self._most_bytes = int(settings.kafka.get("message.max.bytes", _MOST_BYTES))
        self._targets = Targets(client.partitions)
        self._on_output = on_output

    def of(self, job: Job, returned: Any) -> list[HandlerOutput]:
        """Convert the return value of a job to outputs.

        Raises an error if a value is not a record, or if Kafka would certainly refuse it. All outputs are checked
        before the first one is sent, so that usually none is stored if one of them is invalid.
        """
        outputs: list[HandlerOutput] = []
        if self._returns_outputs and returned is not None:
            records = [returned] if isinstance(returned, ProducerRecord) else _checked(returned)
            outputs = [self._output(job, record) for record in records]
        if self.results is not None:
            result = self.results.of(job[0], None if self._returns_outputs else returned)
            if result is not None:
                outputs.append(result)
        return outputs

    def _output(self, job: Job, record: ProducerRecord) -> HandlerOutput:
        if record.due is not None or record.id is not None or record.if_pending != "replace":
            return self._delayed_output(job, record)
        topic = record.topic if record.level is None else level_topic(record.topic, record.level)
        headers: list[Header] = header_list(record.headers)
        if record.expires is not None:
            headers = with_expiry(headers, record.expires)
        key = self._write_key(record.key, topic, headers) if self._write_key else record.key
        value = self._write_value(record.value, topic, headers) if self._write_value else record.value
        self._check_size(topic, key, value)
        check_headers(headers, topic)
        check_timestamp(record.timestamp, topic)
        self._check_target(topic, record.partition)
        partition = ANY_PARTITION if record.partition is None else record.partition
        return HandlerOutput(topic, value, key, partition, record.timestamp or NOW, headers, job=job, returned=record)

    def _delayed_output(self, job: Job, record: ProducerRecord) -> HandlerOutput:
        schedule, value, key, headers = self.delayed.encode(record)
        self._check_size(schedule.topic, key, value)
        output = HandlerOutput(schedule.topic, value, key, headers=headers, job=job, returned=record, schedule=schedule)
        check_size(output)
        return output

    def _check_size(self, topic: str, key: Any, value: Any) -> None:
        size = _size("key", key, topic) + _size("value", value, topic)
        if size > self._most_bytes:
            raise DeliveryError(
                f"A record for {topic} has {size} bytes, but message.max.bytes is {self._most_bytes}. Make it smaller, "
                "or raise message.max.bytes in producer_config and in the topic's settings."
            )

    def _check_target(self, topic: str, partition: int | None) -> None:
        """Raise `DeliveryError` if the topic or the partition is known not to exist."""
        if partition is not None and not is_partition(partition):
            raise no_partition(partition, topic)
        try:
            count = self._targets.too_few(topic, partition or 0)
        except DeliveryError:
            raise
        except KafkaError:  # no broker answers, so a missing topic will be detected only by the delivery report
            return
        if count == 0:
            raise DeliveryError(f"The topic {topic} of an output does not exist. Create it, or correct its name.")
        if count is not None:
            raise DeliveryError(
                f"An output is for partition {partition} of {topic}, but that topic has partitions 0 to {count - 1}."
            )

    def delivered(self, output: HandlerOutput, message: Any) -> None:
        """Call `on_output` for a stored output, if the user has given one."""
        if self._on_output is None or output.returned is None:
            return
        partition, offset, timestamp = message.partition(), message.offset(), message.timestamp()[1]
        record = output.returned
        topic, level = (record.topic, record.level or 0) if output.schedule is None else (output.topic, 0)
        where = RecordMetadata(topic, partition, level, offset, timestamp)
        try:
            self._on_output(self._input(output.job), record, where)
        except BaseException:  # this thread makes all calls of `on_output`, so an error must not end the thread
            log.exception("The on_output callback for a record of %s raised an error.", record.topic)

    def refused(self, output: HandlerOutput, error: BaseException) -> None:
        """Note that an output was not stored. Outputs that are traced override this."""

    def _input(self, job: Job) -> ConsumerRecord | list[ConsumerRecord]:
        return [attempt.record for attempt in job] if self._of_batches else job[0].record


def _checked(returned: Any) -> list[ProducerRecord]:
    what = type(returned).__name__
    if isinstance(returned, Iterable) and not isinstance(returned, (str, bytes, Mapping)):
        records = list(returned)
        wrong = [type(record).__name__ for record in records if not isinstance(record, ProducerRecord)]
        if not wrong:
            return records
        what += f" with {wrong[0]} in it"
    raise SerializationError(f"The handler returned {what}. Return a ProducerRecord, several of them, or None.")


def _size(field: str, written: object, topic: str) -> int:
    if written is None:
        return 0
    if isinstance(written, str):
        written = written.encode()
    if isinstance(written, bytes):
        return len(written)
    raise SerializationError(
        f"The {field} of a record for {topic} has the type {type(written).__name__}; it must be bytes or str. Convert "
        f"it, or set {field}.serializer in producer_config."
    )


class Sending:
    """Sends outputs without transactions. A job is done if Kafka stores all its outputs. Otherwise the job has failed.

    Outputs whose delay topics must first be looked up or created are sent in a separate thread, because the lookup must
    not block the event loop of async handlers.
    """

    def __init__(self, client: ProducerClient, outputs: HandlerOutputs, dispatch: Dispatch) -> None:
        self._client = client
        self._outputs = outputs
        self._dispatch = dispatch
        self._thread = ThreadPoolExecutor(1, "headway-delayed-outputs")
        self._waiting = set[Future[None]]()

    def take_result(self, job: Job, returned: Any) -> Job | None:
        """Send the outputs that a handler returned. Returns the next job for the calling thread or task, or None."""
        try:
            outputs = self._outputs.of(job, returned)
        # The user's serialiser or iterator can raise anything, and then the attempt has failed.
        except BaseException as error:
            return self._dispatch.complete(job, error)
        if not outputs:
            return self._dispatch.complete(job) if job[1:] else self._dispatch.done(job[0])
        pending = _UnstoredOutputs(job, len(outputs), self._dispatch)
        delayed = self._outputs.delayed
        if any(output.schedule is not None and delayed.may_wait(output.schedule) for output in outputs):
            waiting = self._thread.submit(self._send_all, outputs, pending)
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
        else:
            self._send_all(outputs, pending)
        return self._dispatch.next()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials to look up delay topics."""
        self._outputs.delayed.set_sasl_credentials(username, password)

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for outputs that wait for their delay topics.

        Outputs still waiting then are not sent.
        """
        wait(list(self._waiting), timeout)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _send_all(self, outputs: list[HandlerOutput], pending: "_UnstoredOutputs") -> None:
        for output in outputs:
            self._send(output, pending)

    def _send(self, output: HandlerOutput, pending: "_UnstoredOutputs") -> None:
        def report(error: Any, message: Any) -> None:
            if error is None:
                self._outputs.delivered(output, message)
                pending.report(None)
            else:
                refuse(why_not_delivered(self._client, output.topic, error))

        def refuse(why: HeadwayError) -> None:
            self._outputs.refused(output, why)
            if output.kind is OutputKind.RESULT:
                log_refused_result(output, why)
            pending.report(None if output.kind is OutputKind.RESULT else why)

        try:
            if output.schedule is not None:
                self._outputs.delayed.place(output)
            self._client.send(output, report)
        except HeadwayError as error:
            refuse(error)


class _UnstoredOutputs:
    """Counts the delivery reports of the outputs of one job, and completes the job after the last report.

    Thread-safe.
    """

    def __init__(self, job: Job, count: int, dispatch: Dispatch) -> None:
        self._job = job
        self._left = count
        self._refused: BaseException | None = None
        self._dispatch = dispatch
        self._lock = threading.Lock()  # protects `_left` and `_refused`

    def report(self, refused: BaseException | None) -> None:
        with self._lock:
            self._refused = self._refused or refused
            self._left -= 1
            if self._left:
                return
        if self._refused is not None or self._job[1:]:
            self._dispatch.complete_elsewhere(self._job, self._refused)
        else:
            self._dispatch.stored(self._job[0])


def log_refused_result(output: HandlerOutput, reason: object) -> None:
    """Log that the result of a call was not stored. Its record is done all the same."""
    log.warning("The result of %r was not stored, so its sender gets no answer: %s", output.job[0].record, reason)


def why_not_delivered(client: ProducerClient, topic: str, error: Any) -> DeliveryError:
    """Convert the error in a record's delivery report to the error that the caller gets."""
    if permission := client.missing_permission(error, topic):
        return DeliveryRefusedError(f"A record for {topic} was not delivered. {permission.missing()}")
    return DeliveryError(f"A record for {topic} was not delivered: {error.str()}.")


def producer_for(
    settings: OutputSettings, connection: Config, transactional_id: str | None, most_bytes: int
) -> ProducerClient:
    """Make the producer for outputs. With a `transactional_id` it is transactional, otherwise only idempotent.

    A transactional producer also sends dead letters, so it gets `most_bytes` as `message.max.bytes`.
    """
    defaults: dict[str, Any] = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
    if not transactional_id:
        return ProducerClient({**defaults, **connection, **settings.kafka})
    defaults["transactional.id"] = transactional_id
    return ProducerClient({**defaults, **connection, **settings.kafka, "message.max.bytes": most_bytes})
