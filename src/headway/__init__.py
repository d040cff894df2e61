"""Headway: Apache Kafka as a work queue.

What is named here is imported when it is first asked for: a command that only shows its help takes a fifth of the
time, and each of Spark's Python workers starts quicker. `__init__.pyi` tells type checkers and editors the same names.
"""

from headway.lazy_names import importer

_MODULES = {
    "AsyncPriorityConsumer": "headway.aio",
    "AsyncPriorityProducer": "headway.aio",
    "AsyncScheduler": "headway.delay.aio",
    "BatchError": "headway.errors",
    "ConsumerRecord": "headway.records",
    "Context": "headway.parallel.context",
    "FatalError": "headway.core.retry",
    "Ladder": "headway.core.delay_lines",
    "LevelMetrics": "headway.consumer",
    "Ordering": "headway.core.lanes",
    "ParallelConsumer": "headway.parallel.consumer",
    "PriorityConsumer": "headway.consumer",
    "PriorityProducer": "headway.producer",
    "Producer": "headway.producer",
    "ProducerMetrics": "headway.producer",
    "ProducerRecord": "headway.records",
    "RecordMetadata": "headway.records",
    "Relay": "headway.delay.relay",
    "Result": "headway.parallel.results",
    "RetriableError": "headway.core.retry",
    "Retries": "headway.core.retry",
    "RetryLater": "headway.core.retry",
    "ScheduleHandle": "headway.delay.handles",
    "Scheduler": "headway.delay.scheduler",
    "Settled": "headway.core.changes",
    "TopicPartition": "headway.records",
    "exponential": "headway.core.capacity",
    "linear": "headway.core.capacity",
    "weighted": "headway.core.capacity",
    "worker": "headway.workers",
}

__all__ = list(_MODULES)

__getattr__ = importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
