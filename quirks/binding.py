"""Faults of the binding, confluent-kafka."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from typing import Any

import confluent_kafka as ck
from kafka import KafkaAdminClient  # type: ignore[import-untyped]

from quirks import clients
from quirks.verdict import NotShownError, Verdict, at_risk, kafka, survived
from tests.contract.mock_brokers import mock_brokers

_NOWHERE = "127.0.0.1:1"
_INIT_PRODUCER_ID, _TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 22, 53
_OFFSET_COMMIT = 8


def close_in_a_callback() -> Verdict:
    """A consumer is closed in its own rebalance callback."""
    topic = clients.name()
    clients.create(kafka(), topic)
    for callback in ("on_assign", "on_revoke"):
        reader = clients.consumer(kafka())
        reader.subscribe([topic], **{callback: lambda consumer, _: consumer.close()})
        at_risk(f"{callback} closes its consumer", 15)
        try:
            reader.poll(5)
            reader.unsubscribe()
            reader.poll(5)
        except RuntimeError:
            pass
        survived()
    return Verdict(False, "the consumers were closed")


def exception_in_a_callback() -> Verdict:
    """A rebalance callback raises while `consume` holds records."""
    topic, group = clients.name(), clients.name()
    raised: list[bool] = []
    clients.create(kafka(), topic, 2)
    for partition in range(2):
        clients.fill(kafka(), topic, 50, partition)

    def revoked(_consumer: Any, _partitions: Any) -> None:
        if not raised:
            raised.append(True)
            raise ZeroDivisionError

    reader = clients.consumer(kafka(), group)
    reader.subscribe([topic], on_revoke=revoked)
    clients.take(reader, 1)
    threading.Timer(1, _join_for_a_while, (group, topic)).start()
    try:
        came = len(reader.consume(1_000, 20))
    except ZeroDivisionError:
        pass
    else:
        raise NotShownError(f"consume returned {came} records, and the callback's error was not raised")
    back = len(clients.take(reader, 99, 8))
    reader.close()
    places = clients.consumer(kafka(), group).committed([ck.TopicPartition(topic, number) for number in range(2)], 10)
    committed = sum(max(each.offset, 0) for each in places)
    return Verdict(1 + back < committed, f"{1 + back} of 100 records were returned, and {committed} are committed")


def _join_for_a_while(group: str, topic: str) -> None:
    other = clients.consumer(kafka(), group)
    other.subscribe([topic])
    clients.take(other, 1, 4)
    other.close()


def ctrl_c_in_a_callback() -> Verdict:
    """Ctrl-C comes while delivery reports are handed out."""
    sends = clients.producer(_NOWHERE)
    reported: list[Any] = []
    count = 1_000

    def delivered(error: Any, _message: Any) -> None:
        if len(reported) == 10:
            signal.raise_signal(signal.SIGINT)
        reported.append(error)

    for _ in range(count):
        sends.produce("orders", b"x", on_delivery=delivered)
    sends.purge()
    interrupts = 0
    while True:
        try:
            left = sends.flush(5)
            break
        except (KeyboardInterrupt, SystemError):
            interrupts += 1
    seen = f"{len(reported)} of {count} callbacks ran to their end, {left} are to come, {interrupts} interrupts raised"
    return Verdict(len(reported) < count, seen)


def commit_without_a_limit() -> Verdict:
    """A synchronous commit with the broker gone, and Ctrl-C."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        clients.fill(brokers.bootstrap_servers, "orders", 5)
        reader = clients.consumer(brokers.bootstrap_servers, enable_auto_commit=False, socket_timeout_ms=60_000)
        reader.subscribe(["orders"])
        clients.take(reader, 5)
        for broker in (1, 2, 3):
            brokers.answer_after(broker, 60_000)
        threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
        at_risk("commit(asynchronous=False) with a broker that does not answer, and Ctrl-C after 2 s", 15)
        began = time.monotonic()
        try:
            reader.commit(asynchronous=False)
        except (ck.KafkaException, KeyboardInterrupt) as error:
            survived()
            return Verdict(False, f"{type(error).__name__} after {time.monotonic() - began:.1f} s")
        raise NotShownError("the commit succeeded")


def nul_in_metadata() -> Verdict:
    """Commit metadata, as Kafka has them."""
    topic = clients.name()
    clients.create(kafka(), topic)
    clients.consumer(kafka(), topic).commit(
        offsets=[ck.TopicPartition(topic, 0, 1, metadata="abc")], asynchronous=False
    )
    admin = KafkaAdminClient(bootstrap_servers=kafka())
    stored = str(admin.list_group_offsets([topic]))
    return Verdict("abc\\x00" in stored, f"Kafka has {stored}")


def flush_after_a_fatal_error() -> Verdict:
    """A flush of a second hands out the reports of a producer that Kafka has ended."""
    with mock_brokers() as brokers:
        brokers.refuse(_INIT_PRODUCER_ID, _TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        brokers.create("orders")
        broken = []

        def delivered(_error: Any, _message: Any) -> None:
            try:
                sum(_numbers())
            except BaseException as error:
                broken.append(f"{type(error).__name__}: {error}")
                raise

        for _ in range(10):
            sends = clients.producer(brokers.bootstrap_servers, enable_idempotence=True)
            try:
                for _ in range(1_000):
                    sends.produce("orders", b"x", on_delivery=delivered)
            except ck.KafkaException:
                pass
            try:
                sends.flush(3)
            except (ck.KafkaException, SystemError) as error:
                broken.append(f"flush raised {type(error).__name__}: {error}")
        return Verdict(bool(broken), broken[0] if broken else "no report's call failed")


def _numbers() -> Iterable[int]:
    yield from range(3)


def oauth_callback_raises() -> Verdict:
    """The constructor of a client whose `oauth_cb` raises."""
    errors: list[Any] = []

    def token(_config: str) -> tuple[str, float]:
        raise PermissionError("the reason")

    began = time.monotonic()
    try:
        ck.Producer(
            {
                "bootstrap.servers": _NOWHERE,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "OAUTHBEARER",
                "oauth_cb": token,
                "error_cb": errors.append,
                "log_level": 0,
            }
        ).poll(0)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    else:
        text = f"no error; error_cb got {[each.str() for each in errors]}"
    took = time.monotonic() - began
    return Verdict("the reason" not in text or took > 5, f"after {took:.0f} s {text}")


def warning_at_close() -> Verdict:
    """A producer whose transactions never began is closed, with warnings as errors."""
    warnings.simplefilter("error")
    sends = clients.producer(_NOWHERE, transactional_id="t")
    with contextlib.suppress(ck.KafkaException):
        sends.init_transactions(0.2)
    try:
        sends.close()
    except BaseException as error:
        return Verdict(isinstance(error, SystemError), f"{type(error).__name__}: {error}")
    return Verdict(False, "it was closed")


def lone_surrogate_in_a_setting() -> Verdict:
    """A setting with a lone surrogate."""
    at_risk("a setting with a lone surrogate")
    try:
        ck.Producer({"bootstrap.servers": _NOWHERE, "client.id": "\ud800"})
    except SystemError as error:
        return Verdict(True, f"SystemError: {error}")
    except Exception as error:
        return Verdict(False, f"{type(error).__name__}: {error}")
    return Verdict(False, "the client was made")


def lone_surrogate_in_a_header() -> Verdict:
    """A header whose name has a lone surrogate."""
    sends = clients.producer(_NOWHERE)
    at_risk("a header's name with a lone surrogate")
    try:
        sends.produce("orders", b"x", headers=[("\ud800", b"x")])
    except SystemError as error:
        return Verdict(True, f"SystemError: {error}")
    except Exception as error:
        return Verdict(False, f"{type(error).__name__}: {error}")
    return Verdict(False, "the record was taken")


_FORKS = """
import os, sys
import confluent_kafka as ck
reader = ck.Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "log_level": 0})
reader.subscribe(["orders"])
reader.poll(1)
if child := os.fork():
    status = os.waitpid(child, 0)[1]
    os._exit(0 if status == 0 else 3)
del reader
"""


def fork_with_a_client() -> Verdict:
    """A forked process ends that has a copy of a consumer."""
    with mock_brokers() as brokers:
        brokers.create("orders")
        command = [sys.executable, "-W", "ignore", "-c", _FORKS, brokers.bootstrap_servers, clients.name()]
        try:
            ended = subprocess.run(command, timeout=20, check=False, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return Verdict(True, "the child did not end")
        seen = f"aborted: {ended.stderr.split(': ')[-1][:80]}" if ended.returncode else "ended well"
        return Verdict(ended.returncode == 3, f"the child {' '.join(seen.split())}")
