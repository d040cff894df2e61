"""Tools for tests of handlers and workers: records and contexts, runs of a worker, and a mock of Kafka.

For handlers on Spark there are also rows and frames.

As in `headway`, a public name is imported only when it is first used, because pytest loads this package in every
session.
"""

from headway.runtime.lazy_import import importer

_MODULES = {
    "HandlerCall": "headway.testing.outcome",
    "Clock": "headway.testing.service_clock",
    "DeadLetter": "headway.testing.outcome",
    "MockCluster": "headway.kafka.binding.mock_cluster",
    "Scheduled": "headway.testing.outcome",
    "WorkerRun": "headway.testing.outcome",
    "clock": "headway.testing.service_clock",
    "context": "headway.testing.stand_ins",
    "frame": "headway.spark.stage.sample_rows",
    "record": "headway.testing.stand_ins",
    "row": "headway.spark.stage.sample_rows",
    "run_until_idle": "headway.testing.worker_run",
}

__all__ = list(_MODULES)

__getattr__ = importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
