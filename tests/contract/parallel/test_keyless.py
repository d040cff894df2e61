"""Records without a key: the hint that they run one at a time, which a newcomer takes for a broken worker."""

import logging
import threading
import time
from typing import Any

import pytest

from headway import Batches, ConsumerRecord, Context
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import Member, consumer, plain_topic, send, wait_for
from tests.made import made_by

HINT = 'slots are idle while records without a key wait. With ordering="key", the default'


class Held:
    """A handler that returns once it is let."""

    def __init__(self) -> None:
        self.started = 0
        self.let = threading.Event()

    def __call__(self, record: ConsumerRecord, context: Context) -> None:
        self.started += 1
        self.let.wait(60)


def run(cluster: Cluster, options: dict[str, Any], keys: list[str | None], started: int) -> Member:
    """A member that has started this many of the records with these keys, all in one partition."""
    topic = plain_topic(cluster)
    send(cluster, topic, [(key, "") for key in keys], 0)
    held = Held()
    member = Member(consumer(cluster, topic, {"max_concurrency": 16} | options), held)
    member.held = held  # type: ignore[attr-defined]
    wait_for(lambda: held.started == started and member.consumer.metrics().remaining == len(keys))
    return member


def end(member: Member) -> None:
    """Let the handlers go, and close."""
    member.held.let.set()  # type: ignore[attr-defined]
    member.stop()


def look_again(logs: list[Any]) -> None:
    """Have the time of several further looks pass at once."""
    for log in logs:
        for seconds in range(10, 100, 10):
            log.check(time.monotonic() + seconds)


def test_slots_that_idle_since_records_have_no_key_are_told_of_once_with_the_remedy(
    mock_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headway")
    with made_by("headway.parallel.control_loop.KeylessLog") as logs:
        member = run(mock_cluster, {}, [None] * 20, 1)
    try:
        wait_for(lambda: HINT in caplog.text)
        look_again(logs)
    finally:
        end(member)
    assert caplog.text.count(HINT) == 1
    assert "15 of 16 slots" in caplog.text
    assert 'ordering="key_if_any"' in caplog.text


@pytest.mark.parametrize(
    ("options", "keys", "started"),
    [
        ({"ordering": "key_if_any"}, [None] * 20, 16),
        ({"ordering": "partition"}, [None] * 20, 1),
        ({"max_concurrency": 1}, [None] * 20, 1),
        ({}, ["zoe"] * 20, 1),
        ({}, [None], 1),
        ({}, [None, None, *"abcdefghijklm"], 14),
    ],
    ids=["key_if_any", "partition", "one slot", "one key", "nothing waits", "most are busy"],
)
def test_no_hint_is_given_where_it_would_not_help(
    mock_cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    keys: list[str | None],
    started: int,
) -> None:
    caplog.set_level(logging.WARNING, "headway")
    with made_by("headway.parallel.control_loop.KeylessLog") as logs:
        member = run(mock_cluster, options, keys, started)
    try:
        look_again(logs)
    finally:
        end(member)
    assert HINT not in caplog.text


def test_the_hint_is_given_to_a_run_in_batches_whose_calls_are_never_full(
    mock_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headway")
    topic = plain_topic(mock_cluster)
    send(mock_cluster, topic, [(None, "")] * 20, 0)
    let = threading.Event()

    class InBatches(Member):
        def _run(self) -> None:
            self.consumer.run(lambda records: let.wait(60), batches=Batches(5))

    member = InBatches(consumer(mock_cluster, topic, {"max_concurrency": 16}), lambda record, context: None)
    try:
        wait_for(lambda: HINT in caplog.text)
    finally:
        let.set()
        member.stop()
