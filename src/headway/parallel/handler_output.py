"""An output of a handler in the form in which it is sent, or the dead letter in its place."""

from headway.core.delay.schedule import Schedule
from headway.core.outgoing_record import OutgoingRecord
from headway.core.record_size import size_of
from headway.execution.jobs import Job
from headway.records.record_types import ProducerRecord


class HandlerOutput(OutgoingRecord, kw_only=True):
    """A record to send, with the job that it came from.

    `returned` is the record that the handler returned, or None for a dead letter. An output with a `schedule` is due
    later. It needs a delay topic before it is sent; until then its times are of this machine's clock.
    """

    job: Job
    returned: ProducerRecord | None
    schedule: Schedule | None = None
    is_by_brokers_clock: bool = False

    @property
    def level(self) -> int:
        """The level of the job's records."""
        return self.job[0].level


def size_of_output(output: HandlerOutput) -> int:
    """Estimate the bytes of an output. It is in memory twice: here, and in librdkafka while it is sent."""
    return 2 * size_of(output.value, output.key, output.headers)
