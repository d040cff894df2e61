"""A consumer in a process of its own, which can be interrupted, terminated and killed.

Its one argument is a JSON object: the `config` and `options` of its consumer, the `topic`, and the `handler`, one of
`process_handlers`. It prints how many records are done and how many run, whenever that has changed, and `ended` when
its run has come to an end in good order. With `own_terminate` it has a handler for SIGTERM of its own, which prints
`terminated`; with `in_thread` the run has a thread of its own.
"""

import json
import signal
import sys
import threading
from typing import Any

from headway import ParallelConsumer
from headway.execution.dispatch import Dispatch
from tests.contract.parallel import process_handlers
from tests.made import made_by


def tell(consumer: ParallelConsumer, dispatch: Dispatch) -> None:
    """What counts as done, and not what handlers believe."""
    told = ""
    while True:
        metrics = consumer.metrics()
        now = f"{metrics.done} {metrics.running}" + " ending" * dispatch.ending
        if now != told:
            say(now)
        told = now
        threading.Event().wait(0.01)


def say(what: str) -> None:
    """A line, at once."""
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def main(asked: dict[str, Any]) -> None:
    """Run until the end."""
    if asked.get("own_terminate"):
        signal.signal(signal.SIGTERM, lambda number, frame: say("terminated"))
    with made_by("headway.parallel.consumer.Dispatch") as made:
        consumer = ParallelConsumer(asked["config"], **asked["options"])
    with consumer:
        consumer.subscribe(asked["topic"])
        threading.Thread(target=tell, args=(consumer, *made), daemon=True).start()
        handler = getattr(process_handlers, asked["handler"])
        if asked.get("in_thread"):
            running = threading.Thread(target=consumer.run, args=(handler,))
            running.start()
            say(repr(signal.getsignal(signal.SIGTERM)))
            running.join()
        else:
            consumer.run(handler)
    say("ended")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
