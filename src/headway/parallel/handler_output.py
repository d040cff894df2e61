"""The outputs of handlers in the form that is sent to Kafka."""

from headway.core.delay.schedule import Schedule
from headway.core.outgoing_record import OutgoingRecord
from headway.core.record_size import size_of
from headway.execution.jobs import Job
from headway.records.record_types import ProducerRecord


class HandlerOutput(OutgoingRecord, kw_only=True):
    """An output of a handler, a dead letter that replaces outputs, or a copy of a record that is moved.

    `job` is the job that it belongs to. `returned` is the record that the handler returned, or None for a dead letter
    and for a copy. `is_copy` is True for a copy, which takes the place of its record in another topic.

    If the output has a `schedule`, it is due later, and its delay topic must be chosen before it can be sent. Until
    `is_by_brokers_clock` is True, the times of the schedule come from this machine's clock.
    """

    job: Job
    returned: ProducerRecord | None
    schedule: Schedule | None = None
    is_by_brokers_clock: bool = False
    is_copy: bool = False

    @property
    def is_letter(self) -> bool:
        """True for a dead letter."""
        return self.returned is None and not self.is_copy

    @property
    def level(self) -> int:
        """The level of the records from which the output was made."""
        return self.job[0].level


def size_of_output(output: HandlerOutput) -> int:
    """Estimate how many bytes of memory an output takes.

    The fields count twice, because librdkafka has a copy of them while the output is being sent.
    """
    return 2 * size_of(output.value, output.key, output.headers)
