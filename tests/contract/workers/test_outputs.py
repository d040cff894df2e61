"""`headway worker` with outputs, results and batches: in threads, coroutines and processes, in every commit mode."""

import json
import os
import signal
from collections import Counter

import pytest

from tests.contract.conftest import Cluster
from tests.contract.parallel.members import plain_topic, send, wait_for
from tests.contract.parallel.test_transactions import reader
from tests.contract.workers.test_command import Start, start
from tests.contract.workers.test_poison_pills import AT_ONCE, ended_until, letters

__all__ = ["start"]

pytestmark = pytest.mark.kafka

SINGLE = """
@worker("{0}", group="{0}", config=QUICK, commit_mode="{mode}", produces="{1}", on_output=told, {options})
{kind} handle(record):
    logging.getLogger("shop").warning("within")
    yield ProducerRecord("{1}", record.value, record.key)
"""

BATCHES = """
@worker("{0}", group="{0}", config=QUICK, commit_mode="{mode}", produces="{1}", on_output=told,
        batches=Batches(20, linger=0.1), ordering=Ordering.UNORDERED, {options})
{kind} handle(records, contexts):
    assert len(records) == len(contexts)
    logging.getLogger("shop").warning("within")
    for record in records:
        yield ProducerRecord("{1}", record.value, record.key)
"""

TOLD = """
from headway import Batches, BatchError, Ordering, ProducerRecord, Retries

def told(input, output, metadata):
    of = input if isinstance(input, list) else [input]
    assert output.value in [each.value for each in of]
    say("stored", output.value.decode(), metadata.offset >= 0)
"""

KINDS = {"thread": ("def", ""), "coroutine": ("async def", ""), "process": ("def", "executor='process', processes=2")}
ALL = [
    (kind, mode, text) for kind in KINDS for mode in ("async", "sync", "transactional") for text in (SINGLE, BATCHES)
]
QUICK_ONES = [("thread", "transactional", BATCHES), ("coroutine", "async", SINGLE), ("process", "sync", BATCHES)]
CASES = [
    pytest.param(
        *each,
        id=f"{each[0]}-{each[1]}-{'batches' if each[2] is BATCHES else 'single'}",
        marks=[] if each in QUICK_ONES else pytest.mark.slow,
    )
    for each in ALL
]


@pytest.mark.quick("thread-transactional-batches")
@pytest.mark.parametrize(("kind", "mode", "text"), CASES)
def test_each_record_has_its_output_and_what_is_logged_names_it(
    kafka_cluster: Cluster, start: Start, kind: str, mode: str, text: str
) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 100
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    how, options = KINDS[kind]
    program = TOLD + text.format(topic, out, mode=mode, kind=how, options=options)
    command = start(program, "--log-format", "json")
    told = [words for _, words in command.lines(count)]
    command.signal(signal.SIGTERM)
    command.ends(0)
    assert sorted(told) == sorted(f"stored {i} True" for i in range(count))
    with reader(kafka_cluster, out) as found:
        assert sorted(found.values, key=int) == [str(i) for i in range(count)]
    events = [each for each in map(json.loads, command.log.splitlines()) if each["logger"] == "shop"]
    assert events
    assert {each["topic"] for each in events} == {topic}
    assert sum(each.get("records", 1) for each in events) == count


@pytest.mark.slow
@pytest.mark.parametrize("text", [SINGLE, BATCHES], ids=["single", "batches"])
def test_in_transactions_a_killed_process_leaves_each_output_once(
    kafka_cluster: Cluster, start: Start, text: str
) -> None:
    topic, out, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 2000
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    options = f"producer_config={{'transactional.id': '{topic}'}}"
    program = TOLD + text.format(topic, out, mode="transactional", kind="def", options=options)
    command = start(program, "--processes", "2")
    pid, _ = command.line()
    os.kill(pid, signal.SIGKILL)

    def all_there() -> bool:
        with reader(kafka_cluster, out) as found:
            return len(set(found.values)) == count

    wait_for(all_there, 120)  # it is not known how much the process had stored and not told when it died
    command.signal(signal.SIGTERM)
    command.ends(0)
    with reader(kafka_cluster, out) as found:
        assert Counter(found.values) == Counter(str(i) for i in range(count))


RESULTS = """
failed = set()

def write(input, value):
    of = input if isinstance(input, list) else [input]
    if any(each.value == b"7" for each in of) and 7 not in failed:
        failed.add(7)
        raise SystemExit("the file is full")
    say("wrote", len(of), value, threading.current_thread() is threading.main_thread())

@worker("{0}", group="{0}", config=QUICK, on_result=write, retries=Retries(lambda attempt, chance: 0.01), {options})
{kind} handle({parameters}):
    return {value}
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_batches", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["single", "batches"])
def test_results_are_handed_over_one_at_a_time_and_what_that_raises_is_a_failed_attempt(
    kafka_cluster: Cluster, start: Start, kind: str, in_batches: bool
) -> None:
    topic, count = plain_topic(kafka_cluster), 60
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    how, options = KINDS[kind]
    options += ", batches=Batches(10, linger=0.05), ordering=Ordering.UNORDERED" if in_batches else ""
    form = RESULTS.format(
        topic,
        kind=how,
        options=options.removeprefix(", "),
        parameters="records" if in_batches else "record, context",
        value='"+".join(each.value.decode() for each in records)' if in_batches else "record.value.decode()",
    )
    command = start(TOLD + form)
    wrote: list[str] = []
    while len(wrote) < count:
        _, words = command.line()
        what, size, value, in_main = words.split()
        assert (what, in_main) == ("wrote", "True")
        assert int(size) == value.count("+") + 1
        wrote += value.split("+")
    command.signal(signal.SIGTERM)
    assert command.ends(0) == []
    assert sorted(wrote, key=int) == [str(i) for i in range(count)]
    assert "the file is full" in command.log


POISON = """
@worker("{0}", group="{0}", config={config}, max_concurrency=2, batches=Batches(8, linger=0.2), {options},
        retries=Retries(lambda attempt, chance: 0.01, max_attempts=3), dead_letter_topic="{1}")
def handle(records, contexts):
    for record in records:
        if record.value == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
    for record, context in zip(records, contexts):
        say("ended", record.value.decode(), len(records), context.attempt)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ordering", ["UNORDERED", pytest.param("PARTITION", marks=pytest.mark.slow)])
def test_a_record_that_kills_in_a_batch_becomes_a_dead_letter_and_all_others_are_handled_in_order(
    kafka_cluster: Cluster, start: Start, ordering: str
) -> None:
    topic, dead, count = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 60
    values = [str(i) for i in range(count)]
    values[count // 2] = "poison"
    send(kafka_cluster, topic, [(None, value) for value in values], partition=1)
    options = f"ordering=Ordering.{ordering}"
    command = start(TOLD + POISON.format(topic, dead, config=AT_ONCE, options=options))
    said = ended_until(command, set(values) - {"poison"})
    [letter] = letters(kafka_cluster, dead, 1)
    command.signal(signal.SIGTERM)
    command.ends(0)
    assert (letter["value"], letter["reason"]) == ("poison", "attempt 3 of 3 failed")
    assert "while it was handling this record." in letter["message"]
    assert any(int(words.split()[2]) > 1 for words in said)  # in batches
    if ordering == "PARTITION":
        firsts = list(dict.fromkeys(words.split()[1] for words in said))
        assert firsts == [value for value in values if value != "poison"]


@pytest.mark.quick("a missing topic")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ('produces="nowhere"', "Kafka has no topic nowhere, where outputs of shop:handle go. Create it"),
        ('produces=["nowhere-*"], on_result=print', "either sent or passed to on_result"),
    ],
    ids=["a missing topic", "two uses of a result"],
)
def test_a_declaration_that_cannot_work_is_one_sentence(
    kafka_cluster: Cluster, start: Start, options: str, sentence: str
) -> None:
    topic = plain_topic(kafka_cluster)
    command = start(f'@worker("{topic}", group="g", {options})\ndef handle(record): ...')
    assert command.ends(1) == []
    assert sentence in command.log


@pytest.mark.slow
def test_what_a_run_does_not_send_says_how_a_worker_sends_it(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])
    text = """
@worker("{0}", group="{0}")
def handle(record):
    return ProducerRecord("elsewhere", record.value)
"""
    command = start(TOLD + text.format(topic))
    command.ends(1)
    assert "The handler handle returned a ProducerRecord" in command.log
    assert "declare the topics with produces=" in command.log
