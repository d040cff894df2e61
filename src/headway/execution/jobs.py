"""The types of a job, which is one call of a handler."""

from collections.abc import Sequence

from headway.core.engine.attempt import Attempt
from headway.records.record_types import ConsumerRecord

RecordAttempt = Attempt[ConsumerRecord]
Job = Sequence[RecordAttempt]
"""The attempts that one call of a handler makes: a single attempt, or one for each record of a batch."""
