"""`headway worker` with what handlers share: each process starts and ends its own, also on Ctrl-C and SIGTERM."""

import signal

import pytest

from tests.contract.conftest import PARTITIONS, Cluster
from tests.contract.parallel.members import plain_topic, wait_for
from tests.contract.workers.test_command import Command, Start, one_per_partition, start

__all__ = ["start"]

pytestmark = pytest.mark.kafka

LIFE = """
from contextlib import asynccontextmanager, contextmanager
from headway import Producer

@contextmanager
def life(settings):
    with Producer(settings) as producer:
        say("start")
        yield producer
    say("end")

@asynccontextmanager
async def async_life():
    say("start")
    yield asyncio.get_running_loop()
    say("end")
"""

THREADS = """
@worker("{0}", group="{0}", config=QUICK, lifespan=life)
def handle(record, context):
    context.state.send("{0}-copies", record.value).result()
    say(record.value.decode())
"""

COROUTINES = """
@worker("{0}", group="{0}", config=QUICK, lifespan=async_life)
async def handle(record, context):
    assert context.state is asyncio.get_running_loop()
    say(record.value.decode())
"""

PROCESSES = """
@worker("{0}", group="{0}", config=QUICK, lifespan=life, executor="process", processes=2)
def handle(record, context):
    context.state.send("{0}-copies", record.value).result()
    say(record.value.decode())
"""

KINDS = pytest.mark.parametrize("text", [THREADS, COROUTINES, PROCESSES], ids=["threads", "coroutines", "processes"])


def in_work(cluster: Cluster, start: Start, text: str) -> tuple[Command, list[tuple[int, str]]]:
    """Start a command; return it when it has handled a record of each partition, and what was said."""
    topic = plain_topic(cluster)
    cluster.create_topics([f"{topic}-copies"])
    values = [str(i) for i in range(PARTITIONS)]
    one_per_partition(cluster, topic, values)
    command = start(LIFE + text.format(topic))
    said = command.lines(PARTITIONS + text.count("processes=2") + 1)
    return command, said


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_each_process_starts_before_its_records_and_shuts_down_after_them(
    kafka_cluster: Cluster, start: Start, text: str, number: signal.Signals, code: int
) -> None:
    command, said = in_work(kafka_cluster, start, text)
    command.signal(number)
    said += [(int(line.split()[0]), line.split()[1]) for line in command.ends(code)]
    for pid in {pid for pid, _ in said}:
        own = [word for each, word in said if each == pid]
        assert (own[0], own[-1]) == ("start", "end")
    assert sorted(word for _, word in said if word.isdigit()) == [str(i) for i in range(PARTITIONS)]


REFUSING = """
from contextlib import contextmanager

@contextmanager
def life():
    raise ConnectionError("there is no database")
    yield

@worker("{0}", group="{0}", config=QUICK, lifespan=life)
def handle(record):
    say("handled")
"""


@pytest.mark.slow
def test_a_start_that_fails_ends_the_command_with_a_sentence_and_takes_no_record(
    kafka_cluster: Cluster, start: Start
) -> None:
    topic = plain_topic(kafka_cluster)
    one_per_partition(kafka_cluster, topic, ["0"])
    command = start(REFUSING.format(topic))
    assert command.ends(1) == []
    assert "shop:handle: The lifespan life failed at its start" in command.log
    assert "ConnectionError('there is no database'). No record was taken." in command.log


HANGING = """
from contextlib import contextmanager

@contextmanager
def life():
    say("start")
    threading.Event().wait()
    yield

@worker("{0}", group="{0}", config=QUICK, lifespan=life)
def handle(record):
    say("handled")
"""


@pytest.mark.slow
def test_a_start_that_hangs_ends_at_sigterm(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    command = start(HANGING.format(topic))
    command.line()
    command.signal(signal.SIGTERM)
    assert command.ends(0) == []


IMPOSSIBLE = """
from contextlib import asynccontextmanager

@asynccontextmanager
async def life():
    yield

@worker("{0}", group="{0}", lifespan=life)
def handle(record): ...
"""


def test_a_lifespan_that_its_handler_cannot_await_is_refused_at_the_declaration(
    kafka_cluster: Cluster, start: Start
) -> None:
    command = start(IMPOSSIBLE.format(plain_topic(kafka_cluster)))
    command.ends(1)
    assert "The lifespan life is async, and the handler handle is a plain function" in command.log


@pytest.mark.slow
def test_a_killed_process_has_no_shut_down_and_its_successor_starts_anew(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    one_per_partition(kafka_cluster, topic, ["0"])
    command = start(KILLED.format(topic))
    assert [word for _, word in command.lines(2)] == ["start", "0"]
    assert command.line()[1] == "start"
    wait_for(lambda: "restarting it in" in command.log)
    command.signal(signal.SIGTERM)
    assert [line.split()[1] for line in command.ends(0)][-1:] == ["end"]


KILLED = """
from contextlib import contextmanager

@contextmanager
def life():
    say("start")
    yield
    say("end")

@worker("{0}", group="{0}", config=QUICK, lifespan=life)
def handle(record, context):
    say(record.value.decode())
    os.kill(os.getpid(), signal.SIGKILL)
"""
