"""A relay that kills itself at one step of its work: as `kill -9` would, but each time at the same place.

Run as a program: servers, scheduler's name, mode, kind of work ("move" or "delivery"), and the step, which is a call of
one of its clients. It dies in the first round with such a work.
"""

import os
import signal
import sys
import threading
import time
from typing import Any

import headway.delay.relay.deletions
from headway import Relay
from headway.kafka.consumer.relay_consumer import Deletion
from headway.kafka.producer.client import ProducerClient
from headway.kafka.producer.client_transactions import ClientTransactions
from tests.broker.delay_cluster import QUICK

CALLS = {
    "produce": ProducerClient,
    "flush": ProducerClient,
    "add_offsets": ClientTransactions,
    "commit": ClientTransactions,
    "delete_before": Deletion,
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(step: str, kind: str) -> None:
    """Stand between the relay and its clients; the step is "before", "within" or "after" a call."""
    when, _, wanted = step.partition(" ")
    works = False

    def watch(name: str) -> None:
        call = getattr(CALLS[name], name)

        def watched(client: Any, *args: Any, **named: Any) -> Any:
            nonlocal works
            works = works or (name == "produce" and is_work(kind, args[0].topic))
            mine = works and name == wanted
            if mine and when == "before":
                die()
            if mine and when == "within":
                threading.Timer(0.0005, die).start()
            result = call(client, *args, **named)
            if mine and when == "after":
                die()
            return result

        setattr(CALLS[name], name, watched)

    for name in CALLS:
        watch(name)


def is_work(kind: str, topic: str) -> bool:
    return ".line-" in topic if kind == "move" else topic.startswith("target-")


def tell_when_ready(relay: Relay) -> None:
    while not relay.ready:  # with its producers
        time.sleep(0.01)
    print("ready", flush=True)


def main(servers: str, name: str, mode: Any, kind: str, step: str) -> None:
    die_at(step, kind)
    headway.delay.relay.deletions.DELETE_EVERY = 0.1
    with Relay({"bootstrap.servers": servers, **QUICK}, name=name, mode=mode) as relay:
        threading.Thread(target=tell_when_ready, args=(relay,), daemon=True).start()
        relay.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
