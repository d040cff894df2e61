"""Schedules that came of a test's run, and their delivery before their time."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headway.config import Config
from headway.delay.pending import Pending, PendingReader, read_pending
from headway.delay.relay.relay import Relay
from headway.delay.scheduler import Scheduler
from headway.delay.topics import create_topics, read_layout
from headway.testing.advanced_clock import AdvancedClock, identity

_RIGHT_NOW = 0
_LOOK_EVERY = 0.05  # seconds


class EarlyDelivery:
    """The schedules of one scheduler, by a clock that can be advanced.

    Args:
        settings: Where Kafka is.
        name: The scheduler's; None if Kafka is the mock, which has none.
        topics: The topics of which the clock delivers; it never jumps to the due time of another one's record.
        advance: The seconds by which the clock jumps at most.
        timeout: The seconds in which the relay has to carry out what it was asked for.
    """

    def __init__(
        self, settings: Config, name: str | None, topics: Iterable[str], advance: float, timeout: float
    ) -> None:
        self._settings = settings
        self._name = name
        self._topics = frozenset(topics)
        self._advance = round(advance * 1000)
        self._timeout = timeout
        self._before: frozenset[tuple[str, int]] = frozenset()
        self._clock = AdvancedClock(0, 0)
        self._scheduler: Scheduler | None = None

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """While a `with` block lasts, let a relay deliver what is due.

        Schedules that earlier runs have left are cancelled if the clock would deliver them, else not looked at.
        """
        if self._name is None or not self._advance:
            self._before = frozenset(map(identity, self._all()))
            yield
            return
        create_topics(self._settings, self._name, delay=self._advance)
        relay = Relay(self._settings, name=self._name, mode="low-latency")
        with relay.running(), Scheduler(self._settings, name=self._name) as self._scheduler:
            self._await_relay()  # what others have left as commands would become new schedules later
            self._cancel_earlier(self._scheduler)
            self._before = frozenset(map(identity, self._all()))
            self._clock = AdvancedClock(_now(), self._advance)
            yield

    def deliver_next(self) -> int:
        """Deliver what is due next, as far as the clock goes; return how many records come."""
        if self._scheduler is None:
            return 0
        self._await_relay()
        pending = [each for each in self._new() if each.schedule.topic in self._topics]
        reached = self._clock.jump(pending, _now())
        for each in reached:
            self._scheduler.reschedule(each.handle, _RIGHT_NOW)
        return len(reached)

    def _cancel_earlier(self, scheduler: Scheduler) -> None:
        """Cancel what is pending for the topics: by the real clock it may come in the midst of this run."""
        earlier = [each for each in self._all() if each.schedule.topic in self._topics]
        for cancelled in [scheduler.begin_to_cancel(each.handle) for each in earlier]:
            cancelled.result(self._timeout)

    def _await_relay(self) -> None:
        """Return when the relay has carried out all commands: until then a schedule with an id is none."""
        deadline = time.monotonic() + self._timeout
        with PendingReader(self._settings, str(self._name)) as reader:
            while any(True for _ in reader.commands()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"The relay of {self._name} was not done within {self._timeout:g} s.")
                time.sleep(_LOOK_EVERY)

    def pending(self) -> list[tuple[Pending, int]]:
        """Return the schedules that are still to come, the next first, and when each is due by the clock."""
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
