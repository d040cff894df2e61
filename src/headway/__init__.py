"""Headway: Apache Kafka as a work queue."""

from headway.aio import AsyncPriorityConsumer, AsyncPriorityProducer
from headway.consumer import LevelMetrics, PriorityConsumer
from headway.core.capacity import exponential, linear, weighted
from headway.producer import PriorityProducer, ProducerMetrics
from headway.records import ConsumerRecord, RecordMetadata, TopicPartition

__all__ = [
    "AsyncPriorityConsumer",
    "AsyncPriorityProducer",
    "ConsumerRecord",
    "LevelMetrics",
    "PriorityConsumer",
    "PriorityProducer",
    "ProducerMetrics",
    "RecordMetadata",
    "TopicPartition",
    "exponential",
    "linear",
    "weighted",
]
