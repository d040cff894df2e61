"""Records that are to be tried again after long: stored as schedules, so that nothing of them stays in memory."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from headway.config import Config
from headway.delay.scheduler import Scheduler
from headway.kafka.closing import counting_down
from headway.letters import connection_of
from headway.parallel.dispatch import RecordWork

log = logging.getLogger(__name__)


class RetriesLater:
    """Stores records as schedules, and tells `stored(work, error)` when Kafka has acknowledged, or refused, one.

    In a thread of its own: the first one looks for the scheduler's topics, and the loop of async handlers must go on.
    """

    def __init__(
        self, config: Config, scheduler: str, stored: Callable[[RecordWork, BaseException | None], None]
    ) -> None:
        self._config = connection_of(config)
        self._name = scheduler
        self._stored = stored
        self._thread = ThreadPoolExecutor(1, "headway-retries-later")
        self._sending = set[Future[None]]()
        self._scheduler: Scheduler | None = None

    def send(self, work: RecordWork, delay: float) -> None:
        """Store a record, to come to its partition again."""
        sending = self._thread.submit(self._send, work, delay)
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def _send(self, work: RecordWork, delay: float) -> None:
        record = work.record

        def report(error: Exception | None, _: Any) -> None:
            if error is not None:
                log.warning("A record to be tried again later was not stored, and is handled again: %s", error)
            self._stored(work, error)

        try:
            self._scheduler = self._scheduler or Scheduler(self._config, name=self._name)
            self._scheduler.send_later(
                record.raw_key,
                record.raw_value,
                record.kafka_topic,
                delay,
                headers=record.headers,
                partition=record.partition,
                on_stored=report,
            )
        except Exception as error:  # whatever it is, the record is not stored
            report(error, None)

    def close(self, timeout: float) -> None:
        """Store what is on its way, within `timeout` seconds; the record of what is not stays undone."""
        left_over = counting_down(timeout)
        wait(list(self._sending), left_over())
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._scheduler:
            self._scheduler.close(left_over())
