"""Uses every client with a login, logs all that there is to log, and shows everything that it has."""

import logging
import sys
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from headway import ParallelConsumer, PriorityConsumer, Producer, worker
from headway.cli.workers.messages import LogStyle, MemberTask
from headway.delay.relay.relay import Relay
from headway.delay.scheduler import Scheduler
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.settings.config import ConsumerSettings, OutputSettings, ParallelSettings, ProducerSettings
from headway.settings.settings_file import read_properties
from headway.workers.worker import worker_of

KAFKA: dict[str, Any] = dict(read_properties(Path(sys.argv[1])))
TOPIC = sys.argv[2]


@worker(TOPIC, group=f"{TOPIC}-worker", levels=1, config=KAFKA, producer_config=KAFKA)
def handle(record: Any, context: Any) -> None:
    """Say what there is to handle."""
    print("handled", record.value, repr(context), flush=True)


def show(*values: Any) -> None:
    """Print all that these say of themselves."""
    for value in values:
        inner = [getattr(value, each.name) for each in fields(value) if each.repr] if is_dataclass(value) else []
        print(repr(value), str(value), *map(repr, inner))


def main() -> None:
    """Send, consume, schedule, relay, and fail."""
    logging.basicConfig(level=logging.DEBUG)
    own = {"levels": 1, "group.id": f"{TOPIC}-group", "max.poll.records": 10, "auto.offset.reset": "earliest"}
    show(ConsumerSettings.parse(KAFKA | own), ParallelSettings.parse(KAFKA | {"group.id": "g"}))
    show(OutputSettings.parse(KAFKA))
    show(ProducerSettings.parse(KAFKA | {"levels": 1}), worker_of(handle))
    show(MemberTask("m:f", 0, KAFKA, None, 1.0, LogStyle()))
    with Producer(KAFKA | {"levels": 1}) as producer:
        show(producer, producer.send(TOPIC, "one").result(60))
    with PriorityConsumer(KAFKA | own) as consumer:
        consumer.subscribe(TOPIC)
        while not (records := consumer.poll(1)):
            pass
        show(consumer, records)
    parallel = ParallelConsumer(KAFKA | {"group.id": f"{TOPIC}-parallel", "auto.offset.reset": "earliest"})
    parallel.subscribe(f"{TOPIC}-0")
    parallel.run(lambda record, context: parallel.stop())
    show(parallel, parallel.metrics())
    with Scheduler(KAFKA, name=f"{TOPIC}-delay") as scheduler:
        show(scheduler, scheduler.send_later("k", "v", f"{TOPIC}-0", 0.1))
    with Relay(KAFKA, name=f"{TOPIC}-delay").running() as relay:
        while not relay.counts["delivered"]:
            time.sleep(0.01)
        show(relay)
    for wrong in ({"sasl.mechanism": "PLAIN"}, {"ssl.key.pem": KAFKA["sasl.password"]}, {"linger.ms": "soon"}):
        try:
            Admin(KAFKA | wrong).topics()
        except HeadwayError as error:
            show(error)


if __name__ == "__main__":
    main()
