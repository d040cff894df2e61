"""The works of one call of a handler."""

from collections.abc import Sequence

from headway.core.engine.work import Work
from headway.records.record_types import ConsumerRecord

RecordWork = Work[ConsumerRecord]
Job = Sequence[RecordWork]
"""The works of one call of a handler: one work, or those of a batch."""
