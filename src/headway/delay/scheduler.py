"""The scheduler, which stores records in Kafka. A relay delivers the records when they are due."""

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from headway.core.delay.changes import IfPending, Settled
from headway.core.delay.recurrence import Misfire, Recurrence
from headway.core.delay.schedule import HandleParts, partition_of
from headway.core.outgoing_record import NOW, OutgoingRecord
from headway.core.untrusted import LATEST
from headway.declarations import checked_timeout
from headway.delay import limits
from headway.delay.change_request import ChangeRequest
from headway.delay.commands import ANSWER_WITHIN, Commands
from headway.delay.delay_topic_choice import DelayTopicChoice
from headway.delay.due_time import When, due_at, lifetime, with_expiry
from headway.delay.handle import ScheduleHandle
from headway.delay.schedule_encoder import ScheduleEncoder, check_if_pending, put_header, recurring
from headway.delay.topic_names import DEFAULT_NAME, TopicNames
from headway.errors import ClosedError, ConfigError, KafkaError
from headway.kafka.binding.connection import change_credentials
from headway.kafka.binding.forks import made_before_fork, register_for_forks
from headway.kafka.producer.client import ProducerClient, closed_in_callback
from headway.kafka.producer.delivery import DeliveryFuture, Destination, OnDelivery
from headway.kafka.serialization import key_writer, value_writer
from headway.records.record_types import Header
from headway.runtime.end_steps import EndSteps, construction
from headway.runtime.lifecycle import Closable, time_left_of
from headway.settings.config import Config, OutputSettings
from headway.settings.connection_settings import connection_of
from headway.tracing.tracing import Tracing, checked_spans


class Scheduler(Closable):
    """Stores records in Kafka. A relay delivers each of them once, when it is due and never before.

    `config` has the same settings as a producer: `key.serializer`, `value.serializer`, and librdkafka's settings. The
    scheduler creates its topics if they do not exist. Delay topics for longer delays are created when the first record
    with such a delay is sent. A relay (`headway relay`) delivers the records. If records come due while no relay is
    running, they are delivered when a relay runs again. The scheduler is thread-safe. At the end of a `with` block, the
    scheduler waits until all schedules are stored, and then closes.

    Args:
        name: The scheduler's name, which is the prefix of its topics' names. Schedulers and relays with the same name
            work together.
        tracing: A `Tracing` to make a span of each call of `send_later`.

    Raises:
        ConfigError: A setting is not valid for a scheduler.
        AuthorizationError: Topics are missing, and this client is not permitted to create them.
        KafkaError: The topics do not exist and could not be created.

    If other delay topics are put into use, or the scheduler's topics are recreated, a scheduler in use notices that
    within half a minute.
    """

    def __init__(self, config: Config, *, name: str = DEFAULT_NAME, tracing: Tracing | None = None) -> None:
        settings = OutputSettings.parse(config)
        spans = checked_spans(tracing)
        limits.check(settings.kafka)
        connection = connection_of(settings.kafka)
        self._names = TopicNames(name)
        self._connection = connection
        self._choice = DelayTopicChoice(connection, self._names)
        self._encoder = ScheduleEncoder(
            self._names, key_writer(settings.key_serializer), value_writer(settings.value_serializer)
        )
        with construction(lambda: self.close(0)):
            self._client = ProducerClient({"enable.idempotence": True, **limits.DEFAULTS, **settings.kafka})
            self._destinations: dict[str, Destination] = {}
            self._commands = Commands(connection, self._names, self._choice.partitions, self._send_command)
            self._closed = self._is_forked = False
            self._steps_to_end = EndSteps(lambda: [self._commands.close, self._close_client])
            self._closing_within = time_left_of(None)
            self._unstored = 0  # how many schedules had not been stored when the client was closed
            register_for_forks(self)
        if spans:
            from headway.delay.traced_scheduler import trace_scheduler  # noqa: PLC0415 - only programs that trace need it

            trace_scheduler(self, spans)

    def send_later(
        self,
        key: Any,
        value: Any,
        topic: str,
        when: When,
        *,
        headers: Sequence[Header] = (),
        level: int | None = None,
        partition: int | None = None,
        id: str | None = None,
        if_pending: IfPending = "replace",
        expires: When | None = None,
        on_stored: OnDelivery | None = None,
    ) -> ScheduleHandle:
        """Deliver a record to a topic at a given time.

        The call returns at once, unless the record has a longer delay than all earlier records. In that case the call
        waits until new delay topics have been created. The handle's `wait` returns when the record is stored. Key,
        value and headers are delivered byte for byte. Records with the same key and the same due time are delivered in
        the order in which they were sent. A record that is already due is delivered as soon as a relay sees it.

        Args:
            key: The record's key, as for a producer.
            value: The record's value, as for a producer.
            topic: The target topic, which need not exist yet. If the topic does not exist when the record is due, the
                record becomes a dead letter.
            when: A datetime with a time zone, or a delay as a timedelta or in seconds, counted by the brokers' clock.
            headers: The record's headers.
            level: The level of the record. With 2, the record is delivered to `<topic>-2`, as a `Producer` with levels
                would do.
            partition: The partition of the target topic. By default, it is chosen by the key, as for any producer.
            id: An id that you choose, with up to 250 characters. The text of the handle is then `id:` followed by the
                id. Only one schedule with an id can be pending, even if several processes use the id. The order
                relative to other records with the same key is not kept.
            if_pending: What happens if a schedule with the same id is pending. "replace" replaces the pending schedule,
                "keep" keeps the pending schedule and drops the new one, and "refuse" refuses the new one, so that
                `wait` of its handle raises `IdPendingError`.
            expires: When the record expires, as for a producer. After that time, a `ParallelConsumer` does not start
                the record.
            on_stored: Called with (error, metadata) when the record is stored or has failed. The call is made in the
                thread that handles the delivery report: a thread of the scheduler, or the thread of a caller that
                sends, flushes or waits for a result.

        Raises:
            ConfigError: The time has no time zone or is beyond the year 9999, the topic or partition is not valid, or a
                header has a name that Headway uses.
            SerializationError: The key or the value could not be turned into bytes.
            DeliveryError: The record cannot be stored.
            AuthorizationError: The delay needs topics that do not exist, and this client is not permitted to create
                them.
        """
        if expires is not None:
            self._check_open()
            headers = with_expiry(headers, expires, when, self._choice.now())
        return self._schedule(key, value, topic, when, headers, level, partition, id, if_pending, on_stored=on_stored)

    def every(
        self,
        rule: str | When,
        key: Any,
        value: Any,
        topic: str,
        *,
        zone: str = "UTC",
        misfire: Misfire = "coalesce",
        older_than: float = 0.0,
        expires_after: float | None = None,
        headers: Sequence[Header] = (),
        level: int | None = None,
        partition: int | None = None,
        id: str | None = None,
        if_pending: IfPending = "replace",
    ) -> ScheduleHandle:
        """Deliver a record repeatedly, until it is cancelled.

        A program that makes the same call at each start gets only one schedule. Without an `id`, a schedule is
        identified by the rule, its options, and the record. A repeated call changes nothing, and the first schedule
        continues with its next time. If the rule, an option or the record differs, the call adds a second schedule.
        With an `id` that you choose, the new schedule replaces the old one.

        Raises the same errors as `send_later`, and `ConfigError` if the rule is not valid.

        Args:
            rule: A cron expression with five fields, such as "0 17 * * MON-FRI", or an interval in seconds or as a
                timedelta, counted from now.
            key: The record's key, as for a producer.
            value: The record's value, as for a producer.
            topic: The target topic.
            zone: The time zone of the cron expression, such as "Europe/Berlin". Changes to and from daylight saving
                time are taken into account.
            misfire: What happens with times that passed while no relay was running. "coalesce" delivers the record once
                for all these times, "fire" delivers it once for each of them, and "skip" drops times that are more than
                `older_than` seconds in the past.
            older_than: With "skip", a missed time is still delivered if it is at most this many seconds in the past.
            expires_after: A record expires this many seconds after its due time, even if the record is delivered late.
                A `ParallelConsumer` does not start expired records. By default, records never expire.
            headers: The record's headers.
            level: The level, as for `send_later`.
            partition: The target's partition, as for `send_later`.
            id: An id that you choose, as for `send_later`. The schedule stays pending until it is cancelled. If the
                rule is an interval, the interval starts again whenever the schedule is replaced. So if your program
                restarts more often than the interval, pass if_pending="keep".
            if_pending: What happens if a schedule with this id is pending, as for `send_later`.
        """
        if isinstance(rule, datetime):
            raise ConfigError(
                f"The rule is the time {rule}, which occurs only once. Give a cron expression, or an interval in "
                "seconds or as a timedelta, or call send_later instead."
            )
        is_cron = isinstance(rule, str)
        interval = None if is_cron else due_at(rule, 0.0)  # type: ignore[arg-type]
        if not older_than * 1000 <= LATEST:  # written with `not`, so that NaN is refused too
            raise ConfigError(f"older_than is {older_than} s; it must be a number of seconds, up to {LATEST // 1000}.")
        oldest = round(max(-1.0, older_than * 1000))
        expiry = 0 if expires_after is None else lifetime(expires_after)
        recurrence = Recurrence(rule if is_cron else None, interval, zone, misfire, oldest, expiry)  # type: ignore[arg-type]
        recurrence.check()
        self._check_open()
        now = int(self._choice.now() * 1000)
        first = recurrence.following(now, now)
        if first is None:
            raise ConfigError(f"The rule {rule!r} never matches, or only beyond the year 9999.")
        second = recurrence.following(first, first)
        gap = 0 if second is None else second - first
        return self._schedule(
            key,
            value,
            topic,
            (first - now) / 1000,
            headers,
            level,
            partition,
            id,
            if_pending,
            recurrence,
            due=first,
            gap=gap,
        )

    def cancel(
        self, handle: ScheduleHandle | str, timeout: float = ANSWER_WITHIN, *, answered: bool = True
    ) -> ChangeRequest:
        """Request that a schedule be cancelled, whether or not a relay is running.

        The call returns at once, or when the schedule of the handle has been stored. On the returned request, `stored`
        waits until Kafka has stored the request, and `settled` waits until a relay has decided. `settled` returns
        `Settled.CANCELLED`, or `Settled.DELIVERED` if the record was delivered before the relay could cancel it.

        Args:
            handle: The handle of the schedule, or its text.
            timeout: How long to wait until the schedule of the handle is stored, in seconds.
            answered: Pass False if you do not need `settled`. Relays then write no answer, and this client needs no
                permission to read answers.

        Raises:
            KafkaError: The schedule of the handle was not stored within `timeout` seconds, so no request was sent.
            ConfigError: The text is not a handle.
        """
        return self._ask(handle, None, timeout, answered)

    def reschedule(
        self, handle: ScheduleHandle | str, when: When, timeout: float = ANSWER_WITHIN, *, answered: bool = True
    ) -> ChangeRequest:
        """Request a new due time for a schedule, earlier or later than the current one.

        Works like `cancel`. The handle stays valid.

        `settled` returns `Settled.RESCHEDULED`, or another value that explains why the time did not change. If a
        schedule is rescheduled twice, the last call takes effect.
        """
        return self._ask(handle, self._due_for(when), timeout, answered)

    def _due_for(self, when: When) -> int:
        """Return the due time in milliseconds. If delay topics that it needs are missing, create them first."""
        self._check_open()
        now = self._choice.now()
        due = due_at(when, now)
        self._choice.reaching(due - int(now * 1000))
        return due

    def _ask(self, handle: ScheduleHandle | str, to: int | None, timeout: float, answered: bool) -> ChangeRequest:
        parts = self._parts(handle, checked_timeout(timeout))
        stored, answer = self._commands.ask(parts, to, answered=answered)
        return ChangeRequest(str(handle), stored, answer)

    def may_wait_for_delay_topics(self, when: When) -> bool:
        """Return whether scheduling for this time might block because delay topics are missing or out of date."""
        now = self._choice.time.now()
        return self._choice.may_wait(due_at(when, now) - now * 1000)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials from now on. Raises `ConfigError` if librdkafka does not accept the credentials."""
        self._check_open()
        self._client.set_sasl_credentials(username, password)
        change_credentials(self._connection, username, password)
        self._commands.set_sasl_credentials(username, password)

    def flush(self, timeout: float | None = None) -> int:
        """Wait up to `timeout` seconds until all schedules are stored. Returns how many are still not stored."""
        timeout = None if timeout is None else checked_timeout(timeout)
        return self._client.flush(timeout)

    def close(self, timeout: float | None = None) -> int:
        """Store all schedules, then close all connections.

        Returns how many were not stored within `timeout` seconds.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        if self._is_forked or self._steps_to_end.is_over or (self._closed and self._client.reports.serves_here):
            return 0
        self.check_may_close()
        self._closed = True
        self._closing_within = time_left_of(timeout)
        self._steps_to_end.take()
        return self._unstored

    def _close_client(self) -> None:
        self._unstored = self._client.close(0 if self._steps_to_end.hurries else self._closing_within())

    def forked(self) -> None:
        """Make this copy of the scheduler unusable, because its threads do not exist in a forked process."""
        self._closed = self._is_forked = True

    def _check_open(self) -> None:
        if self._is_forked:
            raise made_before_fork("scheduler")
        if self._closed:
            raise ClosedError("The scheduler is closed. Create a new one.")

    def check_may_close(self) -> None:
        """Raise `HeadwayError` if called in a callback of this scheduler, where `close` would wait forever."""
        if self._client.reports.serves_here:
            raise closed_in_callback("scheduler")

    def _schedule(
        self,
        key: Any,
        value: Any,
        topic: str,
        when: When,
        headers: Sequence[Header],
        level: int | None,
        partition: int | None,
        id_: str | None,
        if_pending: IfPending,
        recurrence: Recurrence | None = None,
        due: int | None = None,
        on_stored: OnDelivery | None = None,
        gap: int = 0,
    ) -> ScheduleHandle:
        self._check_open()
        check_if_pending(if_pending, id_)
        now = self._choice.now()
        at = int(now * 1000)
        due = due_at(when, now) if due is None else due
        schedule, value, key, fields = self._encoder.encode(
            key, value, topic, due, at, headers, level, partition, id_, recurrence
        )
        token, answer = "", None
        if id_ is None and recurrence is not None:
            schedule = recurring(schedule, key, value, fields[:-1])
            fields[-1] = schedule.header()
            if_pending = "keep"  # with "keep", the pending schedule keeps its next time and its missed times
        stored_in, own = self._choice.place(schedule, key, at, gap)
        if id_ is not None or recurrence is not None:
            if if_pending == "refuse":
                token, answer = self._expect_answer()
            fields.append(put_header(if_pending, token, self._commands.reply))
        future = self._store(OutgoingRecord(stored_in, value, key, own, NOW, fields), on_stored)
        if answer is not None:
            self._commands.note_sent(token, future)
        return ScheduleHandle(own, schedule, future, answer)

    # `ProducersScheduler` overrides the following three methods, for schedules in a producer's transaction.

    def _expect_answer(self) -> tuple[str, Future[Settled]]:
        """For the schedule that is stored next, return a token for a relay's answer, and the future for that answer."""
        return self._commands.expect()

    def _store(self, record: OutgoingRecord, on_stored: OnDelivery | None) -> DeliveryFuture:
        """Store a schedule, and return the future of its delivery report."""
        return self._send(record, on_stored)

    def _parts(self, handle: ScheduleHandle | str, timeout: float) -> HandleParts:
        """Wait until the schedule of a handle is stored, and return the parts of the handle."""
        self._check_open()
        if isinstance(handle, ScheduleHandle):
            _await_stored(handle, timeout)
        parts = HandleParts.read(str(handle))
        partitions = self._choice.partitions
        if parts.is_chosen:
            parts = parts._replace(partition=partition_of(parts.id, 0, partitions))
        if parts.partition >= partitions:
            raise ConfigError(
                f"The handle {handle} is for partition {parts.partition}, but {self._names.name} has only "
                f"{partitions} partitions. The handle belongs to a scheduler with another name."
            )
        return parts

    def _send(self, record: OutgoingRecord, on_stored: OnDelivery | None) -> DeliveryFuture:
        topic = record.topic
        if (destination := self._destinations.get(topic)) is None:
            new = Destination(topic, 0, topic, self._client)
            destination = self._destinations.setdefault(topic, new)  # another thread may have added the topic first
        future = DeliveryFuture.of(destination, on_stored)
        self._client.send(record, future)
        return future

    def _send_command(self, topic: str, value: bytes, key: str, partition: int) -> Future[Any]:
        return self._send(OutgoingRecord(topic, value, key, partition), None)


def _await_stored(handle: ScheduleHandle, timeout: float) -> None:
    try:
        handle.wait(timeout)
    except TimeoutError:
        raise KafkaError(
            f"The schedule {handle} is not stored yet: Kafka has not answered within {timeout:g} s. No request was "
            "sent. Check that a broker is running, and try again."
        ) from None
