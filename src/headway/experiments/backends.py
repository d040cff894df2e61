"""Where an experiment runs: in a simulation, or on a real Kafka."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway.experiments.level_run import run_levels
from headway.experiments.level_setup import ConsumerName, LevelSetup, Way
from headway.experiments.level_simulation import simulate_levels
from headway.experiments.ordered_group import ArrivingWork, OrderedGroup
from headway.experiments.run_log import OnProgress, RunLog


class Backend(Protocol):
    """Runs consumers, and returns the log of each run."""

    @property
    def description(self) -> str:
        """How the runs are made, for the caption of a picture."""
        ...

    def run_levels(self, setup: LevelSetup, way: Way, consumer: ConsumerName, progress: OnProgress) -> RunLog:
        """Consume the records of a set-up with levels."""
        ...

    def run_ordered(self, group: OrderedGroup, work: Sequence[ArrivingWork], progress: OnProgress) -> RunLog:
        """Consume records without levels."""
        ...


class SimulatedBackend:
    """Simulates time. The real policies and the real engine decide."""

    description = "simulated with Headway's own policies and engine"

    def run_levels(self, setup: LevelSetup, way: Way, consumer: ConsumerName, progress: OnProgress) -> RunLog:
        return simulate_levels(setup, way, consumer, progress)

    def run_ordered(self, group: OrderedGroup, work: Sequence[ArrivingWork], progress: OnProgress) -> RunLog:
        return group.simulated(work, progress)


@dataclass(frozen=True, slots=True)
class KafkaBackend:
    """Runs on Kafka, with the settings of its clients. All times are divided by `speed`."""

    config: Mapping[str, Any] = field(repr=False)
    speed: float

    @property
    def description(self) -> str:
        pace = "" if self.speed == 1 else f", {self.speed:g} times as fast as the times shown"
        return f"on Apache Kafka{pace}"

    def run_levels(self, setup: LevelSetup, way: Way, consumer: ConsumerName, progress: OnProgress) -> RunLog:
        return run_levels(self.config, setup, way, consumer, self.speed, progress)

    def run_ordered(self, group: OrderedGroup, work: Sequence[ArrivingWork], progress: OnProgress) -> RunLog:
        return group.on_kafka(self.config, work, self.speed, progress)
