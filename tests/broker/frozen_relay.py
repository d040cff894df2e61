"""A relay with low latency that freezes itself, as SIGSTOP or a hypervisor would, while it stores what it has decided.

Run as a program: servers, scheduler's name, and "before" or "after" the record of a change is handed to its client.
"""

import os
import signal
import sys
from typing import Any

from headway import Relay
from headway.core.outgoing_record import OutgoingRecord
from headway.kafka.producer.client import ProducerClient
from tests.broker.delay_cluster import QUICK


def freeze_at(step: str) -> None:
    """Freeze once, at the first change of a schedule that is stored."""
    produce, frozen = ProducerClient.produce, False

    def watched(client: ProducerClient, record: OutgoingRecord, on_delivery: Any, **named: Any) -> None:
        nonlocal frozen
        is_change = not frozen and str(record.key).startswith("change:")
        frozen = frozen or is_change
        if is_change and step == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        produce(client, record, on_delivery, **named)
        if is_change and step == "after":
            os.kill(os.getpid(), signal.SIGSTOP)

    ProducerClient.produce = watched  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    servers, name, step = sys.argv[1:]
    freeze_at(step)
    with Relay({"bootstrap.servers": servers, **QUICK}, name=name, mode="low-latency") as relay:
        relay.run()
