"""The worker that `spark_realtime.py` runs on a cluster: it passes each record on. The environment names its topics."""

import os
from typing import Any

from headway import ProducerRecord, worker

SOURCE, TARGET = "HEADWAY_REALTIME_SOURCE", "HEADWAY_REALTIME_TARGET"


@worker(
    os.environ[SOURCE],
    group=os.environ[SOURCE],
    produces=os.environ[TARGET],
    max_concurrency=100,
    commit_mode="transactional",
)
async def pass_on(record: Any) -> ProducerRecord:
    """Return the record for the other topic."""
    return ProducerRecord(os.environ[TARGET], record.value, key=record.key)
