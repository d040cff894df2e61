from headway.broker.local_broker import LocalBroker
from headway.broker.node import Node

__all__ = [
    "LocalBroker",
    "Node",
]

EXTRA: tuple[str, ...]
