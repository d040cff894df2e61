"""Two workers until a line comes: MASTER SERVERS."""

import sys

from headway.spark import run_workers
from tests.spark.programs.session import arguments, cluster_session


def main() -> None:
    """Run them, and say what they have done."""
    [servers] = arguments()
    config = {"bootstrap.servers": servers, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
    spark = cluster_session()
    with run_workers(spark, "tests.spark.programs.handlers:slow", 2, config) as running:
        sys.stdin.readline()
        running.stop()
        assert running.wait(60)
    print(f"ended {len(running.results)}", flush=True)


if __name__ == "__main__":
    main()
