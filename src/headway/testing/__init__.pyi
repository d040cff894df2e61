from headway.kafka.binding.mock_cluster import MockCluster
from headway.spark.stage.sample_rows import frame, row
from headway.testing.outcome import DeadLetter, HandlerCall, Scheduled, WorkerRun
from headway.testing.service_clock import Clock, clock
from headway.testing.stand_ins import context, record
from headway.testing.worker_run import run_until_idle

__all__ = [
    "Clock",
    "DeadLetter",
    "HandlerCall",
    "MockCluster",
    "Scheduled",
    "WorkerRun",
    "clock",
    "context",
    "frame",
    "record",
    "row",
    "run_until_idle",
]
