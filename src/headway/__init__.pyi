from headway.core.delay.changes import Settled
from headway.core.delay.ladder import Ladder
from headway.core.engine.circuit import CircuitBreaker
from headway.core.engine.lanes import Ordering
from headway.core.levels.capacity import exponential_shares, linear_shares, weighted_shares
from headway.core.retry import Retries, exponential_backoff, fixed_backoff
from headway.delay.async_scheduler import AsyncScheduler
from headway.delay.change_request import AsyncChangeRequest, ChangeRequest
from headway.delay.handle import ScheduleHandle
from headway.delay.relay.relay import Relay
from headway.delay.scheduler import Scheduler
from headway.environment import settings_from_environment
from headway.errors import BatchError, FatalError, RetriableError, RetryLater
from headway.execution.context import Context
from headway.kafka.topic_creation import create_topic
from headway.parallel.batches import Batches
from headway.parallel.consumer import ParallelConsumer
from headway.parallel.output_stream import StoredOutput
from headway.parallel.result_stream import BatchResult, Result
from headway.priority.async_consumer import AsyncPriorityConsumer
from headway.priority.async_producer import AsyncProducer
from headway.priority.consumer import LevelMetrics, PriorityConsumer
from headway.priority.producer import Producer, ProducerMetrics
from headway.records.history import Origin
from headway.records.record_types import ConsumerRecord, ProducerRecord, RecordMetadata, TopicPartition
from headway.workers.worker import worker

__all__ = [
    "AsyncChangeRequest",
    "AsyncPriorityConsumer",
    "AsyncProducer",
    "AsyncScheduler",
    "BatchError",
    "BatchResult",
    "Batches",
    "ChangeRequest",
    "CircuitBreaker",
    "ConsumerRecord",
    "Context",
    "FatalError",
    "Ladder",
    "LevelMetrics",
    "Ordering",
    "Origin",
    "ParallelConsumer",
    "PriorityConsumer",
    "Producer",
    "ProducerMetrics",
    "ProducerRecord",
    "RecordMetadata",
    "Relay",
    "Result",
    "RetriableError",
    "Retries",
    "RetryLater",
    "ScheduleHandle",
    "Scheduler",
    "Settled",
    "StoredOutput",
    "TopicPartition",
    "create_topic",
    "exponential_backoff",
    "exponential_shares",
    "fixed_backoff",
    "linear_shares",
    "settings_from_environment",
    "weighted_shares",
    "worker",
]
