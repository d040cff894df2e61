"""PySpark's daemon, whose tasks die right after they have committed a transaction, while the file DIE is there."""

import os
import signal
from pathlib import Path

from pyspark import daemon

from headway.kafka.producer.columnar import ColumnarProducer

commit = ColumnarProducer.commit


def commit_and_die(producer: ColumnarProducer) -> None:
    """Commit, and leave Spark without an answer; once for each time that the file is made."""
    commit(producer)
    try:
        Path(os.environ["DIE"]).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    ColumnarProducer.commit = commit_and_die  # type: ignore[assignment]
    daemon.manager()
