"""Faults of producers."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from quirks import clients
from quirks.verdict import NotShownError, Verdict, kafka
from tests.contract.mock_brokers import MockBrokers, mock_brokers

_PRODUCE, _INIT_PRODUCER_ID, _ADD_PARTITIONS, _TXN_OFFSET_COMMIT = 0, 22, 24, 28
_NOT_LEADER, _TOPIC_DENIED, _CLUSTER_DENIED, _TRANSACTIONS_DENIED = 6, 29, 31, 53


def refused_record_reported_stored() -> Verdict:
    """Records are sent to topics that were just created: the broker announces partitions before it takes records."""
    sent, unplaced = 0, 0

    def delivered(error: Any, message: ck.Message) -> None:
        nonlocal unplaced
        unplaced += error is None and (message.offset() or -1) < 0

    admin = AdminClient({"bootstrap.servers": kafka(), "log_level": 0})
    for _ in range(60):
        topic = clients.name()
        sends = clients.producer(kafka(), enable_idempotence=True, linger_ms=0)
        sends.list_topics(timeout=10)
        creating = admin.create_topics([NewTopic(topic, 20, 1)])[topic]
        while len(sends.list_topics(topic, timeout=10).topics[topic].partitions) < 20:
            pass
        for number in range(300):
            sends.produce(topic, b"x", partition=number % 20, on_delivery=delivered)
            sends.poll(0)
            sent += 1
        sends.flush(20)
        creating.result(10)
        admin.delete_topics([topic])[topic].result(10)
        if unplaced:
            break
    return Verdict(unplaced > 0, f"{unplaced} of {sent} records are reported as stored without an offset")


def refused_producer_id() -> Verdict:
    """The broker refuses the producer id of an idempotent producer."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        brokers.refuse(_INIT_PRODUCER_ID, _CLUSTER_DENIED)
        sends = clients.producer(brokers.bootstrap_servers, enable_idempotence=True)
        sends.produce("orders", b"x")
        clients.wait_until(lambda: _is_ended(sends), "the refusal was not heard")
        brokers.accept(_INIT_PRODUCER_ID)
        time.sleep(2)
        try:
            sends.produce("orders", b"x")
        except ck.KafkaException as error:
            return Verdict(True, f"the next record is refused although the right was granted: {error.args[0].str()}")
        return Verdict(sends.flush(10) > 0, "the next record was taken")


def _is_ended(sends: ck.Producer) -> bool:
    try:
        sends.poll(0.1)
    except ck.KafkaException as error:
        return bool(error.args[0].fatal())
    return False


def record_beside_a_fatal_error() -> Verdict:
    """Four threads produce while a fatal error is set."""
    with mock_brokers() as brokers, ThreadPoolExecutor(4) as threads:
        brokers.refuse(_INIT_PRODUCER_ID, _TRANSACTIONS_DENIED)
        brokers.create("orders")
        for number in range(40):
            sends = clients.producer(brokers.bootstrap_servers, enable_idempotence=True)
            for sent in [threads.submit(_send_until_refused, sends) for _ in range(4)]:
                sent.result(30)
            deadline = time.monotonic() + 3
            while len(sends) and time.monotonic() < deadline:
                _is_ended(sends)
            if left := len(sends):
                return Verdict(True, f"producer {number + 1} of 40 keeps {left} records")
        return Verdict(False, "40 producers reported on all records")


def _send_until_refused(sends: ck.Producer) -> None:
    try:
        while True:
            sends.produce("orders", b"x", partition=0)
    except (BufferError, ck.KafkaException):
        pass


def transaction_offsets_wait_for_a_coordinator() -> Verdict:
    """The coordinator of the group is gone when offsets are to be added to a transaction."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        group = clients.name()
        brokers.coordinate("group", group, 2)
        brokers.coordinate("transaction", group, 1)
        reader = clients.consumer(brokers.bootstrap_servers, group)
        about = reader.consumer_group_metadata()
        sends = clients.producer(brokers.bootstrap_servers, transactional_id=group)
        sends.init_transactions(10)
        sends.begin_transaction()
        brokers.stop(2)
        calls: list[str] = []

        def add() -> None:
            try:
                sends.send_offsets_to_transaction([ck.TopicPartition("orders", 0, 1)], about, 3)
                calls.append("it succeeded")
            except ck.KafkaException as error:
                calls.append(str(error))

        threading.Thread(target=add, daemon=True).start()
        deadline = time.monotonic() + 20
        while not calls and time.monotonic() < deadline:
            time.sleep(0.1)
        took = 20 - (deadline - time.monotonic())
        return Verdict(took > 10, f"a call with 3 s: after {took:.0f} s {calls or 'it has not returned'}")


def abort_after_a_failed_commit() -> Verdict:
    """A producer is fenced off, its commit fails, and it aborts."""
    topic = clients.name()
    clients.create(kafka(), topic)
    first, second = (clients.producer(kafka(), transactional_id=topic) for _ in range(2))
    first.init_transactions(20)
    first.begin_transaction()
    first.produce(topic, b"x")
    first.flush(10)
    second.init_transactions(20)
    first.produce(topic, b"x")
    errors = []
    began = time.monotonic()
    for call in (first.commit_transaction, first.abort_transaction):
        try:
            call(30)
            errors.append("no error")
        except ck.KafkaException as error:
            errors.append(error.args[0].str())
    took = time.monotonic() - began
    is_there = took > 10 or "onflicting" in errors[1]
    return Verdict(is_there, f"after {took:.1f} s abort says: {errors[1]}")


def abort_right_after_a_commit() -> Verdict:
    """A transaction is aborted right after another one was committed."""
    topic, fatal, rounds = clients.name(), 0, 300
    clients.create(kafka(), topic)
    sends = None
    for number in range(rounds):
        if sends is None:
            sends = clients.producer(kafka(), transactional_id=topic)
            sends.init_transactions(20)
        try:
            for end in (sends.commit_transaction, sends.abort_transaction):
                sends.begin_transaction()
                sends.produce(topic, b"x")
                sends.poll(number % 5 / 1000)
                end()
        except ck.KafkaException as error:
            if not error.args[0].fatal():
                raise NotShownError(str(error)) from error
            fatal += 1
            sends = None
    return Verdict(fatal > 0, f"{fatal} fatal errors in {rounds} aborts")


def transaction_refused_for_a_topic() -> Verdict:
    """The broker refuses a transaction's topic."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        brokers.coordinate("transaction", "t", 1)
        sends = clients.producer(brokers.bootstrap_servers, transactional_id="t")
        sends.init_transactions(10)
        brokers.refuse(_ADD_PARTITIONS, _TOPIC_DENIED)
        reports: list[Any] = []
        sends.begin_transaction()
        sends.produce("orders", b"x", on_delivery=lambda error, _: reports.append(error and error.name()))
        sends.flush(10)
        try:
            sends.commit_transaction(10)
            refused = "no error"
        except ck.KafkaException as error:
            refused = error.args[0].str()
            sends.abort_transaction(10)
            sends.poll(0.1)
        return Verdict("_PURGE_QUEUE" in reports, f"the reports are {reports}; commit: {refused}")


def five_requests_spin() -> Verdict:
    """Five requests of a partition are open, and more is to be sent."""
    with mock_brokers() as brokers:
        leader = brokers.create("orders")[0]
        used = {most: _processor(brokers, leader, most) for most in (5, 4)}
        return Verdict(used[5] > used[4] + 0.05, f"{used[5]:.0%} of a core with five, {used[4]:.0%} with four")


def _processor(brokers: MockBrokers, leader: int, in_flight: int) -> float:
    """Return how busy this process is while all its requests wait."""
    sends = clients.producer(
        brokers.bootstrap_servers, enable_idempotence=True, linger_ms=0, max_in_flight_requests_per_connection=in_flight
    )
    sends.produce("orders", b"x", partition=0)
    sends.flush(10)
    brokers.answer_after(leader, 3_000)
    for _ in range(20):
        sends.produce("orders", b"x", partition=0)
        sends.poll(0.02)
    began, cpu = time.monotonic(), time.process_time()
    time.sleep(1.5)
    used = (time.process_time() - cpu) / (time.monotonic() - began)
    brokers.answer_after(leader, 0)
    sends.purge(in_flight=True)
    sends.flush(10)
    return used


def identity_before_a_broker() -> Verdict:
    """A new idempotent producer sends its first record."""
    topic = clients.name()
    clients.create(kafka(), topic)
    took = {kind: sorted(_first_record(topic, kind) for _ in range(5))[2] for kind in (True, False)}
    return Verdict(took[True] > took[False] + 0.3, f"{took[True]:.2f} s; without idempotence {took[False]:.2f} s")


def _first_record(topic: str, idempotent: bool) -> float:
    sends = clients.producer(kafka(), enable_idempotence=idempotent)
    began = time.monotonic()
    sends.produce(topic, b"x")
    sends.flush(20)
    return time.monotonic() - began
