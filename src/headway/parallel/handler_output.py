"""The outputs of handlers in the form in which they are sent."""

from headway.core.delay.schedule import Schedule
from headway.core.outgoing_record import OutgoingRecord
from headway.core.record_size import size_of
from headway.execution.jobs import Job
from headway.records.record_types import ProducerRecord


class HandlerOutput(OutgoingRecord, kw_only=True):
    """An output of a handler, or a dead letter that replaces it, with the job that it belongs to.

    `returned` is the record that the handler returned, or None for a dead letter. An output with a `schedule` is due
    later, so it needs a delay topic before it can be sent. Until `is_by_brokers_clock` is True, its times are those of
    this machine's clock.
    """

    job: Job
    returned: ProducerRecord | None
    schedule: Schedule | None = None
    is_by_brokers_clock: bool = False

    @property
    def level(self) -> int:
        """The level of the records that the output was made from."""
        return self.job[0].level


def size_of_output(output: HandlerOutput) -> int:
    """Estimate the bytes that an output takes in memory.

    The fields count twice, because librdkafka has a copy of them while the output is being sent.
    """
    return 2 * size_of(output.value, output.key, output.headers)
