"""A clock for the tests of a whole service: its schedules, the relay, and its workers."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import starmap
from typing import Any

from headway.declarations import called, check_above_zero, check_whole
from headway.errors import ConfigError
from headway.kafka.admin import Admin
from headway.kafka.binding.capi import Partition
from headway.kafka.binding.mock_cluster import mock_at
from headway.kafka.reading.log_bounds import LogBounds
from headway.settings.config import DEFAULT_SCHEDULER, Config
from headway.testing.early_delivery import EarlyDelivery
from headway.testing.outcome import Scheduled, WorkerRun, scheduled_of
from headway.testing.stand_ins import declaration_of
from headway.testing.worker_run import run_together
from headway.workers.worker import Worker


@contextmanager
def clock(
    settings: Config, *, scheduler: str = DEFAULT_SCHEDULER, partitions: int = 4, timeout: float = 30.0
) -> Iterator["Clock"]:
    """Run a relay, and yield a clock that the test can advance. Records are delivered when they are due by this clock.

    Inside the `with` block, a test can call its service, advance the clock, and run its workers, any number of times:

    >>> with clock(settings) as time:  # doctest: +SKIP
    ...     order_basket("7")  # schedules a reminder
    ...     time.advance(600)
    ...     [reminded] = time.run(remind)

    Workers get the records that were stored or delivered since the block began. Schedules from before the block are
    delivered, too, unless an earlier run or block left them behind.

    Args:
        settings: The settings that say where Kafka is. Use only a test broker.
        scheduler: The name of the scheduler whose records are delivered by the clock.
        partitions: The number of partitions of topics that are created because they do not exist yet.
        timeout: How many seconds the workers have to become idle, and the relay has to carry out a request.

    Raises `ConfigError` for the mock, which does not support delayed delivery.
    """
    check_whole("partitions", partitions, 1)
    check_above_zero("timeout", timeout)
    if mock_at(settings.get("bootstrap.servers")) is not None:
        raise ConfigError(
            "clock() needs delayed delivery, which the mock cluster does not support. Use the fixture headway_broker "
            "for this test."
        )
    deliveries = EarlyDelivery(settings, scheduler, None, None, timeout)
    with deliveries.delivering():
        yield Clock(settings, scheduler, deliveries, partitions, timeout)


class Clock:
    """The clock that `clock` yields. It decides when scheduled records are delivered."""

    def __init__(
        self, settings: Config, scheduler: str, deliveries: EarlyDelivery, partitions: int, timeout: float
    ) -> None:
        self._settings = dict(settings)
        self._scheduler = scheduler
        self._name = uuid.uuid4().hex[:8]
        self._deliveries = deliveries
        self._partitions = partitions
        self._timeout = timeout
        topics = Admin(settings).topics().seen
        places = [(topic, number) for topic, count in topics.items() for number in range(count)]
        self._began_at = LogBounds(settings).ends(places)
        self._read_to: dict[Callable[..., Any], dict[Partition, int]] = {}

    def advance(self, seconds: float) -> None:
        """Advance the clock, and deliver the records that become due, in the order of their due times.

        No worker runs in the meantime. So if the workers schedule or cancel records, advance the clock in steps, and
        run the workers after each step.
        """
        check_above_zero("seconds", seconds)
        self._create_targets()
        self._deliveries.advance_by(seconds)

    def run(self, *workers: Callable[..., Any], skip_waits: bool = True) -> tuple[WorkerRun, ...]:
        """Run the workers at the same time until all of them are idle. Returns their outcomes in the same order.

        A worker continues where its last run in this block ended. `skip_waits` and the errors that are raised are the
        same as for `run_until_idle`.
        """
        declared = [declaration_of(each) for each in workers]
        for each in declared:
            name = each.config.get("scheduler.name", DEFAULT_SCHEDULER)
            if name != self._scheduler:
                raise ConfigError(
                    f"The worker {called(each.handler)} uses the scheduler {name}, but this clock is for "
                    f"{self._scheduler}. Use clock(settings, scheduler={name!r})."
                )
        ran = run_together(
            declared,
            self._settings,
            self._position,
            name=self._name,
            partitions=self._partitions,
            timeout=self._timeout,
            skip_waits=skip_waits,
        )
        schedules = self.schedules
        for each, (outcome, read_to) in zip(declared, ran, strict=True):
            self._read_to[each.handler] = read_to
            outcome.schedules.extend(schedules)
        return tuple(outcome for outcome, _ in ran)

    @property
    def schedules(self) -> list[Scheduled]:
        """The pending records in the order of their due times, which are the times on this clock."""
        self._deliveries.await_relay()  # until all commands, including cancellations, are carried out
        return list(starmap(scheduled_of, self._deliveries.pending()))

    def _position(self, worker: Worker, place: Partition) -> int:
        return self._read_to.get(worker.handler, self._began_at).get(place, 0)

    def _create_targets(self) -> None:
        """Create the missing target topics of schedules, because a worker creates its topics only when it runs."""
        admin = Admin(self._settings)
        seen = admin.topics().seen
        if missing := sorted({each.topic for each in self.schedules if each.topic not in seen}):
            admin.create(missing, self._partitions)
