"""Every public number: its edges are refused with a sentence, or mean something; none ends a run or hangs.

`RANGES` says for each which edges are taken. A public parameter that is in no table fails the first test.
"""

import contextlib
import inspect
import math
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headway import (
    Batches,
    CircuitBreaker,
    Ladder,
    ParallelConsumer,
    PriorityConsumer,
    Producer,
    Retries,
    TopicPartition,
    create_topic,
    exponential_backoff,
    exponential_shares,
    fixed_backoff,
    linear_shares,
    weighted_shares,
)
from headway.errors import HeadwayError
from headway.http import BatchHttpHandler, HttpHandler, Request
from headway.testing import MockCluster, context, record

ROOT = Path(__file__).parents[2]
NOWHERE: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "group.id": "g"}
EDGES: dict[str, Any] = {
    "zero": 0,
    "negative": -1,
    "infinite": math.inf,
    "minus infinity": -math.inf,
    "nan": math.nan,
    "huge": 10**30,
    "true": True,
    "text": "5",
}
PLACE = TopicPartition("t", partition=0, level=0)

NONE = ""
ZERO = "zero"
HUGE = "huge"
ANY_POSITIVE = "infinite huge"
FROM_ZERO = "zero infinite huge"
FINITE_FROM_ZERO = "zero huge"
TIMEOUT = "zero negative infinite minus infinity huge"  # negative ones are 0, infinite ones last eleven days


def request_of(_: Any) -> Request:
    return Request("GET", "http://127.0.0.1:1/")


def parallel(**options: Any) -> None:
    ParallelConsumer(NOWHERE, **options).close()


# Each: the parameter, what is called with it, and the edges that are taken.
DECLARED: list[tuple[str, Callable[[Any], Any], str]] = [
    ("Batches max_size", Batches, HUGE),
    ("Batches linger", lambda v: Batches(5, v), FROM_ZERO),
    ("Batches min_size", lambda v: Batches(5, 0, v), NONE),
    ("CircuitBreaker failing", lambda v: CircuitBreaker(failing=v), NONE),
    ("CircuitBreaker least", lambda v: CircuitBreaker(least=v), NONE),
    ("CircuitBreaker window", lambda v: CircuitBreaker(window=v), ANY_POSITIVE),
    ("CircuitBreaker longest", lambda v: CircuitBreaker(longest=v), ANY_POSITIVE),
    ("Ladder delays", lambda v: Ladder((v,)), NONE),
    ("Ladder.exponential first", lambda v: Ladder.exponential(first=v), NONE),
    ("Ladder.exponential base", lambda v: Ladder.exponential(base=v), NONE),
    ("Ladder.exponential count", lambda v: Ladder.exponential(count=v), NONE),
    ("Retries max_attempts", lambda v: Retries(max_attempts=v), HUGE),
    ("Retries share", lambda v: Retries(share=v), NONE),
    ("exponential_backoff first", lambda v: exponential_backoff(first=v), HUGE),
    ("exponential_backoff factor", lambda v: exponential_backoff(factor=v), HUGE),
    ("exponential_backoff longest", lambda v: exponential_backoff(longest=v), FINITE_FROM_ZERO),
    ("exponential_backoff jitter", lambda v: exponential_backoff(jitter=v), ZERO),
    ("fixed_backoff seconds", fixed_backoff, FINITE_FROM_ZERO),
    ("exponential_shares capacity", lambda v: exponential_shares(3, v), HUGE),
    ("exponential_shares levels", lambda v: exponential_shares(v if v != 10**30 else -1, 10), NONE),
    ("linear_shares capacity", lambda v: linear_shares(3, v), HUGE),
    ("linear_shares levels", lambda v: linear_shares(v if v != 10**30 else -1, 10), NONE),
    ("weighted_shares weights", lambda v: weighted_shares(v, 1), "huge true"),
    ("context attempt", lambda v: context(attempt=v), HUGE),
    ("context level", lambda v: context(level=v), FINITE_FROM_ZERO),
    ("context queue_time", lambda v: context(queue_time=v), FROM_ZERO),
    ("record level", lambda v: record("v", level=v), "zero huge true"),
    ("record partition", lambda v: record("v", partition=v), FINITE_FROM_ZERO),
    ("record offset", lambda v: record("v", offset=v), ZERO),
    ("record timestamp", lambda v: record("v", timestamp=v), ZERO),
    ("ParallelConsumer max_concurrency", lambda v: parallel(max_concurrency=v), HUGE),
    ("ParallelConsumer rate_limit", lambda v: parallel(rate_limit=v), HUGE),
    ("ParallelConsumer key_rate_limit", lambda v: parallel(key_rate_limit=v), HUGE),
    ("ParallelConsumer tenant_rate_limit", lambda v: parallel(tenant="key", tenant_rate_limit=v), HUGE),
    ("ParallelConsumer tenant_weights", lambda v: parallel(tenant="key", tenant_weights={"a": v}), HUGE),
    ("ParallelConsumer time_limit", lambda v: parallel(time_limit=v), HUGE),
    ("ParallelConsumer processes", lambda v: parallel(processes=v), HUGE),
    ("ParallelConsumer hand_over_timeout", lambda v: parallel(hand_over_timeout=v), FROM_ZERO),
    ("ParallelConsumer queue_time_warning", lambda v: parallel(queue_time_warning=v), HUGE),
    ("ParallelConsumer buffer_records", lambda v: parallel(buffer_records=v), HUGE),
    ("ParallelConsumer buffer_memory", lambda v: parallel(buffer_memory=v), HUGE),
    ("ParallelConsumer expires_after", lambda v: parallel(expires_after=v), NONE),
]
HTTP = {"per_host": HUGE, "timeout": ANY_POSITIVE, "max_retry_after": FROM_ZERO, "max_body": FINITE_FROM_ZERO}


def http(kind: type[Any], name: str) -> Callable[[Any], Any]:
    return lambda value: kind(request_of, **{name: value})


for handler in (HttpHandler, BatchHttpHandler):
    DECLARED += [(f"{handler.__name__} {name}", http(handler, name), taken) for name, taken in HTTP.items()]


def consumes(call: Callable[[PriorityConsumer, Any], Any]) -> Callable[[MockCluster, Any], Any]:
    def run(mock: MockCluster, value: Any) -> None:
        config = {**mock.settings, "group.id": uuid.uuid4().hex, "levels": 2, "max.poll.records": 5}
        with contextlib.closing(PriorityConsumer(config)) as consumer:
            consumer.subscribe("t")
            call(consumer, value)

    return run


def produces(call: Callable[[Producer, Any], Any]) -> Callable[[MockCluster, Any], Any]:
    def run(mock: MockCluster, value: Any) -> None:
        producer = Producer({**mock.settings, "levels": 2})
        try:
            call(producer, value)
        finally:
            producer.close(0)

    return run


def transacts(call: Callable[[Producer, Any], Any]) -> Callable[[MockCluster, Any], Any]:
    def run(mock: MockCluster, value: Any) -> None:
        producer = Producer({**mock.settings, "transactional.id": uuid.uuid4().hex})
        try:
            call(producer, value)
        finally:
            producer.close(0)

    return run


def began(call: Callable[[Producer, Any], Any]) -> Callable[[MockCluster, Any], Any]:
    def begin(producer: Producer, value: Any) -> None:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", "v")
        call(producer, value)

    return transacts(begin)


def in_a_transaction(producer: Producer, value: Any) -> None:
    producer.init_transactions()
    with producer.transaction(timeout=value):
        producer.send("t", "v")


def ends(call: Callable[[ParallelConsumer, Any], Any]) -> Callable[[MockCluster, Any], Any]:
    def run(mock: MockCluster, value: Any) -> None:
        """Call it while the consumer runs; the run ends well if it is taken."""
        consumer = ParallelConsumer({**mock.settings, "group.id": uuid.uuid4().hex})
        consumer.subscribe("t")
        running = threading.Thread(target=consumer.run, args=(print,))
        running.start()
        try:
            call(consumer, value)
        finally:
            consumer.stop()
            running.join(20)
        assert not running.is_alive()
        assert consumer.failure is None

    return run


def sends(**fixed: str) -> Callable[[Producer, Any], Any]:
    [name] = fixed
    return lambda producer, v: producer.send("t", "v", **{"level": 0, name: v}).result(10)


ON_KAFKA: list[tuple[str, Callable[[MockCluster, Any], Any], str]] = [
    ("ParallelConsumer.stop timeout", ends(lambda c, v: c.stop(timeout=v)), TIMEOUT),
    ("ParallelConsumer.close timeout", ends(lambda c, v: c.close(timeout=v)), TIMEOUT),
    ("PriorityConsumer.beginning_offsets timeout", consumes(lambda c, v: c.beginning_offsets([PLACE], v)), TIMEOUT),
    ("PriorityConsumer.end_offsets timeout", consumes(lambda c, v: c.end_offsets([PLACE], v)), TIMEOUT),
    ("PriorityConsumer.committed timeout", consumes(lambda c, v: c.committed([PLACE], v)), TIMEOUT),
    ("PriorityConsumer.list_topics timeout", consumes(lambda c, v: c.list_topics(v)), TIMEOUT),
    ("PriorityConsumer.partitions_for timeout", consumes(lambda c, v: c.partitions_for("t", v)), TIMEOUT),
    ("PriorityConsumer.offsets_for_times timeout", consumes(lambda c, v: c.offsets_for_times({PLACE: 1}, v)), TIMEOUT),
    ("PriorityConsumer.offsets_for_times times", consumes(lambda c, v: c.offsets_for_times({PLACE: v})), ZERO),
    ("PriorityConsumer.commit offsets", consumes(lambda c, v: c.commit({PLACE: v}, asynchronous=True)), ZERO),
    ("PriorityConsumer.consume_arrow max_records", consumes(lambda c, v: c.consume_arrow(v, 0)), HUGE),
    ("PriorityConsumer.pause level", consumes(lambda c, v: c.pause(level=v)), "zero true"),
    ("PriorityConsumer.resume level", consumes(lambda c, v: c.resume(level=v)), "zero true"),
    ("PriorityConsumer.seek_to_time timestamp", consumes(lambda c, v: c.seek_to_time(v)), ZERO),
    ("PriorityConsumer.seek offset", consumes(lambda c, v: c.seek(PLACE, v)), NONE),  # nothing is assigned yet
    ("PriorityConsumer.subscribe topics", consumes(lambda c, v: c.subscribe({"t": v})), "zero true"),
    ("Producer.flush timeout", produces(lambda p, v: p.flush(v)), TIMEOUT),
    ("Producer.flush level", produces(lambda p, v: p.flush(1, level=v)), "zero true"),
    ("Producer.close timeout", produces(lambda p, v: p.close(v)), TIMEOUT),
    ("Producer.partitions_for timeout", produces(lambda p, v: p.partitions_for("t", v)), TIMEOUT),
    ("Producer.purge level", produces(lambda p, v: p.purge(level=v)), "zero true"),
    ("Producer.send partition", produces(sends(partition="")), "zero true"),
    ("Producer.send timestamp", produces(sends(timestamp="")), "negative true"),
    ("Producer.send level", produces(sends(level="")), "zero true"),
    ("Producer.send expires", produces(sends(expires="")), "zero negative minus infinity"),
    ("Producer.init_transactions timeout", transacts(lambda p, v: p.init_transactions(v)), TIMEOUT),
    ("Producer.commit_transaction timeout", began(lambda p, v: p.commit_transaction(v)), TIMEOUT),
    ("Producer.abort_transaction timeout", began(lambda p, v: p.abort_transaction(v)), TIMEOUT),
    ("Producer.transaction timeout", transacts(in_a_transaction), TIMEOUT),
    ("create_topic levels", lambda m, v: create_topic(m.settings, uuid.uuid4().hex, levels=v), NONE),
    ("create_topic partitions", lambda m, v: create_topic(m.settings, uuid.uuid4().hex, partitions=v), NONE),
    ("MockCluster.create partitions", lambda m, v: m.create([uuid.uuid4().hex], v), NONE),
]
UNANSWERED = "zero negative minus infinity"
"""Time-outs in which nothing may have been answered; whether these are taken depends on who is quicker."""


# Patterns of the parameters that are checked in another way, and how.
ELSEWHERE = {
    r"Async\w+\.\w+ \w+": "handed on to the client for threads, which is in the tables",
    r"Producer\.(send_offsets|abort_after) timeout": "as the other calls of a transaction",
    r"Producer\.(try_send|destination) \w+": "the same code as `send`",
    r"(Producer|Scheduler)\.\w+ due": "a time, by `due_at`",
    r"PriorityConsumer\.(poll|commit|consume_arrow) timeout": "a time-out; an infinite poll waits for a record",
    r"PriorityConsumer\.(poll_now|next_now|collect_now) now": "the caller's clock",
    r"PriorityConsumer\.(check_arrow|collect_now|collected) (max_records|count)": "the same number as consume_arrow's",
    r"PriorityConsumer\.hear_refusal level": "a level that a producer was refused",
    r"ParallelConsumer\.(pause|resume) level": "as for a PriorityConsumer",
    r"ParallelConsumer\.(seek|seek_to_time) \w+": "as for a PriorityConsumer",
    r"ParallelConsumer\.subscribe topics": "as for a PriorityConsumer",
    r"ParallelConsumer\.supervise table": "the descriptor of a file",
    r"((ParallelConsumer|Relay)\.watch_health|serve_probes) stalls_after": "by `check_above_zero`",
    r"(HistogramValue|Metric|Sample)(\.of)? \w+": "given",
    r"worker \w+": "as ParallelConsumer",
    r"(Scheduler|ScheduleHandle|ChangeRequest)\.\w+ timeout": "a time-out, by `checked_timeout`",
    r"Scheduler\.\w+ (when|rule|expires\w*|older_than|level|partition)": "tests/unit/delay",
    r"(\w+Metrics|\w+Progress|RecordMetadata|Origin|ScheduleHandle|InputRow|Response|DeadLetter) \w+": "given",
    r"(HandlerCall|CallResult) \w+": "given",
    r"(Async)?Calls\.call \w+": "passed on to the producer",
    r"(Inbox|Outbox|OutboxRelay)(\.\w+)? \w+": "tests/contract/contrib",
    r"Producer\.count_wait \w+": "a time that the asyncio producer has taken",
    r"Relay \w+": "tests/unit/test_declarations.py and tests/broker",
    r"TopicPartition \w+": "an address; refused by the call that gets it",
    r"ProducerRecord \w+": "a record; refused by the call that sends it",
    r"(RetriableError|RetryLater) \w+": "judged with the failed attempt",
    r"(BatchError|ProcessDiedError|FetchError|FetchRefusedError) \w+": "an error",
    r"Retries\.decide \w+": "called by the engine",
    r"Ladder\.(delay_for|of_those|path|reach|step_at|up_to|writes) \w+": "arithmetic of milliseconds that were checked",
    r"create_topic (replication_factor|retention)": "refused by the brokers, or a timedelta",
    r"(Batch)?HttpHandler accept": "statuses; test_http.py",
    r"(parallel_map|repartition_by_key|run_workers|ClusterWorkers|ClusterWorkers\.wait) \w+": "tests/spark",
    r"(cancel_where|hot_seconds|write_occupancy) \w+": "tests/spark",
    r"(PipelineRun|Outputs|keep|run|source)(\.\w+)? \w+": "an example of a pipeline",
    r"(run_until_idle|clock|\w*[Cc]lock\w*)(\.\w+)? \w+": "tests/contract/testing",
    r"(LocalBroker|Node)(\.\w+)? \w+": "tests/broker",
}


def public_numbers() -> Iterator[str]:
    """Yield each public parameter that is a number, or holds some, as `name parameter`."""
    page = (ROOT / "docs" / "names.md").read_text()
    rows = re.findall(r"^\| `(headway[\w.]*)` \|.*\| (.*) \|$", page, re.MULTILINE)
    for module, names in rows:
        for name in re.findall(r"`(\w+)`", names):
            public = getattr(import_module(module), name)
            functions = {name: public} if callable(public) else {}
            if inspect.isclass(public) and not issubclass(public, BaseException):
                methods = inspect.getmembers(public, callable)
                functions |= {f"{name}.{each}": method for each, method in methods if not each.startswith("_")}
            for called, function in functions.items():
                yield from (f"{called} {parameter}" for parameter in _numbers_of(function))


def _numbers_of(function: Any) -> Iterator[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    for each in parameters:
        kind = each.annotation if isinstance(each.annotation, str) else inspect.formatannotation(each.annotation)
        if re.search(r"\b(int|float|timedelta|When)\b", kind) and "Callable" not in kind:
            yield each.name


def test_each_public_number_is_in_a_table() -> None:
    tables = {row[0] for row in (*DECLARED, *ON_KAFKA)}
    known = [*map(re.escape, tables), *ELSEWHERE]
    unknown = [each for each in public_numbers() if not any(re.fullmatch(pattern, each) for pattern in known)]
    assert unknown == []


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create(["t", "t-0", "t-1"], 2)
        yield mock


def is_taken(call: Callable[[], Any]) -> bool:
    """Return whether a call ends without a refusal of ours; any other error, or none in time, fails the test."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)  # a call that hangs fails its test, and no other
    thread.start()
    thread.join(60)
    assert ended, "the call has not come back"
    if ended[0] is not None and not isinstance(ended[0], HeadwayError):
        raise ended[0]
    return ended[0] is None


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("call", "taken"), [row[1:] for row in DECLARED], ids=[row[0] for row in DECLARED])
def test_an_edge_of_a_declared_number_is_refused_or_meant(call: Callable[[Any], Any], taken: str, edge: str) -> None:
    assert is_taken(lambda: call(EDGES[edge])) == bool(re.search(rf"\b(?<!minus ){edge}\b", taken))


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("call", "taken"), [row[1:] for row in ON_KAFKA], ids=[row[0] for row in ON_KAFKA])
def test_an_edge_of_a_call_is_refused_or_meant(
    mock: MockCluster, call: Callable[[MockCluster, Any], Any], taken: str, edge: str
) -> None:
    found = is_taken(lambda: call(mock, EDGES[edge]))
    if not (taken is TIMEOUT and edge in UNANSWERED):
        assert found == bool(re.search(rf"\b(?<!minus ){edge}\b", taken))
