"""Dead letters that are larger than their topic takes, on a real Apache Kafka."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka as ck
import pytest

from headway import ConsumerRecord, Context
from headway.core.retry import Retries, fixed_backoff
from headway.dead_letters import PREFIX
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import consumer, plain_topic, read, topic_of, wait_for

SHORTENED = f"{PREFIX}shortened"
MOST = 8_000
LARGE = 3


@pytest.mark.quick("async")
@pytest.mark.kafka
@pytest.mark.parametrize("mode", ["async", "transactional"])
def test_what_its_topic_refuses_for_its_size_is_shortened_and_what_was_sent_with_it_is_whole(
    kafka_cluster: Cluster, mode: Any
) -> None:
    topic, dead = plain_topic(kafka_cluster), topic_of(kafka_cluster, 1, max_message_bytes=str(MOST))
    draw = random.Random(1)
    bodies = [draw.randbytes(100_000 if number < LARGE else 10) for number in range(10)]  # which no codec compresses
    producer = ck.Producer(kafka_cluster.config({"enable.idempotence": True, "log_level": 0}))
    for number, body in enumerate(bodies):
        producer.produce(topic, body, str(number), partition=0)
    assert producer.flush(30) == 0
    producer.close()
    calls = Counter[int]()

    def fail(record: ConsumerRecord, context: Context) -> None:
        calls[record.offset] += 1
        raise ValueError("never")

    options = {"commit_mode": mode, "dead_letter_topic": dead, "retries": Retries(fixed_backoff(0.01), max_attempts=2)}
    parallel = consumer(kafka_cluster, topic, options, **{"auto.commit.interval.ms": 50})
    with parallel, ThreadPoolExecutor(1) as thread:
        ended = thread.submit(parallel.run, fail)
        wait_for(lambda: ended.done() or parallel.metrics().done == len(bodies))
        parallel.close()
        ended.result()
    letters = read(kafka_cluster, dead, len(bodies))
    assert set(calls.values()) == {2}
    found = {int(letter.key() or b""): letter for letter in letters}
    assert sorted(found) == list(range(len(bodies)))
    for number, body in enumerate(bodies):
        value, said = found[number].value() or b"", dict(found[number].headers() or ())
        assert body.startswith(value)
        assert (SHORTENED in said) == (number < LARGE)
        assert len(value) > MOST // 4 if number < LARGE else value == body
