"""A record that a handler returned, as it is sent, or the dead letter that takes its place."""

from headway.core.delay.schedule import Schedule
from headway.core.outgoing_record import OutgoingRecord
from headway.core.record_size import size_of
from headway.execution.jobs import Job
from headway.records.record_types import ProducerRecord


class HandlerOutput(OutgoingRecord, kw_only=True):
    """A record to send, and the job that it came from; `returned` is the handler's record, None for a dead letter.

    With a `schedule` it is due later, and must be placed in a delay line before it is sent. Placing it also corrects
    its times, which count by this machine's clock until then.
    """

    job: Job
    returned: ProducerRecord | None
    schedule: Schedule | None = None
    is_by_brokers_clock: bool = False

    @property
    def level(self) -> int:
        """The level of the records that it came from."""
        return self.job[0].level


def size_of_output(output: HandlerOutput) -> int:
    """Return about how many bytes an output takes: here, and in librdkafka while it is sent."""
    return 2 * size_of(output.value, output.key, output.headers)
