"""`headway worker` beside a record that kills its process: that one is set aside, and everything else goes on."""

import os
import signal
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.contract.conftest import Cluster
from tests.contract.parallel.members import client_of, committed, plain_topic, send, wait_for
from tests.contract.workers.test_command import Command, Start, start

__all__ = ["start"]

pytestmark = pytest.mark.kafka

# A member with an id of its own takes its place again at once; others wait for the session of the dead one.
AT_ONCE = '{"group.instance.id": "poison", "heartbeat.interval.ms": 100}'

POISON = """
from headway import Retries
from headway.core.retry import fixed_backoff

@worker("{topic}", group="{topic}", max_concurrency=8, config={config}, {options})
{kind} handle(record, context):
    value = record.value.decode()
    say("began", value, context.attempt, type(context.last_error).__name__)
    {sleep}(0.02)
    if value.startswith("poison"):
        {death}
    say("ended", value, context.attempt)
"""


def poisoned(topic: str, options: str, config: str = AT_ONCE, *, death: str = "", is_async: bool = False) -> str:
    """A worker that one of its records kills."""
    return POISON.format(
        topic=topic,
        config=config,
        options=options,
        kind="async def" if is_async else "def",
        sleep="await asyncio.sleep" if is_async else "__import__('time').sleep",
        death=death or "os.kill(os.getpid(), signal.SIGKILL)",
    )


def send_with_poison(cluster: Cluster, topic: str, count: int) -> set[str]:
    """So many records of as many keys, one of which kills; returns the values of the others."""
    values = [str(i) for i in range(count)]
    values[count // 2] = "poison"
    send(cluster, topic, [(value, value) for value in values])
    return set(values) - {"poison"}


def letters(cluster: Cluster, topic: str, count: int) -> list[dict[str, str]]:
    """The value and the story of so many dead letters, and that there are no more."""
    with client_of(cluster, "letters", **{"auto.offset.reset": "earliest", "enable.auto.commit": False}) as client:
        client.subscribe([topic])
        found: list[dict[str, str]] = []

        def read() -> bool:
            message: Any = client.poll(0.1)
            if message is not None and not message.error():
                story = {name.removeprefix("headway.error."): value.decode() for name, value in message.headers()}
                found.append(story | {"value": message.value().decode()})
            return len(found) >= count

        wait_for(read)
        assert client.poll(0.5) is None
    return found


def ended_until(command: Command, values: set[str]) -> list[str]:
    """All that handlers said until those of these values have ended."""
    said, left = list[str](), set(values)
    while left:
        words = command.line()[1]
        said.append(words)
        if words.startswith("ended"):
            left.discard(words.split()[1])
    return said


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["thread", "coroutine"])
def test_a_record_that_kills_its_process_becomes_a_dead_letter_and_all_others_are_handled(
    kafka_cluster: Cluster, start: Start, is_async: bool
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    others = send_with_poison(kafka_cluster, topic, 300)
    options = f"retries=Retries(fixed_backoff(0.01), max_attempts=3), dead_letter_topic='{dead}'"
    command = start(poisoned(topic, options, is_async=is_async), "--processes", "2")
    said = ended_until(command, others)
    [letter] = letters(kafka_cluster, dead, 1)
    command.signal(signal.SIGTERM)
    command.ends(0)

    assert (letter["value"], letter["attempts"], letter["reason"]) == ("poison", "3", "attempt 3 of 3 failed")
    assert letter["exception"] == "headway.errors.ProcessDiedError"
    assert letter["message"] == (
        "The process of the handler was ended by signal 9 (SIGKILL) while it was handling this record."
    )
    assert [words.split()[2] for words in said if words.startswith("began poison")] == ["1", "2", "3"]
    assert command.log.count("Started shop:handle") == 5


@pytest.mark.slow
def test_several_records_that_kill_are_told_apart(kafka_cluster: Cluster, start: Start) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    killers = {f"poison-{i}" for i in range(3)}
    others = {str(i) for i in range(60)}
    send(kafka_cluster, topic, [(value, value) for value in sorted(others | killers, reverse=True)])
    options = f"retries=Retries(fixed_backoff(0.01), max_attempts=2), dead_letter_topic='{dead}'"
    command = start(poisoned(topic, options), "--processes", "2")
    ended_until(command, others)
    found = letters(kafka_cluster, dead, 3)
    command.signal(signal.SIGTERM)
    command.ends(0)
    assert {letter["value"] for letter in found} == killers
    # At the most two deaths for each, and each had its own.
    assert 4 <= command.log.count("From now on, each of these records runs alone") <= 6


@pytest.mark.slow
def test_where_attempts_have_no_bound_a_record_may_kill_three_processes(kafka_cluster: Cluster, start: Start) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    others = send_with_poison(kafka_cluster, topic, 20)
    options = f"retries=Retries(fixed_backoff(0.01)), dead_letter_topic='{dead}'"
    command = start(poisoned(topic, options, death="os._exit(7)"))
    ended_until(command, others)
    [letter] = letters(kafka_cluster, dead, 1)
    command.signal(signal.SIGTERM)
    command.ends(0)
    assert (letter["attempts"], letter["reason"]) == ("3", "3 processes died while handling it")
    assert "ended with exit code 7" in letter["message"]


@pytest.mark.slow
def test_without_a_dead_letter_topic_the_record_that_kills_ends_the_command_with_its_sentence(
    kafka_cluster: Cluster, start: Start
) -> None:
    topic = plain_topic(kafka_cluster)
    send_with_poison(kafka_cluster, topic, 20)
    command = start(poisoned(topic, "retries=Retries(fixed_backoff(0.01))"))
    command.ends(3)
    assert "failed for good (3 processes died while handling it)" in command.log
    assert "was ended by signal 9 (SIGKILL)" in command.log
    assert "Name a dead_letter_topic to keep such records and continue." in command.log


@pytest.mark.slow
def test_suspects_run_alone_and_a_later_record_of_a_key_waits_for_the_one_that_kills(
    kafka_cluster: Cluster, start: Start
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(f"k{i}", f"beside-{i}") for i in range(4)], 0)
    send(kafka_cluster, topic, [("p", "poison"), ("p", "behind")], 0)
    options = f"retries=Retries(fixed_backoff(0.01), max_attempts=2), dead_letter_topic='{dead}'"
    text = poisoned(topic, options).replace(
        'value.startswith("poison"):', 'value.startswith("poison"):\n        gate()'
    )
    # All five run at the first death, which comes when the last of them has begun.
    gate = """
began = threading.Semaphore(0)

def gate():
    if not os.path.exists("first"):
        open("first", "w").close()
        __import__("time").sleep(0.5)
"""
    command = start(gate + text.replace("0.02", "0.3"))
    said = ended_until(command, {f"beside-{i}" for i in range(4)} | {"behind"})
    letters(kafka_cluster, dead, 1)
    command.signal(signal.SIGTERM)
    command.ends(0)

    attempts = defaultdict[str, list[str]](list)
    for words in said:
        if words.startswith("began"):
            attempts[words.split()[1]].append(words.split()[2])
    assert attempts["poison"] == ["1", "2"]
    assert attempts["behind"] == ["1"]
    suspects = [words.split()[:2] for words in said if words.startswith(("began", "ended")) and words.split()[2] == "2"]
    # None of them begins before the one before has ended, or has died.
    running = Counter[str]()
    for verb, value in suspects:
        if verb == "began":
            assert sum(running.values()) == 0 or running["poison"]
            running.clear()
        running[value] += 1 if verb == "began" else -1
    assert said.index("began behind 1 NoneType") > said.index("began poison 2 ProcessDiedError")


@pytest.mark.slow
def test_a_record_that_kills_goes_on_to_another_member_as_a_suspect(kafka_cluster: Cluster, start: Start) -> None:
    """Members without an id of their own: the partition of the dead one goes to another."""
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    others = send_with_poison(kafka_cluster, topic, 300)
    options = f"retries=Retries(max_attempts=3), dead_letter_topic='{dead}'"
    command = start(poisoned(topic, options, config="QUICK"), "--processes", "2")
    ended_until(command, others)
    [letter] = letters(kafka_cluster, dead, 1)
    command.signal(signal.SIGTERM)
    command.ends(0)
    assert (letter["value"], letter["attempts"]) == ("poison", "3")
    assert command.log.count("Started shop:handle") == 5


@pytest.mark.slow
def test_a_process_that_dies_with_nothing_running_accuses_no_record(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])
    command = start(poisoned(topic, "retries=Retries(fixed_backoff(0.01))"))
    pid, _ = command.line()
    assert command.line()[1] == "ended 1 1"
    wait_for(lambda: committed(kafka_cluster, topic))
    os.kill(pid, signal.SIGKILL)
    command.says("restarting it in 0.5 s")
    send(kafka_cluster, topic, [("a", "2")])
    assert command.line()[1] == "began 2 1 NoneType"
    command.signal(signal.SIGTERM)
    command.ends(0)
    assert "runs alone" not in command.log
