"""A simulation of a streaming query on a cluster, micro-batch by micro-batch: the real planner, and measured costs.

What decides is the code that runs in production: the split over levels, the limit that follows from a wanted time, the
number of tasks and the packing of ranges. The rest is a model: records arrive evenly, the driver plans and starts one
task after another, and the tasks of an executor share its cores. No time passes, and no record is made.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import floor, inf

from headway.core.levels.policies import make_policy
from headway.kafka.reading.range_reader import Range
from headway.records.record_types import TopicPartition
from headway.spark.source.level_split import LevelSplit, Sightings
from headway.spark.source.limit_control import LimitControl
from headway.spark.source.range_packing import TaskOptions, divide, ranges
from headway.spark.source.stream_offset import StreamOffset

TOPIC = "events"
RANGES = 200
"""Of each level, the ranges whose waits are noted in a micro-batch."""
POINTS = 5
"""Of each range, the records whose waits are noted, evenly over it."""
GOLDEN = (5**0.5 - 1) / 2
"""The part of a step by which each partition is behind the one before: any number of them are spread evenly so."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What things take, in seconds: by the clock where nothing else runs, and of cores."""

    batch: float
    """A micro-batch with next to nothing in it, without its planning and its tasks."""
    plan: float
    """Planning, for each partition."""
    start: float
    """What the driver does for each task before it can start the next one."""
    task: float
    """A task beside its records."""
    task_cores: float
    """Of it, by cores."""
    record: float
    """One record in its task, from Kafka to what comes after the stage."""
    record_cores: float
    """Of it, by cores: Python and Java, and the broker where it shares them."""
    range: float = 0.0
    """What each range adds to its task."""
    staged: float = 0.0
    """One record in its task where a stage handles it with a handler that does nothing."""
    staged_cores: float = 0.0
    """Of it, by cores."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What a stage's handler does with each record: seconds of a core, and of waiting, with so many at a time."""

    cpu: float = 0.0
    wait: float = 0.0
    at_a_time: int = 1000


@dataclass(frozen=True, slots=True)
class Executor:
    """A machine of the cluster; one with a `speed` of 0.2 is a straggler, and one can be lost at a time."""

    slots: int
    cores: float
    speed: float = 1.0
    lost_at: float = inf


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What comes: records a second for each level, and the weights of the partitions, which are alike in all levels.

    `outage` is for how many seconds nothing was read before the query starts.
    """

    rates: Sequence[float]
    weights: Sequence[float]
    outage: float = 0.0

    def by_partition(self) -> dict[TopicPartition, float]:
        """Return the records a second of each partition of each level."""
        return {
            TopicPartition(TOPIC, partition=number, level=level): rate * weight
            for level, rate in enumerate(self.rates)
            for number, weight in enumerate(self.weights)
        }


@dataclass(frozen=True, slots=True)
class Query:
    """The options of a query: its most records a micro-batch, the wanted time of one, and its tasks."""

    most: int
    target: float | None = None
    tasks: TaskOptions = field(default_factory=TaskOptions)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: when it began and ended, its records and tasks, and the core-seconds that these took."""

    began: float
    ended: float
    records: int
    tasks: int
    cores: float

    @property
    def took(self) -> float:
        """The seconds from its planning to its end."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Work:
    """One task: its seconds alone on an executor, and how many cores it uses meanwhile."""

    seconds: float
    load: float


@dataclass(slots=True)
class Outcome:
    """What became of a query: its micro-batches, and how long records of each level waited.

    A wait is (seconds, records, when they came). The lag is (time, records) at each micro-batch's end.
    """

    batches: list[Batch] = field(default_factory=list)
    waits: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)
    lag: list[tuple[float, float]] = field(default_factory=list)

    def wait(self, level: int, percent: float, since: float = 0.0) -> float:
        """Return the wait that so many percent of a level's records are not above, of those that came since a time."""
        ranked = sorted((wait, records) for wait, records, came in self.waits.get(level, []) if came >= since)
        most = sum(records for _, records in ranked) * percent / 100
        passed = 0.0
        for wait, records in ranked:
            passed += records
            if passed >= most:
                return wait
        return inf

    def busy_cores(self) -> float:
        """Return the cores that were busy on average, from the first micro-batch to the last."""
        return sum(each.cores for each in self.batches) / (self.batches[-1].ended - self.batches[0].began)


def work_of(group: Sequence[Range], costs: Costs, handler: Handler | None) -> Work:
    """Return what a task with these ranges takes: its records one after another, and their waits side by side."""
    records, fixed = sum(each.length for each in group), costs.task + len(group) * costs.range
    if handler is None:
        alone, cores = records * costs.record, records * costs.record_cores
    else:
        busy = max(costs.record, costs.staged + handler.cpu)
        alone = max(records * busy, records / handler.at_a_time * handler.wait)
        cores = records * (costs.staged_cores + handler.cpu)
    seconds = fixed + alone
    return Work(seconds, (costs.task_cores + len(group) * costs.range + cores) / seconds)


class _Running:
    """The tasks that run on one executor, which share its cores."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.tasks: list[tuple[float, Work]] = []  # what is left, in seconds of a task that is alone
        self.at = 0.0

    @property
    def speed(self) -> float:
        load = sum(work.load for _, work in self.tasks)
        return self.executor.speed * min(1.0, self.executor.cores / load if load else 1.0)

    def go_on(self, now: float) -> None:
        """Let the tasks run until now."""
        done = (now - self.at) * self.speed
        self.tasks = [(left - done, work) for left, work in self.tasks if left - done > 1e-9]
        self.at = now

    def next_end(self) -> float:
        """Return when the next of them ends, if no other one starts."""
        return self.at + min(left for left, _ in self.tasks) / self.speed if self.tasks else inf


def makespan(works: Sequence[Work], executors: Sequence[Executor], start: float, began: float = 0.0) -> float:
    """Return how long the tasks take: the driver starts each in turn on the executor with most free slots.

    What ran on an executor that is lost begins anew elsewhere.

    >>> makespan([Work(1.0, 1.0)] * 3, [Executor(slots=2, cores=2)], start=0.0)
    2.0
    >>> makespan([Work(1.0, 2.0)] * 2, [Executor(slots=2, cores=2)], start=0.0)
    2.0
    """
    waiting = deque(works)
    running = [_Running(each) for each in executors if each.lost_at > began]
    now = next_start = 0.0
    ends: list[tuple[float, int, int]] = []  # of an executor's next task; outdated ones are passed over
    numbers, current = count(), [-1] * len(running)
    free = [(-each.executor.slots, index) for index, each in enumerate(running)]
    free.sort()
    lost = sorted((each.executor.lost_at - began, index) for index, each in enumerate(running))
    lost = [(at, index) for at, index in lost if at < inf]
    gone: set[int] = set()

    def note(index: int) -> None:
        current[index] = next(numbers)
        heappush(ends, (running[index].next_end(), current[index], index))
        if index not in gone and (room := running[index].executor.slots - len(running[index].tasks)):
            heappush(free, (-room, index))

    while True:
        while waiting and free and next_start <= now:
            room, index = heappop(free)
            at = running[index]
            if index in gone or -room != at.executor.slots - len(at.tasks):
                continue  # outdated
            at.go_on(now)
            work = waiting.popleft()
            at.tasks.append((work.seconds, work))
            next_start = now + start
            note(index)
        while ends and ends[0][1] != current[ends[0][2]]:
            heappop(ends)
        end = ends[0][0] if ends else inf
        if lost and lost[0][0] <= min(end, next_start if waiting and free else inf):
            at_time, index = lost.pop(0)
            gone.add(index)
            waiting.extendleft(work for _, work in running[index].tasks)
            running[index].tasks.clear()
            now = max(now, at_time)
            note(index)
            continue
        if waiting and free and next_start < end:
            now = next_start
            continue
        if end == inf:
            if waiting:
                raise ValueError("All executors are lost.")
            return now
        now = end
        index = heappop(ends)[2]
        running[index].go_on(now)
        note(index)


def simulate(
    arrivals: Arrivals,
    executors: Sequence[Executor],
    costs: Costs,
    handler: Handler | None,
    query: Query,
    seconds: float,
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> Outcome:
    """Return what becomes of a query that runs for so many seconds; its first micro-batch begins at 0."""
    levels = len(arrivals.rates)
    _, policy = make_policy("fair", None, levels, query.most)
    split = LevelSplit(policy, levels, query.most, Sightings())
    control = LimitControl(query.target, 16, query.most) if query.target else None
    rates = arrivals.by_partition()
    # Else slow partitions would all have their next record in one instant.
    phases = {at: number * GOLDEN % 1 for number, at in enumerate(rates)}

    def came(at: TopicPartition, offset: int) -> float:
        return (offset + 1 - phases[at]) / rates[at] - arrivals.outage

    position = StreamOffset(dict.fromkeys(rates, 0), {})
    cores = sum(each.slots for each in executors)
    outcome, now = Outcome(), 0.0
    while now < seconds:
        planned_at = now + costs.plan * len(rates)
        ends = {at: floor(rate * (planned_at + arrivals.outage) + phases[at]) for at, rate in rates.items()}
        stops = split.stops(position.offsets, ends, planned_at, control.limit if control else None)
        reached = StreamOffset(stops, {})
        parts = ranges(position, reached)
        records = sum(each.length for each in parts)
        slow = control is not None and control.is_slow(records)
        reached = replace(reached, tasks=query.tasks.count(parts, cores, slow=slow), split=query.tasks.split)
        groups = divide(parts, reached.tasks, split=reached.split)
        works = [work_of(group, costs, handler) for group in groups]
        took = makespan(works, executors, costs.start, planned_at) if works else 0.0
        ended = planned_at + costs.batch + took
        used = sum(work.seconds * work.load for work in works)
        batch = Batch(now, ended, records, len(groups), used)
        outcome.batches.append(batch)
        _note_waits(outcome, parts, came, ended)
        outcome.lag.append((ended, sum(ends.values()) - sum(stops.values())))
        if control:
            control.note(records, ended - now)
        position, now = reached, ended
        on_batch(batch)
    return outcome


def _note_waits(
    outcome: Outcome, parts: Sequence[Range], came: Callable[[TopicPartition, int], float], ended: float
) -> None:
    """Note the waits of some records of each range; of thousands of ranges, of each nth of a level."""
    by_level: dict[int, list[Range]] = {}
    for each in parts:
        by_level.setdefault(each.partition.level, []).append(each)
    for level, of_level in by_level.items():
        step = 1 + len(of_level) // RANGES
        for each in of_level[::step]:
            for point in range(POINTS):
                at = came(each.partition, each.start + floor(each.length * (point + 0.5) / POINTS))
                outcome.waits.setdefault(level, []).append((ended - at, each.length * step / POINTS, at))


def even(partitions: int) -> list[float]:
    """Return the weights of partitions that get the same."""
    return [1 / partitions] * partitions


def zipf(partitions: int, exponent: float = 1.0) -> list[float]:
    """Return the weights of partitions of which the nth gets 1/n**exponent of the first.

    >>> [round(each, 2) for each in zipf(3)]
    [0.55, 0.27, 0.18]
    """
    raw = [1 / (number + 1) ** exponent for number in range(partitions)]
    return [each / sum(raw) for each in raw]


def one_hot(partitions: int, times: float = 50.0) -> list[float]:
    """Return the weights of partitions of which the first gets so many times what another gets."""
    raw = [times, *[1.0] * (partitions - 1)]
    return [each / sum(raw) for each in raw]
