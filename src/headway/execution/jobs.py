"""The types of a job, which is one call of a handler."""

from collections.abc import Sequence

from headway.core.engine.work import Work
from headway.records.record_types import ConsumerRecord

RecordWork = Work[ConsumerRecord]
Job = Sequence[RecordWork]
"""The attempts of one call of a handler: a single attempt, or one for each record of a batch."""
