from headway.aio import AsyncPriorityConsumer, AsyncPriorityProducer
from headway.consumer import LevelMetrics, PriorityConsumer
from headway.core.capacity import exponential, linear, weighted
from headway.core.changes import Settled
from headway.core.delay_lines import Ladder
from headway.core.lanes import Ordering
from headway.core.retry import FatalError, RetriableError, Retries, RetryLater
from headway.delay.aio import AsyncScheduler
from headway.delay.handles import ScheduleHandle
from headway.delay.relay import Relay
from headway.delay.scheduler import Scheduler
from headway.errors import BatchError
from headway.parallel.consumer import ParallelConsumer
from headway.parallel.context import Context
from headway.parallel.results import Result
from headway.producer import PriorityProducer, Producer, ProducerMetrics
from headway.records import ConsumerRecord, ProducerRecord, RecordMetadata, TopicPartition
from headway.workers import worker

__all__ = [
    "AsyncPriorityConsumer",
    "AsyncPriorityProducer",
    "AsyncScheduler",
    "BatchError",
    "ConsumerRecord",
    "Context",
    "FatalError",
    "Ladder",
    "LevelMetrics",
    "Ordering",
    "ParallelConsumer",
    "PriorityConsumer",
    "PriorityProducer",
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
    "TopicPartition",
    "exponential",
    "linear",
    "weighted",
    "worker",
]
