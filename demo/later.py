"""Step 2: each flight whose departure was late schedules a follow-up at its actual departure, in compressed time.

The relay delivers them when they are due; how late is told by the brokers' own timestamps.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from demo.evidence import Promise, percentile
from demo.flights import FlightRecord
from headway import ConsumerRecord, Ladder, PriorityConsumer, Relay, ScheduleHandle, Scheduler
from headway.delay.topics import create_topics
from headway.kafka.admin import Admin

TOPIC = "departures"
NAME = "demo-delay"

_OVER_S = 5.0  # seconds within which all departures happen,
_PER_S = 80  # unless they are few: then at this rate per second
_LEAD_S = 2.0  # before the first departure
_AHEAD_S = 0.5  # the least time from scheduling a follow-up until it is due
_GIVE_UP_AFTER_S = 60.0  # after the last one arrived, or was due


@dataclass(slots=True)
class Outcome:
    """The number of scheduled follow-ups, the lateness of each in milliseconds, and the number of repeated ones."""

    scheduled: int
    late_ms: dict[int, int] = field(default_factory=dict)
    repeats: int = 0

    def note(self, number: int, late_ms: int) -> None:
        """Count a follow-up that has arrived."""
        if number in self.late_ms:
            self.repeats += 1
        else:
            self.late_ms[number] = late_ms

    def promises(self) -> list[Promise]:
        """The promises, and what was seen."""
        came, late = len(self.late_ms), list(self.late_ms.values())
        seen = f"{came:,} of {self.scheduled:,}" + (f", and {self.repeats:,} again" if self.repeats else "")
        return [Promise("every follow-up once", seen, came == self.scheduled and not self.repeats), _never_early(late)]


def _never_early(late_ms: list[int]) -> Promise:
    promised = "no follow-up early (ms late)"
    if not late_ms:
        return Promise(promised, "not shown: none came", None)
    middle = f"p50 {percentile(late_ms, 50)}, p99 {percentile(late_ms, 99)}"
    return Promise(promised, f"earliest {min(late_ms)}, {middle}, longest {max(late_ms)}", min(late_ms) >= 0)


def run(servers: str, flights: Iterable[FlightRecord], say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Schedule the follow-ups of late departures, and read them as they are delivered. `say` shows the progress."""
    config = {"bootstrap.servers": servers}
    Admin(config).create([f"{TOPIC}-0"], 2, config={"message.timestamp.type": "LogAppendTime"})
    create_topics(config, NAME, Ladder.exponential(1, 2, 5), 2)
    departures = _compressed([(departure, flight) for flight in flights if (departure := _late_departure(flight))])
    with Relay(config, name=NAME).running():
        handles = _schedule(config, departures)
        return _read(config, [round(handle.due * 1000) for handle in handles], say)


def _late_departure(flight: FlightRecord) -> float | None:
    """Return when the flight departed, in seconds since the epoch, or None if it was not late."""
    row = json.loads(flight.value)
    if not row["dep_delay"] or row["dep_delay"] <= 0:
        return None
    hour = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00")).replace(tzinfo=UTC)
    minutes: int = row["sched_dep_time"] % 100 + row["dep_delay"]
    return hour.timestamp() + minutes * 60


def _compressed(departures: list[tuple[float, FlightRecord]]) -> list[tuple[float, FlightRecord]]:
    """Compress the departures into seconds from now."""
    first, last = min(at for at, _ in departures), max(at for at, _ in departures)
    scale = min(_OVER_S, len(departures) / _PER_S) / max(1.0, last - first)
    return [((at - first) * scale, flight) for at, flight in departures]


def _schedule(config: dict[str, str], departures: list[tuple[float, FlightRecord]]) -> list[ScheduleHandle]:
    begin = time.time() + _LEAD_S
    with Scheduler({**config, "linger.ms": "5"}, name=NAME) as scheduler:
        return [
            scheduler.send_later(
                flight.key, flight.value, TOPIC, delay_until(begin + at), level=0, headers=[("n", b"%d" % n)]
            )
            for n, (at, flight) in enumerate(departures)
        ]


def delay_until(due: float) -> float:
    """Return the seconds until a departure. One that is due before it can be scheduled cannot be early."""
    return max(_AHEAD_S, due - time.time())


def _read(config: dict[str, str], due_ms: list[int], say: Callable[[str], None]) -> Outcome:
    settings = {**config, "group.id": TOPIC, "auto.offset.reset": "earliest"}
    outcome = Outcome(len(due_ms))
    with PriorityConsumer({**settings, "levels": 1, "max.poll.records": 500}) as consumer:
        consumer.subscribe(TOPIC)
        heard = max(due_ms) / 1000
        while len(outcome.late_ms) < outcome.scheduled and time.time() < heard + _GIVE_UP_AFTER_S:
            for record in consumer.poll(1.0):
                number = _number(record)
                outcome.note(number, record.timestamp - due_ms[number])
                heard = max(heard, time.time())
            say(f"{len(outcome.late_ms):,} of {outcome.scheduled:,} follow-ups have come")
    return outcome


def _number(record: ConsumerRecord) -> int:
    [(_, number)] = record.headers
    return int(number or b"-1")
