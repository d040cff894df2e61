"""Two Ctrl-C, as a terminal and a wrapper both send one: the process of a producer ends, and reports the truth."""

import signal
import subprocess
import sys
import time

import pytest

from headway import PriorityConsumer
from headway.testing import MockCluster

PROGRAM = """
import atexit, os, signal, sys, threading
from headway import Producer

producer = Producer({"bootstrap.servers": sys.argv[1]})

@atexit.register
def end():
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # the second one
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    producer.close()
    left = [each.name for each in threading.enumerate() if each.name.startswith("headway")]
    os.write(1, f"left {left}\\n".encode())

def on_delivery(error, metadata):
    if error is None:
        os.write(1, f"{metadata.offset}\\n".encode())

with producer:
    number = 0
    while True:
        producer.send("orders", f"{number}", on_delivery=on_delivery).result()
        number += 1
"""


@pytest.mark.parametrize("apart", [0.0, 0.001, 0.02])
def test_a_producer_that_gets_two_ctrl_c_ends_without_threads_and_what_it_reported_is_stored(apart: float) -> None:
    with MockCluster() as mock:
        mock.create(["orders"], 1)
        command = [sys.executable, "-c", PROGRAM, mock.settings["bootstrap.servers"]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            time.sleep(apart)
            process.send_signal(signal.SIGINT)
            # `communicate` would pass over what `readline` has read ahead.
            *reported, left = [first, *process.stdout.read().splitlines()]
            process.wait(30)
            assert process.returncode in (-signal.SIGINT, 1)  # 1 if the second comes while Python reports the first
        assert left == "left []"
        settings = {"group.id": "readers", "auto.offset.reset": "earliest", "levels": 1}
        with PriorityConsumer({**mock.settings, **settings}) as consumer:
            consumer.subscribe({"orders": 0})
            stored: set[int] = set()
            while len(stored) < len(reported):
                stored |= {record.offset for record in consumer.poll(5.0)}
        assert stored.issuperset(map(int, reported))
