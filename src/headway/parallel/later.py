"""Records that are to be tried again after long: stored as schedules, so that nothing of them stays in memory."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from headway.config import Config
from headway.core.user_errors import description_of, text_of
from headway.delay.scheduler import Scheduler
from headway.errors import ConfigError, DeliveryError, HeadwayError, KafkaError
from headway.kafka.closing import counting_down
from headway.kafka.producer_client import cause_of, is_too_large
from headway.letters import connection_of
from headway.parallel.dispatch import RecordWork

log = logging.getLogger(__name__)


class Reports(Protocol):
    """Who is told what became of a record that was to be tried again later."""

    def stored(self, work: RecordWork, refused: BaseException | None) -> None:
        """It is in Kafka; or not, as its brokers were away, and is handled again soon."""

    def not_scheduled(self, work: RecordWork, error: BaseException) -> None:
        """It can never be scheduled as it is asked for."""


class RetriesLater:
    """Stores records as schedules.

    In a thread of its own: the first one looks for the scheduler's topics, and the loop of async handlers must go on.
    """

    def __init__(self, config: Config, scheduler: str, reports: Reports) -> None:
        self._config = connection_of(config)
        self._name = scheduler
        self._reports = reports
        self._thread = ThreadPoolExecutor(1, "headway-retries-later")
        self._sending = set[Future[None]]()
        self._scheduler: Scheduler | None = None

    def send(self, work: RecordWork, delay: Any) -> None:
        """Store a record, to come to its partition again; the delay is as a handler gave it."""
        sending = self._thread.submit(self._send, work, delay)
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def _send(self, work: RecordWork, delay: Any) -> None:
        record = work.record

        def report(error: Exception | None, _: Any) -> None:
            cause = cause_of(error) if isinstance(error, HeadwayError) else None
            if error is not None and cause is not None and is_too_large(cause):  # now and later
                self._reports.not_scheduled(work, _refused(error))
                return
            if error is not None:
                log.warning("A record to be tried again later was not stored, and is handled again: %s", error)
            self._reports.stored(work, error)

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
        except BaseException as error:  # of the delay's own code, too: the record is not stored, and keeps no slot
            kind = type(error)
            if issubclass(kind, KafkaError) and not issubclass(kind, DeliveryError):
                report(error, None)  # type: ignore[arg-type]  # the brokers are away
            else:
                self._reports.not_scheduled(work, _refused(error))

    def close(self, timeout: float) -> None:
        """Store what is on its way, within `timeout` seconds; the record of what is not stays undone."""
        left_over = counting_down(timeout)
        wait(list(self._sending), left_over())
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._scheduler:
            self._scheduler.close(left_over())


def _refused(error: BaseException) -> ConfigError:
    refused = ConfigError(f"RetryLater cannot be kept: {text_of(error) or description_of(error)}")
    refused.__cause__ = error
    return refused
