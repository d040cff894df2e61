"""The types of a job, which is one call of a handler."""

from collections.abc import Sequence

from headway.core.engine.attempt import Attempt
from headway.records.record_types import ConsumerRecord

RecordAttempt = Attempt[ConsumerRecord]
Job = Sequence[RecordAttempt]
"""The attempts of one call of a handler: a single attempt, or one for each record of a batch."""
