"""A broker that is far away: a proxy that adds delay, in a process of its own."""

import contextlib
import multiprocessing
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # a program in benchmarks/ finds only its neighbours by itself

from tests.kafka_proxy import KafkaProxy


@contextlib.contextmanager
def proxied(servers: str, round_trip: float) -> Iterator[str]:
    """The bootstrap servers to use instead for such a round trip, in seconds; at 0 the broker itself."""
    if not round_trip:
        yield servers
        return
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(servers, round_trip, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


def _serve(servers: str, round_trip: float, until: Connection) -> None:
    with KafkaProxy(servers, round_trip, keeps_account=False) as proxy:
        until.send(proxy.bootstrap_servers)
        until.recv()
