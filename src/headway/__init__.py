"""Headway: Apache Kafka as a work queue."""

from headway.aio import AsyncPriorityConsumer, AsyncPriorityProducer
from headway.consumer import LevelMetrics, PriorityConsumer
from headway.core.capacity import exponential, linear, weighted
from headway.core.lanes import Ordering
from headway.core.retry import FatalError, RetriableError, Retries
from headway.errors import BatchError
from headway.parallel.consumer import ParallelConsumer
from headway.parallel.context import Context
from headway.parallel.results import Result
from headway.producer import PriorityProducer, ProducerMetrics
from headway.records import ConsumerRecord, ProducerRecord, RecordMetadata, TopicPartition
from headway.workers import worker

__all__ = [
    "AsyncPriorityConsumer",
    "AsyncPriorityProducer",
    "BatchError",
    "ConsumerRecord",
    "Context",
    "FatalError",
    "LevelMetrics",
    "Ordering",
    "ParallelConsumer",
    "PriorityConsumer",
    "PriorityProducer",
    "ProducerMetrics",
    "ProducerRecord",
    "RecordMetadata",
    "Result",
    "RetriableError",
    "Retries",
    "TopicPartition",
    "exponential",
    "linear",
    "weighted",
    "worker",
]
