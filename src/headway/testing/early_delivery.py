"""Delivers the schedules of a test early, so that the test does not have to wait until they are due."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from headway.core.delay.schedule import Schedule
from headway.delay.pending import Pending, PendingReader, read_pending
from headway.delay.records import schedule_of
from headway.delay.relay.relay import Relay
from headway.delay.scheduler import Scheduler
from headway.delay.topics import create_topics, read_layout
from headway.errors import ScheduleError
from headway.kafka.admin import Admin
from headway.kafka.reading.log_bounds import LogBounds
from headway.settings.config import Config
from headway.testing.advanced_clock import AdvancedClock, identity

_SERVERS = "bootstrap.servers"
_PERMISSION_NOW = 0
_LOOK_EVERY = 0.05  # seconds between checks of whether the relay is done


_left: set[tuple[str, str, int]] = set()
"""The schedules that earlier runs in this process left behind: Kafka's addresses, the id, and the creation time."""


class EarlyDelivery:
    """Delivers the schedules of one scheduler by a clock that a test can advance.

    Schedules that an earlier run left behind are ignored. All other schedules are part of the test, even if they were
    created before it began: the test may be about a reminder that a service has scheduled and failed to cancel.

    Args:
        settings: The settings that say where Kafka is.
        name: The name of the scheduler, or None for the mock of Kafka, which does not support schedulers.
        topics: The topics to deliver to, or None for all topics. The clock never jumps to the due time of a record for
            another topic.
        advance: How many seconds the clock may advance in total. None if `advance_by` sets the limit later.
        timeout: How many seconds the relay has to carry out a request.
    """

    def __init__(
        self, settings: Config, name: str | None, topics: Iterable[str] | None, advance: float | None, timeout: float
    ) -> None:
        self._settings = settings
        self._name = name
        self._topics = None if topics is None else frozenset(topics)
        self._advance = None if advance is None else round(advance * 1000)
        self._timeout = timeout
        self._before: frozenset[tuple[str, int]] = frozenset()
        self._clock = AdvancedClock(0, 0)
        self._scheduler: Scheduler | None = None

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Run a relay that delivers due records, until the `with` block ends.

        Schedules that earlier runs left behind are cancelled if they are for one of the topics, and otherwise ignored.
        """
        try:
            if self._name is None or self._advance == 0:
                self._before = frozenset(map(identity, self._all()))
                yield
                return
            create_topics(self._settings, self._name, delay=math.inf if self._advance is None else self._advance)
            relay = Relay(self._settings, name=self._name, mode="low-latency")
            with relay.running(), Scheduler(self._settings, name=self._name) as self._scheduler:
                self.await_relay()  # otherwise commands from earlier runs could become schedules during this run
                left = [each for each in self._all() if self._is_left(each.schedule)]
                self._cancel(self._scheduler, [each for each in left if self._is_ours(each)])
                self._before = frozenset(map(identity, left))
                self._clock = AdvancedClock(_now(), self._advance or 0)
                yield
        finally:
            self._leave()

    def deliver_next(self) -> int:
        """Jump to the next due time, if the clock may advance that far. Returns how many records are delivered."""
        if self._scheduler is None:
            return 0
        self.await_relay()
        pending = [each for each in self._new() if self._is_ours(each)]
        reached = self._clock.jump(pending, _now())
        for each in reached:
            self._scheduler.reschedule(each.handle, _PERMISSION_NOW).settled()
        return len(reached)

    def advance_by(self, seconds: float) -> None:
        """Advance the clock, and deliver the records that become due, in the order of their due times."""
        until = self._clock.allow(round(seconds * 1000), _now())
        self.await_relay()
        counts = Admin(self._settings).topics().seen
        topics = {each.schedule.topic for each in self._all()}
        places = [(topic, number) for topic in topics for number in range(counts.get(topic, 0))]
        bounds = LogBounds(self._settings)
        stored = sum(bounds.ends(places).values())
        while came := self.deliver_next():
            stored += came
            self._await(lambda least=stored: sum(bounds.ends(places).values()) >= least)  # type: ignore[misc]
        self._clock.reach(until, _now())

    def _is_ours(self, pending: Pending) -> bool:
        return self._topics is None or pending.schedule.topic in self._topics

    def _cancel(self, scheduler: Scheduler, earlier: Iterable[Pending]) -> None:
        """Cancel schedules that earlier runs left behind, because they could become due during this run."""
        for request in [scheduler.cancel(each.handle) for each in earlier]:
            request.settled(self._timeout)

    def _is_left(self, schedule: Schedule) -> bool:
        return (str(self._settings.get(_SERVERS)), schedule.id, schedule.at) in _left

    def _leave(self) -> None:
        """Remember the remaining schedules and commands, so that the next run ignores them."""
        servers = str(self._settings.get(_SERVERS))
        _left.update((servers, *identity(each)) for each in self._all())
        if self._name is None or read_layout(self._settings, self._name) is None:
            return
        with PendingReader(self._settings, self._name) as reader:
            for command in reader.commands():
                with suppress(ScheduleError):  # raised for a command that is a cancellation, not a schedule
                    schedule = schedule_of(command)
                    _left.add((servers, schedule.id, schedule.at))

    def await_relay(self) -> None:
        """Wait until the relay has carried out all commands. Until then, a schedule with an id is only a command."""
        with PendingReader(self._settings, str(self._name)) as reader:
            self._await(lambda: not any(True for _ in reader.commands()))

    def _await(self, is_done: Callable[[], bool]) -> None:
        """Wait until `is_done` returns True. Raises `TimeoutError` if the relay takes too long."""
        deadline = time.monotonic() + self._timeout
        while not is_done():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"The relay of the scheduler {self._name} did not finish within {self._timeout:g} s. Set a longer "
                    "timeout."
                )
            time.sleep(_LOOK_EVERY)

    def pending(self) -> list[tuple[Pending, int]]:
        """Return the pending schedules in the order of their due times, each with its due time on the test's clock."""
        found = self._new()
        self._clock.see(found)
        dues = [(each, due) for each in found if (due := self._clock.due_of(each)) is not None]
        return sorted(dues, key=lambda each: each[1])

    def _new(self) -> list[Pending]:
        return [each for each in self._all() if identity(each) not in self._before]

    def _all(self) -> list[Pending]:
        if self._name is None or read_layout(self._settings, self._name) is None:
            return []
        return list({identity(each): each for each in read_pending(self._settings, self._name)}.values())


def _now() -> int:
    return time.time_ns() // 1_000_000
