"""Encodes outputs with a due time when a handler returns them. Chooses their delay topics when they are sent."""

import threading
import time
from datetime import datetime

import msgspec

from headway.core.delay.schedule import HEADER, Schedule
from headway.delay.delay_topic_choice import DelayTopicChoice
from headway.delay.due_time import due_at, with_expiry
from headway.delay.schedule_encoder import Encoded, ScheduleEncoder, SchedulingTimes, check_later, put_header
from headway.delay.topic_names import TopicNames
from headway.kafka.binding.connection import change_credentials
from headway.kafka.serialization import FieldWriter
from headway.parallel.handler_output import HandlerOutput
from headway.records.expiry import expiry_of
from headway.records.record_types import ProducerRecord
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of


class DelayedOutputs:
    """Encodes outputs that are due later, and chooses the delay topic of each.

    The scheduler's topics are looked up in Kafka when the first output is placed.

    Args:
        config: The settings of the producer for outputs.
        name: The name of the scheduler.
        write_key: The serialiser of keys, if there is one.
        write_value: The serialiser of values, if there is one.
    """

    def __init__(
        self, config: Config, name: str, write_key: FieldWriter | None, write_value: FieldWriter | None
    ) -> None:
        self._connection = connection_of(config)
        self._names = TopicNames(name)
        self._encoder = ScheduleEncoder(self._names, write_key, write_value)
        self._times = SchedulingTimes()
        self._choice: DelayTopicChoice | None = None
        self._making = threading.Lock()

    def encode(self, record: ProducerRecord) -> Encoded:
        """Encode an output for its delay topic. Raises the same errors as `Scheduler.send_later`.

        The encoded times come from this machine's clock, because the brokers' time might not be known yet. `place`
        corrects these times.
        """
        check_later(record.topic, record.due, record.timestamp, record.id, record.if_pending)
        now = time.time()
        due = due_at(record.due, now)  # type: ignore[arg-type]  # `check_later` has checked it
        headers = record.headers
        if record.expires is not None:
            headers = with_expiry(headers, record.expires, record.due, now)
        at = int(now * 1000)
        schedule, value, key, headers = self._encoder.encode(
            record.key, record.value, record.topic, due, at, headers, record.level, record.partition, record.id
        )
        if record.id is not None:
            headers.append(put_header(record.if_pending))
        return schedule, value, key, headers

    def may_wait(self, schedule: Schedule) -> bool:
        """Return whether `place` might block because delay topics must first be looked up or created."""
        return self._choice is None or self._choice.may_wait(schedule.due - time.time() * 1000)

    def place(self, output: HandlerOutput) -> None:
        """If the output has a schedule, set its delay topic and partition.

        Raises `KafkaError` if the delay topics do not exist and cannot be created.
        """
        if output.schedule is None:
            return
        with self._making:
            if self._choice is None:
                self._choice = DelayTopicChoice(self._connection, self._names)
        now = self._choice.now()
        if not output.is_by_brokers_clock:
            _correct(output, output.schedule, self._choice.time.correction(), self._times)
        output.topic, output.partition = self._choice.place(output.schedule, output.key, int(now * 1000))

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials to look up delay topics."""
        change_credentials(self._connection, username, password)


def _correct(output: HandlerOutput, schedule: Schedule, by: int, times: SchedulingTimes) -> None:
    """Add `by` milliseconds to the times of an output.

    A due time that the handler gave as a `datetime` stays unchanged.
    """
    output.is_by_brokers_clock = True
    record = output.returned
    if record is None:
        return
    at = times.next(max(0, schedule.at + by))
    if at == schedule.at and not by:
        return
    due = schedule.due if isinstance(record.due, datetime) else max(0, schedule.due + by)
    output.schedule = corrected = msgspec.structs.replace(schedule, due=due, at=at)
    fields = [corrected.header() if each[0] == HEADER else each for each in output.headers or ()]
    if record.expires is not None and not isinstance(record.expires, datetime):
        fields = with_expiry(fields, ((expiry_of(fields) or 0) + by) / 1000, now=0.0)
    output.headers = fields
