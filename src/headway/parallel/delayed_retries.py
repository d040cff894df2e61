"""Stores records that will be retried much later as schedules in Kafka, so that they take up no memory until then."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from headway.core.user_errors import description_of, text_of
from headway.delay.scheduler import Scheduler
from headway.errors import ConfigError, DeliveryError, HeadwayError, KafkaError
from headway.execution.jobs import RecordAttempt
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.error_causes import is_of_the_topic, is_too_large, librdkafka_error
from headway.parallel.brought_along import history_after
from headway.parallel.postponement import Postponement, Reports
from headway.records.history import without_history
from headway.runtime.lifecycle import time_left_of
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of

log = logging.getLogger(__name__)


class ScheduleReports(Reports, Protocol):
    """Receives the reports about records that were sent as schedules."""

    def not_scheduled(self, attempt: RecordAttempt, error: BaseException) -> None:
        """Report that the record can never be scheduled with the delay that its handler gave."""


class DelayedRetries:
    """Stores records as schedules, in a separate thread.

    A separate thread is needed because the first record must wait until the scheduler's topics have been looked up, and
    this must not block the event loop of async handlers.
    """

    def __init__(self, config: Config, group: str, scheduler: str, reports: ScheduleReports) -> None:
        self._config = connection_of(config)
        self._group = group
        self._name = scheduler
        self._reports = reports
        self._thread = ThreadPoolExecutor(1, "headway-retries-later")
        self._sending = set[Future[None]]()
        self._scheduler: Scheduler | None = None
        self._pause = Postponement(reports, _warn)

    def send(self, attempt: RecordAttempt, error: BaseException, delay: Any) -> None:
        """Store a record as a schedule, so that the record is delivered to its partition again after a delay.

        A header of the stored record contains the history of the failed attempts.
        """
        sending = self._thread.submit(self._send, attempt, error, delay)
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def _send(self, attempt: RecordAttempt, failed: BaseException, delay: Any) -> None:
        record = attempt.record

        def report(error: Exception | None, _: Any) -> None:
            cause = librdkafka_error(error) if isinstance(error, HeadwayError) else None
            if error is None:
                self._reports.stored(attempt)
            elif cause is not None and is_too_large(cause):  # at the next try, the record would still be too large
                self._reports.not_scheduled(attempt, _refused(error))
            else:
                self._pause.refused(attempt, str(error))

        if not self._pause.is_over():
            self._pause.postpone(attempt)
            return
        try:
            self._scheduler = self._scheduler or Scheduler(self._config, name=self._name)
            self._scheduler.send_later(
                record.raw_key,
                record.raw_value,
                record.kafka_topic,
                delay,
                headers=[*without_history(record.headers), history_after(attempt, failed, self._group).header()],
                partition=record.partition,
                on_stored=report,
            )
        except BaseException as error:  # a record that cannot be stored must give back its slot, whatever the error is
            if _is_transient(error):
                self._pause.refused(attempt, str(error))
            else:
                self._reports.not_scheduled(attempt, _refused(error))

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for all further logins."""
        change_credentials(self._config, username, password)
        if self._scheduler:
            self._scheduler.set_sasl_credentials(username, password)

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for schedules in flight, and close the scheduler.

        A record that has not been stored by then is not done, so the next run handles that record again.
        """
        left_over = time_left_of(timeout)
        wait(list(self._sending), left_over())
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._scheduler:
            self._scheduler.close(left_over())


def _warn(reason: str) -> None:
    log.warning(
        "Records that must be retried later cannot be stored now. These records wait and are not handled. The reason: "
        "%s",
        reason,
    )


def _is_transient(error: BaseException) -> bool:
    """Return whether storing the record can succeed later, because only a broker, topic or permission is missing."""
    if not issubclass(type(error), KafkaError):
        return False
    cause = librdkafka_error(error)  # type: ignore[arg-type]
    return not issubclass(type(error), DeliveryError) or (cause is not None and is_of_the_topic(cause))


def _refused(error: BaseException) -> ConfigError:
    refused = ConfigError(f"RetryLater cannot be carried out: {text_of(error) or description_of(error)}")
    refused.__cause__ = error
    return refused
