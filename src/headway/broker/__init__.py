"""A real Apache Kafka on this machine, for development and tests: `with LocalBroker() as broker: ...`."""

from headway.errors import LocalBrokerError

try:
    from headway.broker.local_broker import LocalBroker
    from headway.broker.node import Node
except ModuleNotFoundError as error:
    if error.name not in ("platformdirs", "psutil"):
        raise
    raise LocalBrokerError(
        f"The local broker needs {error.name}, which is not installed: pip install 'headway[broker]'."
    ) from error

__all__ = ["LocalBroker", "Node"]
