"""Step 2: each flight whose departure was late schedules a follow-up at its actual departure, in compressed time.

The relay delivers them when they are due; how late is told by the brokers' own timestamps.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from demo.evidence import Promise, percentile
from demo.flights import FlightRecord
from headway import ConsumerRecord, Ladder, PriorityConsumer, Relay, ScheduleHandle, Scheduler
from headway.delay.topics import create_topics
from headway.kafka.admin import Admin

TOPIC = "departures"
NAME = "demo-delay"

_OVER_S = 5.0  # all departures happen within so many seconds,
_PER_S = 80  # or a few of them at this rate
_LEAD_S = 2.0  # for scheduling them
_GIVE_UP_AFTER_S = 30.0


@dataclass(slots=True)
class Outcome:
    """How many follow-ups were scheduled; by number how many milliseconds late they came; how many came once more."""

    scheduled: int
    late_ms: dict[int, int] = field(default_factory=dict)
    repeats: int = 0

    def note(self, number: int, late_ms: int) -> None:
        """A follow-up has come."""
        if number in self.late_ms:
            self.repeats += 1
        else:
            self.late_ms[number] = late_ms

    def promises(self) -> list[Promise]:
        """What was promised, and what was seen."""
        came, late = len(self.late_ms), list(self.late_ms.values())
        seen = f"{came:,} of {self.scheduled:,}" + (f", and {self.repeats:,} again" if self.repeats else "")
        earliest, longest = min(late, default=0), max(late, default=0)
        lateness = f"earliest {earliest}, p50 {percentile(late, 50)}, p99 {percentile(late, 99)}, longest {longest}"
        return [
            Promise("every follow-up once", seen, came == self.scheduled and not self.repeats),
            Promise("no follow-up early (ms late)", lateness, earliest >= 0),
        ]


def run(servers: str, flights: Iterable[FlightRecord]) -> Outcome:
    """Schedule the follow-ups of late departures, and read them as they are delivered."""
    config = {"bootstrap.servers": servers}
    Admin(config).create([f"{TOPIC}-0"], 2, config={"message.timestamp.type": "LogAppendTime"})
    create_topics(config, NAME, Ladder.exponential(1, 2, 5), 2)
    departures = _compressed([(departure, flight) for flight in flights if (departure := _late_departure(flight))])
    with Relay(config, name=NAME).running():
        handles = _schedule(config, departures)
        return _read(config, [round(handle.due * 1000) for handle in handles])


def _late_departure(flight: FlightRecord) -> float | None:
    """When it left, in seconds since the epoch, if that was late."""
    row = json.loads(flight.value)
    if not row["dep_delay"] or row["dep_delay"] <= 0:
        return None
    hour = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00")).replace(tzinfo=UTC)
    minutes: int = row["sched_dep_time"] % 100 + row["dep_delay"]
    return hour.timestamp() + minutes * 60


def _compressed(departures: list[tuple[float, FlightRecord]]) -> list[tuple[float, FlightRecord]]:
    """The same, each at so many seconds from now."""
    first, last = min(at for at, _ in departures), max(at for at, _ in departures)
    scale = min(_OVER_S, len(departures) / _PER_S) / max(1.0, last - first)
    return [((at - first) * scale, flight) for at, flight in departures]


def _schedule(config: dict[str, str], departures: list[tuple[float, FlightRecord]]) -> list[ScheduleHandle]:
    begin = time.time() + _LEAD_S
    with Scheduler({**config, "linger.ms": "5"}, name=NAME) as scheduler:
        return [
            scheduler.send_later(
                flight.key, flight.value, TOPIC, begin + at - time.time(), priority=0, headers=[("n", b"%d" % n)]
            )
            for n, (at, flight) in enumerate(departures)
        ]


def _read(config: dict[str, str], due_ms: list[int]) -> Outcome:
    settings = {**config, "group.id": TOPIC, "auto.offset.reset": "earliest"}
    outcome = Outcome(len(due_ms))
    with PriorityConsumer({**settings, "max.priority": 1, "max.poll.records": 500}) as consumer:
        consumer.subscribe(TOPIC)
        deadline = time.monotonic() + _OVER_S + _GIVE_UP_AFTER_S
        while len(outcome.late_ms) < outcome.scheduled and time.monotonic() < deadline:
            for record in consumer.poll(1.0):
                number = _number(record)
                outcome.note(number, record.timestamp - due_ms[number])
    return outcome


def _number(record: ConsumerRecord) -> int:
    [(_, number)] = record.headers
    return int(number or b"-1")
