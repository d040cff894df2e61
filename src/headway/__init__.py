"""Headway: Apache Kafka as a work queue.

Each public name is imported when it is first used. A command that only shows its help is therefore five times as fast,
and each of Spark's Python workers starts sooner. `__init__.pyi` declares the same names for type checkers and editors.
"""

from headway.runtime.lazy_import import importer

_MODULES = {
    "AsyncPriorityConsumer": "headway.priority.async_consumer",
    "AsyncProducer": "headway.priority.async_producer",
    "AsyncScheduler": "headway.delay.async_scheduler",
    "AsyncChangeRequest": "headway.delay.change_request",
    "BatchError": "headway.errors",
    "BatchResult": "headway.parallel.result_stream",
    "Batches": "headway.parallel.batches",
    "ChangeRequest": "headway.delay.change_request",
    "CircuitBreaker": "headway.core.engine.circuit",
    "ConsumerRecord": "headway.records.record_types",
    "Context": "headway.execution.context",
    "FatalError": "headway.errors",
    "Ladder": "headway.core.delay.ladder",
    "LevelMetrics": "headway.priority.consumer",
    "Ordering": "headway.core.engine.lanes",
    "Origin": "headway.records.history",
    "ParallelConsumer": "headway.parallel.consumer",
    "PriorityConsumer": "headway.priority.consumer",
    "Producer": "headway.priority.producer",
    "ProducerMetrics": "headway.priority.producer",
    "ProducerRecord": "headway.records.record_types",
    "RecordMetadata": "headway.records.record_types",
    "Relay": "headway.delay.relay.relay",
    "Result": "headway.parallel.result_stream",
    "RetriableError": "headway.errors",
    "Retries": "headway.core.retry",
    "RetryLater": "headway.errors",
    "ScheduleHandle": "headway.delay.handle",
    "Scheduler": "headway.delay.scheduler",
    "Settled": "headway.core.delay.changes",
    "StoredOutput": "headway.parallel.output_stream",
    "TopicPartition": "headway.records.record_types",
    "create_topic": "headway.kafka.topic_creation",
    "exponential_backoff": "headway.core.retry",
    "exponential_shares": "headway.core.levels.capacity",
    "fixed_backoff": "headway.core.retry",
    "linear_shares": "headway.core.levels.capacity",
    "settings_from_environment": "headway.environment",
    "weighted_shares": "headway.core.levels.capacity",
    "worker": "headway.workers.worker",
}

__all__ = list(_MODULES)

__getattr__ = importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
