"""Records that have failed for good and are held, on a real Apache Kafka."""

import threading

import pytest
from click.testing import CliRunner

from headway import ConsumerRecord, Context, Retries, cli, fixed_backoff
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import OFTEN, Member, committed, consumer, maps_of, send, topic_of, wait_for

pytestmark = pytest.mark.kafka


class Bank:
    """A handler that calls a bank, which can be down."""

    def __init__(self) -> None:
        self.is_down = threading.Event()
        self.paid: list[bytes] = []
        self.attempts: dict[bytes, int] = {}

    def pay(self, record: ConsumerRecord, context: Context) -> None:
        self.attempts[record.value] = context.attempt
        if self.is_down.is_set() and record.key != b"c":
            raise TimeoutError("the bank is down")
        self.paid.append(record.value)


def test_held_records_go_on_in_order_when_an_operator_releases_them(kafka_cluster: Cluster) -> None:
    topic, bank = topic_of(kafka_cluster, 1), Bank()
    options = {
        "retries": Retries(fixed_backoff(0), max_attempts=2, then="hold"),
        "dead_letter_topic": topic_of(kafka_cluster, 1),
        "steered": True,
    }
    bank.is_down.set()
    member = Member(consumer(kafka_cluster, topic, options, **OFTEN), bank.pay)
    send(kafka_cluster, topic, [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1")])
    wait_for(lambda: member.consumer.metrics().held_failures == 2 and bank.paid == [b"c1"])
    wait_for(lambda: [each.complete for each in maps_of(committed(kafka_cluster, topic)).values()] == [[range(3, 4)]])
    member.stop()

    # The next member tries them again, at once, and knows the attempts.
    member = Member(consumer(kafka_cluster, topic, options, **OFTEN), bank.pay)
    wait_for(lambda: member.consumer.metrics().held_failures == 2)
    assert bank.attempts[b"a1"] == 3
    bank.is_down.clear()
    servers = str(kafka_cluster.config({})["bootstrap.servers"])
    words = ["release", topic, "--error", "TimeoutError", "--where", "key = a", "--bootstrap-servers", servers]
    done = CliRunner().invoke(cli.headway, ["rules", *words])
    assert done.exit_code == 0, done.output
    wait_for(lambda: bank.paid == [b"c1", b"a1", b"a2"])
    assert member.consumer.metrics().held_failures == 1
    assert member.consumer.metrics().dead_letters == 0
    member.stop()
