"""The scheduler: it stores records in Kafka now, and a relay delivers them when they are due."""

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


class Scheduler(Closable):
    """Stores records in Kafka. A relay delivers each of them once, when it is due and never before.

    `config` has the same settings as a producer: `key.serializer`, `value.serializer`, and librdkafka's settings. The
    scheduler creates its topics if they do not exist, and delay topics for longer delays when the first record with
    such a delay is sent. A relay (`headway relay`) delivers the records; records that come due while no relay is
    running are delivered when one runs again. The scheduler is thread-safe. At the end of a `with` block it waits until
    all schedules are stored, and closes.

    Args:
        name: The prefix of the names of its topics. Schedulers and relays with the same name work together.

    Raises:
        ConfigError: A setting is not valid for a scheduler.
        AuthorizationError: Topics are missing, and this client is not permitted to create them.
        KafkaError: The topics do not exist and could not be created.

    A scheduler in use notices within half a minute if other delay topics are put in use or its topics are recreated.
    """

    def __init__(self, config: Config, *, name: str = DEFAULT_NAME) -> None:
        settings = OutputSettings.parse(config)
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
            self._unstored = 0  # the number of schedules that were not stored when the client was closed
            register_for_forks(self)

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

        The call returns at once, unless the record has a longer delay than any before: then it waits until new delay
        topics are created. The handle's `wait` returns when the record is stored. Key, value and headers arrive byte
        for byte. Records with the same key and the same due time arrive in the order they were sent. A record that is
        already due is delivered as soon as a relay sees it.

        Args:
            key: The record's key, as for a producer.
            value: The record's value, as for a producer.
            topic: The target topic. It need not exist yet: if it does not exist when the record is due, the record
                becomes a dead letter.
            when: A datetime with a time zone, or a delay as a timedelta or in seconds, counted by the brokers' clock.
            headers: The record's headers.
            level: The level of the record: with 2 it is delivered to `<topic>-2`, as by a `Producer` with levels.
            partition: The target's partition. By default the key decides, as for any producer.
            id: Your own id, of up to 250 characters. The text of the handle is then `id:` followed by the id. Only one
                schedule with the same id can be pending, whichever process it comes from. The order with other records
                of its key is not kept.
            if_pending: What to do if a schedule with the same id is pending: "replace" the pending one, "keep" it and
                drop the new one, or "refuse" the new one, so that the handle's `wait` raises `IdPendingError`.
            expires: When the record expires, as for a producer: after that time, a `ParallelConsumer` does not start
                it.
            on_stored: Called with (error, metadata) when the record is stored or has failed. It runs on the thread that
                handles the delivery report: a thread of the scheduler, or a caller that sends, flushes or waits for a
                result.

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
        identified by the rule, its options, and the record. A repeated call then changes nothing, and the first
        schedule continues with its next time. If the rule, an option or the record differs, the call adds a second
        schedule. With your own `id`, the new schedule replaces the old one.

        Raises as `send_later` does, and `ConfigError` for a rule that is not valid.

        Args:
            rule: A cron expression with five fields, such as "0 17 * * MON-FRI", or an interval in seconds or as a
                timedelta, counted from now.
            key: The record's key, as for a producer.
            value: The record's value, as for a producer.
            topic: The target topic.
            zone: The time zone of the cron expression, such as "Europe/Berlin". Changes to and from daylight saving
                time are taken into account.
            misfire: What to do about times that passed while no relay was running: "coalesce" delivers once for all of
                them, "fire" delivers once for each, and "skip" drops those more than `older_than` seconds in the past.
            older_than: With "skip", a missed time is still delivered if it is at most this many seconds in the past.
            expires_after: A record expires this many seconds after its due time, even if it is delivered late. A
                `ParallelConsumer` does not start expired records. By default, records never expire.
            headers: The record's headers.
            level: The level, as for `send_later`.
            partition: The target's partition, as for `send_later`.
            id: Your own id, as for `send_later`. The id is pending until the schedule is cancelled. If the rule is an
                interval, a replaced schedule counts it from now again. So if your program restarts more often than the
                interval, pass if_pending="keep".
            if_pending: What to do if that id is pending, as for `send_later`.
        """
        if isinstance(rule, datetime):
            raise ConfigError(
                f"The rule is the time {rule}, which occurs only once. Give a cron expression, or an interval in "
                "seconds or as a timedelta, or call send_later instead."
            )
        is_cron = isinstance(rule, str)
        interval = None if is_cron else due_at(rule, 0.0)  # type: ignore[arg-type]
        if not older_than * 1000 <= LATEST:  # NaN fails this comparison, too
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
        """Request that a schedule is cancelled, whether or not a relay is running.

        The call returns at once, or as soon as the schedule of the handle is stored. On the returned request, `stored`
        waits until Kafka has stored the request, and `settled` waits until a relay has decided: it returns
        `Settled.CANCELLED`, or `Settled.DELIVERED` if the record was delivered first.

        Args:
            handle: The handle of the schedule, or its text.
            timeout: How many seconds to wait until the schedule of the handle is stored.
            answered: False if you will not wait for `settled`. Relays then write no answer, and this client needs no
                permission to read answers.

        Raises:
            KafkaError: The schedule of the handle was not stored within `timeout` seconds, so no request was sent.
            ConfigError: The text is not a handle.
        """
        return self._ask(handle, None, timeout, answered)

    def reschedule(
        self, handle: ScheduleHandle | str, when: When, timeout: float = ANSWER_WITHIN, *, answered: bool = True
    ) -> ChangeRequest:
        """Request another due time, sooner or later, in the same way as `cancel`. The handle stays valid.

        `settled` returns `Settled.RESCHEDULED`, or another value that explains why the time did not change. If a
        schedule is rescheduled twice, the last call wins.
        """
        return self._ask(handle, self._due_for(when), timeout, answered)

    def _due_for(self, when: When) -> int:
        """Return the due time in milliseconds, after creating the delay topics that it needs."""
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
        """Return whether scheduling for this time might block: delay topics are missing, or must be looked up again."""
        now = self._choice.time.now()
        return self._choice.may_wait(due_at(when, now) - now * 1000)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials from now on. Raises `ConfigError` if librdkafka does not accept them."""
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
        """Disable this copy of the object in a forked process, where its threads do not exist."""
        self._closed = self._is_forked = True

    def _check_open(self) -> None:
        if self._is_forked:
            raise made_before_fork("scheduler")
        if self._closed:
            raise ClosedError("The scheduler is closed. Create a new one.")

    def check_may_close(self) -> None:
        """Raise `HeadwayError` in a callback of this scheduler, where `close` would wait for its own thread forever."""
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
            if_pending = "keep"  # the pending schedule keeps its next time and its missed times
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
        """Return a token for a relay's answer to the schedule that is stored next, and the future for that answer."""
        return self._commands.expect()

    def _store(self, record: OutgoingRecord, on_stored: OnDelivery | None) -> DeliveryFuture:
        """Store a schedule, and return the future of its delivery report."""
        return self._send(record, on_stored)

    def _parts(self, handle: ScheduleHandle | str, timeout: float) -> HandleParts:
        """Return the parts of a handle, after waiting until its schedule is stored."""
        self._check_open()
        if isinstance(handle, ScheduleHandle):
            _await_stored(handle, timeout)
        parts = HandleParts.read(str(handle))
        partitions = self._choice.partitions
        if parts.is_own:
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
