"""Rates by tenant and by key, on a real Apache Kafka: how many start in a second, and whom that holds up."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, Context, Ordering, ParallelConsumer, RetriableError, Retries, worker
from headway.core.retry import fixed_backoff
from headway.errors import ConfigError
from headway.workers.worker import worker_of
from tests.contract.conftest import Cluster
from tests.contract.parallel import process_handlers as handlers  # by a name that processes can import too
from tests.contract.parallel.members import Member, consumer, plain_topic, send, settings_of, topic_of, wait_for

pytestmark = pytest.mark.kafka

RATE = 20
SECONDS = 3
LONGEST = 1.9 * SECONDS  # twice SECONDS would be half the rate; the rest is for a busy machine
BY_TENANT: dict[str, Any] = {"tenant": "key:/", "tenant_rate_limit": RATE}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which handlers note their calls."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv(handlers.NOTES, str(path))
    return path


async def note_async(record: ConsumerRecord, context: Context) -> None:
    handlers.note(record, context)


def note_batch(records: Sequence[ConsumerRecord], contexts: Sequence[Context]) -> None:
    for record, context in zip(records, contexts, strict=True):
        handlers.note(record, context)


def fail_once(record: ConsumerRecord, context: Context) -> None:
    handlers.note(record, context)
    if context.attempt == 1:
        raise RetriableError("not yet")


HANDLERS = {"thread": handlers.note, "async": note_async, "process": handlers.note}


class BatchMember(Member):
    """A consumer whose run of batches has a thread of its own."""

    def __init__(self, parallel: ParallelConsumer) -> None:
        super().__init__(parallel, handlers.note)

    def _run(self) -> None:
        try:
            self.consumer.run(note_batch, batches=Batches(10))
        except BaseException as error:
            self.error = error


def at_most(times: Sequence[float], rate: float, least: float = 1.0) -> bool:
    """Return whether no more were called in any stretch of so many seconds at the least, with room for delays."""
    pairs = itertools.combinations(enumerate(sorted(times)), 2)
    return all(
        last - first + 1 <= 1.2 * rate * (end - begin) + 2
        for (first, begin), (last, end) in pairs
        if end - begin >= least
    )


def times_of(notes: Path, prefix: str) -> list[float]:
    return [call.at for call in handlers.calls(notes) if call.key.startswith(prefix)]


@pytest.mark.quick("async")
@pytest.mark.parametrize("executor", ["thread", "async", "process", "batches"])
def test_a_tenants_records_start_at_its_rate_and_hold_up_nobody_else(
    kafka_cluster: Cluster, notes: Path, executor: str
) -> None:
    topic = topic_of(kafka_cluster, 1)
    flood, quiet = RATE * SECONDS, 200
    keys = [f"flood/{i}" for i in range(flood)] + [f"quiet-{i}/1" for i in range(quiet)]
    send(kafka_cluster, topic, [(key, "v") for key in keys], 0)
    options: dict[str, Any] = BY_TENANT | {"max_concurrency": 4}
    if executor == "process":
        options |= {"executor": "process", "processes": 2}
    parallel = consumer(kafka_cluster, topic, options | {"ordering": Ordering.UNORDERED})
    member = BatchMember(parallel) if executor == "batches" else Member(parallel, HANDLERS[executor])
    wait_for(lambda: parallel.metrics().done == flood + quiet)
    member.stop()
    of_flood, of_quiet = times_of(notes, "flood"), times_of(notes, "quiet")
    assert at_most(of_flood, RATE)
    assert max(of_flood) - min(of_flood) <= LONGEST
    assert max(of_quiet) - min(*of_quiet, *of_flood) < SECONDS / 2


@pytest.mark.slow
def test_each_keys_records_start_in_order_at_its_rate(kafka_cluster: Cluster, notes: Path) -> None:
    topic = plain_topic(kafka_cluster)
    count, keys = RATE * SECONDS, 30
    send(kafka_cluster, topic, [(f"key-{key}", str(i)) for i in range(count) for key in range(keys)])
    parallel = consumer(kafka_cluster, topic, {"key_rate_limit": RATE, "max_concurrency": 4})
    member = Member(parallel, handlers.note)
    wait_for(lambda: parallel.metrics().done == count * keys)
    member.stop()
    for key in range(keys):
        calls = [call for call in handlers.calls(notes) if call.key == f"key-{key}"]
        assert [call.value for call in calls] == [str(i) for i in range(count)]
        assert at_most([call.at for call in calls], RATE)
        assert calls[-1].at - calls[0].at <= LONGEST


def test_retries_count_and_records_without_a_key_have_no_limit_by_key(kafka_cluster: Cluster, notes: Path) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("key", "v")] * RATE + [(None, "v")] * 100)
    options: dict[str, Any] = {"key_rate_limit": RATE, "retries": Retries(fixed_backoff(0.0))}
    parallel = consumer(kafka_cluster, topic, options | {"ordering": Ordering.UNORDERED})
    member = Member(parallel, fail_once)
    wait_for(lambda: parallel.metrics().done == RATE + 100)
    member.stop()
    calls = handlers.calls(notes)
    of_key = [call.at for call in calls if call.key]
    assert len(of_key) == 2 * RATE
    assert at_most(of_key, RATE)
    others = [call.at for call in calls if not call.key]
    assert max(others) - min(others) < 1


@pytest.mark.slow
def test_the_members_of_a_group_share_a_tenants_rate(kafka_cluster: Cluster, notes: Path) -> None:
    topic = topic_of(kafka_cluster, 4)
    options = BY_TENANT | {"ordering": Ordering.UNORDERED}
    members = [Member(consumer(kafka_cluster, topic, options), handlers.note) for _ in range(2)]
    wait_for(lambda: [len(member.consumer.assignment()) for member in members] == [2, 2])
    count = RATE * SECONDS // 4
    for partition in range(4):
        send(kafka_cluster, topic, [("flood/1", "v")] * count, partition)
    wait_for(lambda: sum(member.consumer.metrics().done for member in members) == 4 * count)
    for member in members:
        member.stop()
    times = times_of(notes, "flood")
    assert at_most(times, RATE)
    assert max(times) - min(times) <= LONGEST


def of_plan(tenant: str) -> float | None:
    """The rate of a tenant; with one that it does not know, it fails."""
    if tenant == "broken":
        raise KeyError(tenant)
    return {"fast": 40.0, "slow": 10.0}.get(tenant)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rates", [{"fast": 40, "slow": 10, "free": None, "*": 1}, of_plan], ids=["mapping", "function"]
)
def test_each_tenant_has_a_rate_of_its_own(kafka_cluster: Cluster, notes: Path, rates: Any) -> None:
    topic = topic_of(kafka_cluster, 1)
    counts = {"fast": 40 * SECONDS, "slow": 10 * SECONDS, "broken": SECONDS, "free": 200}
    send(kafka_cluster, topic, [(f"{tenant}/{i}", "v") for tenant, n in counts.items() for i in range(n)], 0)
    options = BY_TENANT | {"tenant_rate_limit": rates, "ordering": Ordering.UNORDERED}
    member = Member(consumer(kafka_cluster, topic, options), handlers.note)
    wait_for(lambda: member.consumer.metrics().done == sum(counts.values()))
    member.stop()
    for tenant, rate in (("fast", 40.0), ("slow", 10.0), ("broken", 1.0)):  # what cannot be known is one a second
        times = times_of(notes, f"{tenant}/")
        assert at_most(times, rate)
        assert max(times) - min(times) <= LONGEST
    free = times_of(notes, "free")
    assert max(free) - min(free) < SECONDS / 2


@pytest.mark.slow
def test_a_worker_has_the_rates_of_names(kafka_cluster: Cluster, notes: Path) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("flood/1", "v")] * (RATE * 2) + [("quiet/1", "v")])

    @worker(topic, group=topic, ordering=Ordering.UNORDERED, **BY_TENANT)
    def bill(record: ConsumerRecord, context: Context) -> None:
        handlers.note(record, context)

    declared = worker_of(bill)
    assert declared
    settings = settings_of(topic)
    member = Member(declared.consumer(kafka_cluster.config(settings)), declared.call)
    wait_for(lambda: member.consumer.metrics().done == RATE * 2 + 1)
    member.stop()
    assert at_most(times_of(notes, "flood"), RATE)


def test_a_tenants_rate_without_a_tenant_is_refused(kafka_cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="tenant_rate_limit is 3, but there is no tenant"):
        consumer(kafka_cluster, "jobs", {"tenant_rate_limit": 3})
