"""A relay that fits the lines, in a hurry: what else takes minutes takes it a second.

Run as a program: servers, and the scheduler's name.
"""

import logging
import signal
import sys

from headway import Relay
from headway.delay.relay import line_examiner, line_fitter
from tests.broker.delay_cluster import QUICK

MAX_LINES = 6


def main() -> None:
    line_fitter.LOOK_EVERY = line_fitter.LOOK_AT_REST_EVERY = 0.3
    line_examiner.SETTLES_IN = line_examiner.KNOWN_IN = 1000
    line_examiner.UNREAD_FOR = 500
    servers, name = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    relay = Relay({"bootstrap.servers": servers, **QUICK}, name=name, fit="auto", max_lines=MAX_LINES, retire_after=2.0)
    signal.signal(signal.SIGTERM, lambda *_: relay.stop())
    with relay:
        relay.run()


if __name__ == "__main__":
    main()
