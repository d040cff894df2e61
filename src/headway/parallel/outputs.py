"""What handlers return, on its way to Kafka: record by record, or in transactions with the offsets it came from."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from headway.config import Config, OutputSettings
from headway.core.ticks import Tick
from headway.core.topics import level_topic
from headway.errors import DeliveryError, KafkaError, SerializationError, TransactionError
from headway.kafka.level_consumers import LevelConsumers
from headway.kafka.producer_client import ProducerClient, is_fatal, is_retriable
from headway.kafka.serialization import key_writer, value_writer
from headway.parallel.dead_letters import Letter, letter_headers
from headway.parallel.dispatch import Dispatch, Job, RecordWork
from headway.records import ConsumerRecord, Header, ProducerRecord, RecordMetadata

log = logging.getLogger(__name__)

OnOutput = Callable[[ConsumerRecord, ProducerRecord, RecordMetadata], Any]
"""(input, output, where it is now)"""

_ANY_PARTITION = -1
_A_MOMENT = 0.1
_ANSWER_WITHIN = 30.0
_TRIES = 5


class Output(NamedTuple):
    """A record as the client takes it, and what it came of; `output` is None for a dead letter."""

    letter: Letter
    input: ConsumerRecord
    output: ProducerRecord | None


class Outputs:
    """Turns what a handler returns into outputs: zero, one or many `ProducerRecord`s."""

    def __init__(self, settings: OutputSettings, on_output: OnOutput | None) -> None:
        self._write_key = key_writer(settings.key_serializer)
        self._write_value = value_writer(settings.value_serializer)
        self._on_output = on_output

    def of(self, work: RecordWork, returned: Any) -> list[Output]:
        """The outputs of a work; raises `SerializationError` for what is no record, or cannot be written."""
        if returned is None:
            return []
        records = [returned] if isinstance(returned, ProducerRecord) else _checked(returned)
        return [Output(self._letter(record), work.record, record) for record in records]

    def _letter(self, record: ProducerRecord) -> Letter:
        topic = record.topic if record.priority is None else level_topic(record.topic, record.priority)
        headers: list[Header] = list(record.headers)
        key = self._write_key(record.key, topic, headers) if self._write_key else record.key
        value = self._write_value(record.value, topic, headers) if self._write_value else record.value
        for field, written in (("key", key), ("value", value)):
            if written is not None and not isinstance(written, (str, bytes)):
                raise SerializationError(
                    f"The {field} of a record for {topic} is {type(written).__name__}, not bytes or a string. "
                    f"Convert it, or set {field}.serializer in producer_config."
                )
        partition = _ANY_PARTITION if record.partition is None else record.partition
        return Letter(topic, value, key, partition, record.timestamp or 0, headers)

    def delivered(self, output: Output, message: Any) -> None:
        """Tell the user's callback."""
        if self._on_output is None or output.output is None:
            return
        partition, offset, timestamp = message.partition(), message.offset(), message.timestamp()[1]
        record = output.output
        where = RecordMetadata(record.topic, partition, record.priority or 0, offset, timestamp)
        try:
            self._on_output(output.input, record, where)
        except Exception:
            log.exception("The on_output callback for a record of %s raised.", record.topic)


def _checked(returned: Any) -> list[ProducerRecord]:
    if isinstance(returned, Iterable) and not isinstance(returned, (str, bytes, Mapping)):
        records = list(returned)
        if all(isinstance(record, ProducerRecord) for record in records):
            return records
    raise SerializationError(
        f"The handler returned {type(returned).__name__}; return a ProducerRecord, several of them, or None."
    )


class Sending:
    """Sends outputs as they come; a work is done when Kafka has acknowledged all of its own."""

    def __init__(self, client: ProducerClient, outputs: Outputs, dispatch: Dispatch) -> None:
        self._client = client
        self._outputs = outputs
        self._dispatch = dispatch

    def settle(self, work: RecordWork, returned: Any) -> Job | None:
        """Take what a handler returned; the next job, if there is one for another slot."""
        try:
            outputs = self._outputs.of(work, returned)
        except Exception as error:  # a generator's own too
            return self._dispatch.failed(work, error)
        if not outputs:
            return self._dispatch.done(work)
        pending = _Pending(work, len(outputs), self._dispatch)
        for output in outputs:
            self._send(output, pending)
        return self._dispatch.next()

    def _send(self, output: Output, pending: "_Pending") -> None:
        def report(error: Any, message: Any) -> None:
            if error is None:
                self._outputs.delivered(output, message)
                pending.report(None)
            else:
                pending.report(DeliveryError(f"A record for {output.letter.topic} was not delivered: {error.str()}."))

        try:
            send(self._client, output.letter, report)
        except (DeliveryError, SerializationError) as error:
            pending.report(error)


class _Pending:
    """Counts the reports of one work's outputs; they come on one thread at a time."""

    def __init__(self, work: RecordWork, count: int, dispatch: Dispatch) -> None:
        self._work = work
        self._left = count
        self._refused: BaseException | None = None
        self._dispatch = dispatch

    def report(self, refused: BaseException | None) -> None:
        self._refused = self._refused or refused
        self._left -= 1
        if self._left == 0:
            self._dispatch.stored(self._work, self._refused)


def send(client: ProducerClient, letter: Letter, report: Callable[[Any, Any], None]) -> None:
    """Queue a letter, and wait while there is no room."""
    while True:
        try:
            client.produce(
                letter.topic, letter.value, letter.key, letter.partition, report, letter.timestamp, letter.headers
            )
            return
        except BufferError:
            client.serve(_A_MOMENT)


class Transactions:
    """At each tick one transaction: the whole outputs of what is done, dead letters too, with the offsets and maps.

    Source: KIP-447; the group's generation fences a member that was expelled, so `transactional.id` need not tell
    partitions apart.
    """

    def __init__(
        self,
        client: ProducerClient,
        outputs: Outputs,
        dispatch: Dispatch,
        levels: LevelConsumers,
        dead_letter_topic: str | None,
    ) -> None:
        self._client = client
        self._outputs = outputs
        self._dispatch = dispatch
        self._levels = levels
        self._dead_letter_topic = dead_letter_topic

    def begin(self) -> None:
        """Fence off an earlier producer of the same `transactional.id`; raises `KafkaError`."""
        self._client.init_transactions(_ANSWER_WITHIN)

    def settle(self, work: RecordWork, returned: Any) -> Job | None:
        """Take what a handler returned."""
        try:
            outputs = self._outputs.of(work, returned)
        except Exception as error:  # a generator's own too
            return self._dispatch.failed(work, error)
        return self._dispatch.done(work, outputs)

    def send(self, work: RecordWork, error: BaseException, reason: str) -> None:
        """A work's dead letter rides with its offset."""
        letter = Letter.of(self._dead_letter_topic or "", work.record, letter_headers(work, error, reason))
        self._dispatch.stored(work, None, (Output(letter, work.record, None),))

    def commit(self, tick: Tick) -> None:
        """Commit outputs, offsets and maps together.

        Raises:
            KafkaError: Nothing of it was committed, and it may be tried again.
            TransactionError: This producer was fenced off, or cannot go on.
        """
        try:
            delivered = self._try_commit(tick)
        except KafkaError as error:
            if is_fatal(error):
                raise TransactionError(
                    f"Transactions cannot go on, and nothing since the last commit counts: {error} If another "
                    "process uses the same transactional.id, give each its own."
                ) from error
            self._client.abort_transaction(_ANSWER_WITHIN)
            raise
        except BaseException:  # Ctrl-C
            self._client.abort_transaction(_ANSWER_WITHIN)
            raise
        for output, message in delivered:
            self._outputs.delivered(output, message)

    def _try_commit(self, tick: Tick) -> list[tuple[Output, Any]]:
        delivered: list[tuple[Output, Any]] = []
        refused: list[Any] = []
        self._client.begin_transaction()
        for output in tick.outputs:

            def report(error: Any, message: Any, output: Output = output) -> None:
                if error:
                    refused.append(error)
                else:
                    delivered.append((output, message))

            send(self._client, output.letter, report)
        commits = {each: commit[:2] for each, commit in tick.commits.items()}
        for offsets, group_metadata in self._levels.for_transaction(commits):
            _again_if_retriable(partial(self._client.send_offsets, offsets, group_metadata, _ANSWER_WITHIN))
        if refused:
            raise KafkaError(f"{len(refused)} outputs were refused, first of all: {refused[0].str()}.")
        _again_if_retriable(partial(self._client.commit_transaction, _ANSWER_WITHIN))
        return delivered


def _again_if_retriable(call: Callable[[], None]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            call()
            return
        except KafkaError as error:
            if left == 0 or not is_retriable(error):
                raise


def producer_for(settings: OutputSettings, connection: Config, transactional_id: str | None) -> ProducerClient:
    """The client for outputs: idempotent, or transactional."""
    defaults: dict[str, Any] = {"enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
    if transactional_id:
        defaults["transactional.id"] = transactional_id
    return ProducerClient({**defaults, **connection, **settings.kafka})
