"""A real Apache Kafka on this machine, for development and tests: `with LocalBroker() as broker: ...`."""

from headway.broker.local_broker import LocalBroker
from headway.broker.node import Node

__all__ = ["LocalBroker", "Node"]
