"""A relay that fits the delay topics, in a hurry: what else takes minutes takes it a second.

Run as a program: servers, and the scheduler's name.
"""

import logging
import signal
import sys

from headway import Relay
from headway.delay.relay import delay_topic_examiner, delay_topic_fitter
from tests.broker.delay_cluster import QUICK

MAX_DELAY_TOPICS = 6


def main() -> None:
    delay_topic_fitter.LOOK_EVERY = delay_topic_fitter.LOOK_AT_REST_EVERY = 0.3
    delay_topic_examiner.SETTLES_IN = delay_topic_examiner.KNOWN_IN = 1000
    delay_topic_examiner.UNREAD_FOR = 500
    servers, name = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    relay = Relay(
        {"bootstrap.servers": servers, **QUICK},
        name=name,
        fit="auto",
        max_delay_topics=MAX_DELAY_TOPICS,
        retire_after=2.0,
    )
    signal.signal(signal.SIGTERM, lambda *_: relay.stop())
    with relay:
        relay.run()


if __name__ == "__main__":
    main()
