"""The outputs of handlers in the form that is sent to Kafka."""

from enum import Enum, auto

from headway.core.delay.schedule import Schedule
from headway.core.outgoing_record import OutgoingRecord
from headway.core.record_size import size_of
from headway.execution.jobs import Job
from headway.records.record_types import ProducerRecord


class OutputKind(Enum):
    """Why a record is sent.

    A handler returned it, it is a dead letter, it is a copy that takes the place of its record in another topic, it is
    the result of a call, or it answers an operator's request about waiting records.
    """

    RETURNED = auto()
    LETTER = auto()
    COPY = auto()
    RESULT = auto()
    ANSWER = auto()


class HandlerOutput(OutgoingRecord, kw_only=True):
    """A record that is sent for a record of the input: an output of its handler, or what `kind` says.

    `job` is the job that it belongs to. `returned` is the record that the handler returned, or None for other kinds.

    If the output has a `schedule`, it is due later, and its delay topic must be chosen before it can be sent. Until
    `is_by_brokers_clock` is True, the times of the schedule come from this machine's clock.
    """

    job: Job
    returned: ProducerRecord | None
    kind: OutputKind = OutputKind.RETURNED
    schedule: Schedule | None = None
    is_by_brokers_clock: bool = False

    @property
    def level(self) -> int:
        """The level of the records from which the output was made."""
        return self.job[0].level


def size_of_output(output: HandlerOutput) -> int:
    """Estimate how many bytes of memory an output takes.

    The fields count twice, because librdkafka has a copy of them while the output is being sent.
    """
    return 2 * size_of(output.value, output.key, output.headers)
