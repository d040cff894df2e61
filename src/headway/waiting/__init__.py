"""Records that wait: list what is not done, and drop or move records before they are handled.

    from headway.waiting import WaitingRecords

    with WaitingRecords({"bootstrap.servers": "localhost:9092"}, "billing", "orders") as waiting:
        late = waiting.records(where="header.tenant = acme", older_than=3600)
        waiting.promote(late, why="they pay for it")

The members of the group must run with `steered=True`. `headway waiting` is the command for the same.
"""

from headway.core.waiting.requests import Fate, RecordFate
from headway.waiting.unfinished_record import UnfinishedRecord
from headway.waiting.waiting_records import WaitingRecords

__all__ = ["Fate", "RecordFate", "UnfinishedRecord", "WaitingRecords"]
