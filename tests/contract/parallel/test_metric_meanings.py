"""One run of a parallel consumer whose figures are known, and what each metric says of it at a moment of rest.

The records, by their offsets in partition 0 of level 0: 0 is done, 1 fails for good, 2 fails once, 3 has expired, 4 is
dropped by a rule, 5 runs on and on, 6 is held by a rule, 7 and 8 are done. Five more at level 1 are done.
"""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headway import ConsumerRecord, Context, FatalError, ParallelConsumer, Retries, fixed_backoff
from headway.core.levels.naming import level_topic
from headway.metrics import table
from headway.metrics.histogram import HistogramValue
from headway.metrics.samples import Measure, Sample
from headway.metrics.table import METRICS
from headway.records.expiry import expiry_header
from headway.rules import Drop, Hold, Rule, Rules
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, Member, plain_topic, settings_of, wait_for

pytestmark = pytest.mark.kafka

Values = dict[tuple[str, ...], Any]

OLD = 100.0  # the age of the record at offset 0, in seconds
OK_TAKES = 0.02  # seconds


class Between:
    """Equals each number between two."""

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self.least <= other <= self.most

    def __hash__(self) -> int:
        return hash((self.least, self.most))

    def __repr__(self) -> str:
        return f"between {self.least} and {self.most}"


def values_of(samples: list[Sample], name: str) -> Values:
    """The values of a metric by its labels, without the group. Of a histogram the number of values."""
    return {
        each.labels[1:]: each.value.count if isinstance(each.value, HistogramValue) else each.value
        for each in samples
        if each.name == f"headway_{name}"
    }


class Script:
    """The run, and the samples at its moments."""

    def __init__(self, cluster: Cluster) -> None:
        self.topic = cluster.topic(levels=2)
        self.go_on = threading.Event()
        self.has_failed = False
        self._send(cluster)
        with Rules(cluster.config({})) as rules:
            rules.set(Rule("hold-it", self.topic, Hold(), "key = held"))
            rules.set(Rule("drop-it", self.topic, Drop(), "key = dropped"))
        settings = settings_of(self.topic, levels=2, **OFTEN)
        parallel = ParallelConsumer(
            cluster.config(settings),
            max_concurrency=4,
            tenant="key",
            steered=True,
            queue_time_warning=1e-9,
            dead_letter_topic=plain_topic(cluster),
            executor="thread",
            retries=Retries(backoff=fixed_backoff(0.05), max_attempts=4),
        )
        parallel.subscribe(self.topic)
        self.measure: Measure = parallel.measure()
        self.before = self.measure()
        member = Member(parallel, self._handle)
        try:
            wait_for(self._rests)
            self.at_rest = self.measure()
        finally:
            parallel.stop(drain=False)
            wait_for(lambda: values_of(self.measure(), "consumer_state").get(("stopping",)) == 1)
            member.stop(drain=False)
            self.go_on.set()
        self.closed = self.measure()

    def _send(self, cluster: Cluster) -> None:
        now = time.time()
        producer = cluster.plain_producer()
        low, high = (level_topic(self.topic, level) for level in range(2))
        expired: list[Any] = [expiry_header(int(now * 1000) - 1000)]
        for key, value, age, headers in (
            ("ann", "ok", OLD, None),
            ("bob", "dead", 0, None),
            ("carl", "fail once", 0, None),
            ("dan", "ok", 0, expired),
            ("dropped", "ok", 0, None),
            ("eve", "hang", 0, None),
            ("held", "ok", 0, None),
            ("ann", "ok", 0, None),
            ("ann", "ok", 0, None),
        ):
            producer.produce(low, value, key, 0, timestamp=int((now - age) * 1000), headers=headers)
        for _ in range(5):
            producer.produce(high, "ok", "ann", 1)
        assert producer.flush(30) == 0

    def _handle(self, record: ConsumerRecord, context: Context) -> None:
        match record.value:
            case b"hang":
                assert self.go_on.wait(60)
            case b"dead":
                raise FatalError("it can never be handled")
            case b"fail once" if not self.has_failed:
                self.has_failed = True
                raise ConnectionError("the first time")
        time.sleep(OK_TAKES)

    def _rests(self) -> bool:
        samples = self.measure()
        done = values_of(samples, "handler_done_total")
        at = (self.topic, "0", "0")
        return (
            list(done.values()) == [12]
            and values_of(samples, "partition_map_characters").get(at, 0) > 0
            and values_of(samples, "partition_end_offset").get(at) == 9
            and values_of(samples, "partition_stuck_seconds").get(at, 0) > 0.5
            and values_of(samples, "handler_running") == {(HANDLER,): 1}
            and values_of(samples, "consumer_state")["running",] == 1
        )


HANDLER = "Script._handle"
TESTS = Path(__file__).parents[2]
NAMES = ("test_*measured.py", "test_query_metrics.py", "test_statistics.py", "test_pod_metrics.py")
OTHERS = [path for name in NAMES for path in TESTS.rglob(name)]
LOW, HIGH = ("0",), ("1",)
LOW_TOPIC, HIGH_TOPIC = ("TOPIC", "0"), ("TOPIC", "1")
STUCK, OTHER = ("TOPIC", "0", "0"), ("TOPIC", "1", "1")  # two partitions


def handler(value: object) -> Values:
    return {(HANDLER,): value}


AT_REST: dict[str, Values] = {
    "handler_running": handler(1),  # offset 5
    "handler_ready": handler(0),
    "handler_waiting": handler(1),  # offset 6
    "handler_lanes": handler(2),  # their two keys
    "handler_slots": handler(4),
    "handler_done_total": handler(7 + 5),
    "handler_failed_total": {(HANDLER, "FatalError"): 1, (HANDLER, "ConnectionError"): 1},
    "handler_retried_total": handler(1),
    "handler_dead_letters_total": handler(1),
    "handler_expired_total": handler(1),
    "handler_skipped_total": handler(0),
    "handler_timed_out_total": handler(0),
    "handler_abandoned_total": handler(0),
    "handler_late_total": handler(6 + 5),  # each wait exceeds a nanosecond
    "handler_held": handler(1),
    "handler_held_failures": handler(0),
    "handler_dropped_total": handler(1),
    "handler_moved_total": handler(0),
    "handler_duration_seconds": handler(3 + 1 + 2 + 5),  # ok, dead, fail once, level 1
    "circuit_open": handler(0),
    "rule_held": {("hold-it",): 1, ("drop-it",): 0},
    "tenant_handler_seconds_total": {("ann",): Between(8 * OK_TAKES, 10), ("carl",): Between(OK_TAKES, 5)},
    "tenant_waiting": {("ann",): 0, ("carl",): 0},
    "level_not_done": {LOW_TOPIC: 2, HIGH_TOPIC: 0},
    # One timestamp in 64 is read, which is that of offset 0.
    "level_oldest_seconds": {LOW_TOPIC: Between(OLD, OLD + 60), HIGH_TOPIC: 0},
    "level_work_seconds": {LOW_TOPIC: Between(2 * OK_TAKES / 2 / 4, 1), HIGH_TOPIC: 0},
    "level_queue_seconds": {LOW: 6, HIGH: 5},  # of those for which the handler was called
    "level_done_total": {LOW: 7, HIGH: 5},
    "level_ready": {LOW: 0, HIGH: 0},
    "level_running": {LOW: 1, HIGH: 0},
    "level_share_ratio": {LOW: Between(0.33, 0.34), HIGH: Between(0.66, 0.67)},
    "level_lent_slots": {LOW: 0, HIGH: 0},
    "level_borrowed_slots": {LOW: 0, HIGH: 0},
    "level_buffer_bytes": {LOW: Between(100, 100_000), HIGH: 0},
    "level_partitions": {LOW: 4, HIGH: 4},
    "level_deleted_unread_total": {LOW: 0, HIGH: 0},
    "partition_not_done": {STUCK: 2, OTHER: 0},
    "partition_incomplete": {STUCK: 2, OTHER: 0},
    "partition_committed_offset": {STUCK: 5, OTHER: 5},
    "partition_committable_offset": {STUCK: 5, OTHER: 5},
    "partition_highest_done_offset": {STUCK: 8, OTHER: 4},
    "partition_position_offset": {STUCK: 9, OTHER: 5},
    "partition_end_offset": {STUCK: 9, OTHER: 5},
    "partition_map_characters": {STUCK: Between(1, 100)},
    "partition_failed_total": {STUCK: 2},
    "partition_epoch": {STUCK: Between(0, 100)},
    "partition_stuck_seconds": {STUCK: Between(0.5, 60), OTHER: 0},
    "consumer_state": {("running",): 1, ("starting",): 0, ("paused",): 0, ("stopping",): 0, ("closed",): 0},
    "consumer_commits_total": {(): Between(2, 100)},
    "consumer_commit_failures_total": {(): 0},
    "consumer_commit_seconds": {(): Between(2, 100)},
    "consumer_map_encoding_seconds": {(): Between(1, 100)},
    "consumer_rebalances_total": {(): Between(2, 10)},
    "consumer_refused": {(): 0},
}
"""The values of each metric at the moment of rest, by its labels without the group; other labels can have values."""


@pytest.fixture(scope="module")
def script(kafka_cluster: Cluster) -> Script:
    return Script(kafka_cluster)


def known(values: Values, script: Script) -> Values:
    return {
        tuple(script.topic if label == "TOPIC" else label for label in labels): each for labels, each in values.items()
    }


@pytest.mark.parametrize("name", AT_REST)
def test_at_rest_the_metric_says_what_is_so(script: Script, name: str) -> None:
    found, expected = values_of(script.at_rest, name), known(AT_REST[name], script)
    assert {labels: found.get(labels) for labels in expected} == expected


def test_every_metric_of_a_parallel_consumer_is_in_this_table(script: Script) -> None:
    of_consumer = {each.name.removeprefix("headway_") for each in script.at_rest}
    assert of_consumer == AT_REST.keys()
    assert {each.labels[0] for each in script.at_rest} == {script.topic}


def test_before_a_run_there_is_nothing(script: Script) -> None:
    assert list(values_of(script.before, "handler_done_total").values()) == [0]
    assert values_of(script.before, "consumer_state")["starting",] == 1


def test_after_the_end_the_totals_are_the_last_and_what_ran_is_abandoned(script: Script) -> None:
    assert values_of(script.closed, "handler_done_total") == handler(12)
    assert values_of(script.closed, "handler_abandoned_total") == handler(1)
    assert values_of(script.closed, "consumer_state")["closed",] == 1


@pytest.mark.parametrize("name", [name.removeprefix("headway_") for name in METRICS])
def test_every_metric_has_a_test_of_its_meaning(name: str) -> None:
    """Those that this run does not have are in the tests of other clients and situations."""
    [constant] = [each for each, metric in vars(table).items() if metric is METRICS[f"headway_{name}"]]
    texts = [path.read_text() for path in OTHERS]
    assert name in AT_REST or any(f'"{name}"' in text or constant in text for text in texts)
