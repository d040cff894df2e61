"""`headway worker` with real processes, on a real Apache Kafka: what happens to processes happens to no record."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import psutil
import pytest

from tests.contract.conftest import PARTITIONS, Cluster
from tests.contract.parallel.members import plain_topic, send, wait_for

pytestmark = pytest.mark.kafka

# Handlers say what they do on stdout, each line in one piece; whoever reads it to its end knows that no process that
# writes to it is left.
PREFACE = """
import asyncio, logging, os, signal, sys, threading
from dataclasses import dataclass
from headway import FatalError, worker

QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 100}

def say(*words):
    os.write(1, (" ".join(map(str, (os.getpid(), *words))) + "\\n").encode())
"""

NOTE = """
@worker("{topic}", group="{topic}", config=QUICK)
def handle(record, context):
    say(record.value.decode())
"""

STUCK = """
@worker("{topic}", group="{topic}", config=QUICK)
def handle(record, context):
    say("began", record.value.decode())
    threading.Event().wait()
"""

STUCK_COROUTINE = """
@worker("{topic}", group="{topic}", config=QUICK)
async def handle(record, context):
    say("began", record.value.decode())
    await asyncio.Event().wait()
"""


class Command:
    """`headway worker`, running."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it said on stderr."""
        return self._log.read_text()

    def line(self) -> tuple[int, str]:
        """What the next handler said, and which process it is."""
        assert self.process.stdout is not None
        pid, _, words = self.process.stdout.readline().rstrip("\n").partition(" ")
        assert pid, self.log
        return int(pid), words

    def lines(self, count: int) -> list[tuple[int, str]]:
        return [self.line() for _ in range(count)]

    def rest(self) -> list[str]:
        """What was said when no process is left to say anything."""
        assert self.process.stdout is not None
        return self.process.stdout.read().splitlines()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def says(self, pattern: str) -> str:
        """Wait until the log has something; returns it."""
        wait_for(lambda: re.search(pattern, self.log))
        found = re.search(pattern, self.log)
        assert found
        return found[0]

    def ends(self, code: int) -> list[str]:
        """Wait for its end; what was said until then."""
        rest = self.rest()
        assert self.process.wait(30) == code, self.log
        assert "Traceback" not in self.log
        return rest


Start = Callable[..., Command]


@pytest.fixture
def start(kafka_cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Runs workers of a module with this text, in a directory of its own."""
    with ExitStack() as stack:

        def run(
            text: str, *options: str, names: Sequence[str] = ("shop",), before: str = "", **environment: str
        ) -> Command:
            (tmp_path / "shop.py").write_text(PREFACE + text)
            log = tmp_path / f"stderr-{len(list(tmp_path.iterdir()))}"
            installed = [sys.executable, "-P", "-c", f"{before}from headway.cli import main; main()"]
            command = [*installed, "worker", *names, *options]
            env = os.environ | {"HEADWAY_BOOTSTRAP_SERVERS": kafka_cluster.bootstrap_servers} | environment
            with log.open("w") as stderr:
                process = subprocess.Popen(
                    command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True
                )
            stack.enter_context(process)
            stack.callback(process.kill)  # and its members end with it
            return Command(process, log)

        yield run


def one_per_partition(cluster: Cluster, topic: str, values: Sequence[str]) -> None:
    for partition, value in enumerate(values):
        send(cluster, topic, [(value, value)], partition)


def pids_of_a_round(cluster: Cluster, topic: str, command: Command, sent: list[str], got: list[str]) -> set[int]:
    """The processes that handle records of all partitions."""
    values = [f"round-{len(sent) + i}" for i in range(PARTITIONS)]
    one_per_partition(cluster, topic, values)
    sent += values
    lines = command.lines(PARTITIONS)
    got += [value for _, value in lines]
    return {pid for pid, _ in lines}


# Processes


def test_four_processes_share_a_topic_and_every_record_is_handled_once(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    sent = [str(i) for i in range(400)]
    send(kafka_cluster, topic, [(value, value) for value in sent])
    command = start(NOTE.format(topic=topic), "--processes", "4", names=["shop:handle"])
    got = [value for _, value in command.lines(400)]
    wait_for(lambda: len(pids_of_a_round(kafka_cluster, topic, command, sent, got)) == 4, 90)
    command.signal(signal.SIGTERM)
    assert command.ends(0) == []
    assert Counter(got) == Counter(sent)


def test_a_killed_process_is_replaced_and_no_record_is_lost(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    sent = [str(i) for i in range(300)]
    send(kafka_cluster, topic, [(value, value) for value in sent])
    command = start(NOTE.format(topic=topic), "--processes", "2")
    lines = command.lines(30)
    victim = lines[-1][0]
    os.kill(victim, signal.SIGKILL)
    got = {value for _, value in lines}
    while len(got) < len(sent):
        got.add(command.line()[1])
    assert got == set(sent)
    command.says(f"process {victim}, was ended by signal 9 .SIGKILL. after .* s; restarting it in 0.5 s")
    wait_for(lambda: command.log.count("Started shop:handle") == 3)
    command.signal(signal.SIGTERM)
    command.ends(0)
    assert command.log.count("Started shop:handle") == 3


ORPHANS = """
import subprocess

@worker("{topic}", group="{topic}", config=QUICK)
def handle(record, context):
    subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"], check=True)
    say(record.value.decode())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has process 1 of a container")
def test_as_process_1_of_a_container_it_collects_what_handlers_leave_behind(
    kafka_cluster: Cluster, start: Start
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(str(i), str(i)) for i in range(20)])
    # A subreaper gets orphans as process 1 does (PR_SET_CHILD_SUBREAPER).
    as_process_1 = "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); "
    command = start(ORPHANS.format(topic=topic), before=as_process_1)
    command.lines(20)

    def children() -> list[psutil.Process]:
        return psutil.Process(command.process.pid).children()

    wait_for(lambda: len(children()) == 1)
    assert children()[0].status() != psutil.STATUS_ZOMBIE
    command.signal(signal.SIGTERM)
    assert command.ends(0) == []


@pytest.mark.slow
def test_each_handler_of_a_module_has_processes_of_its_own(kafka_cluster: Cluster, start: Start) -> None:
    topics = [plain_topic(kafka_cluster) for _ in range(2)]
    text = """
@worker("{0}", group="{0}")
def bill(record, context):
    say("bill")

@worker("{1}", group="{1}")
async def ship(record, context):
    await asyncio.sleep(0)
    say("ship")
"""
    for topic in topics:
        send(kafka_cluster, topic, [("a", "1")])
    command = start(text.format(*topics))
    lines = command.lines(2)
    assert {words for _, words in lines} == {"bill", "ship"}
    assert len({pid for pid, _ in lines}) == 2
    command.signal(signal.SIGTERM)
    assert command.ends(0) == []


@pytest.mark.slow
def test_a_process_that_dies_each_time_is_given_up(kafka_cluster: Cluster, start: Start) -> None:
    text = """
if sys.argv[0].endswith("member.py"):
    say("dies")
    os._exit(7)
"""
    command = start(text + NOTE.format(topic=plain_topic(kafka_cluster)))
    said = command.ends(4)
    assert len(said) == 5
    assert re.findall(r"ended with exit code 7 after .* s; restarting it in (.*) s\.", command.log) == [
        "0.5",
        "1",
        "2",
        "4",
    ]
    assert "headway: shop:handle[0] died 5 times in a row, the last time ended with exit code 7" in command.log


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_named_with_its_error_and_shows_one_traceback(
    kafka_cluster: Cluster, start: Start
) -> None:
    topic = plain_topic(kafka_cluster)
    text = (
        NOTE
        + """
def refuse(partitions):
    raise ValueError("no licence for Kafka")

@worker("{topic}", group="{topic}-2", config=QUICK, on_assign=refuse)
def unlicensed(record, context):
    pass
"""
    )
    command = start(text.format(topic=topic))
    command.rest()
    assert command.process.wait(30) == 4
    assert command.log.count("Traceback") == 1
    last = command.log.splitlines()[-1]
    assert last.startswith("headway: shop:unlicensed[0] died 5 times in a row")
    assert last.endswith("All other processes stop too. Its error: builtins.ValueError: no licence for Kafka")


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_process_behind(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    command = start(STUCK.format(topic=topic), "--processes", "2", "--drain-timeout", "0.1")
    send(kafka_cluster, topic, [(str(i), str(i)) for i in range(8)])
    command.lines(8)
    processes = psutil.Process(command.process.pid).children(recursive=True)
    command.signal(signal.SIGKILL)
    command.rest()  # nobody has stdout any more; the second to come may have begun some of the eight again
    assert len(processes) >= 2
    assert psutil.wait_procs(processes, 30)[1] == []


# The end


def test_sigterm_lets_what_runs_end_and_nothing_is_repeated(
    kafka_cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    topic, gate = plain_topic(kafka_cluster), tmp_path / "gate"
    os.mkfifo(gate)
    send(kafka_cluster, topic, [("a", "first"), ("a", "second")])
    text = """
@worker("{0}", group="{0}", config=QUICK)
def handle(record, context):
    say("began", record.value.decode())
    if record.value == b"first":
        open("gate").read()
    say("ended", record.value.decode())
"""
    command = start(text.format(topic))
    assert command.line()[1] == "began first"
    command.signal(signal.SIGTERM)
    command.says("SIGTERM: waiting for running handlers")
    gate.write_text("go on")
    assert command.line()[1] == "ended first"
    if rest := command.ends(0):  # on a busy machine the process heard of the signal after the gate was opened
        assert [line.split(" ", 1)[1] for line in rest] == ["began second", "ended second"]
        return
    again = start(text.format(topic))
    assert again.line()[1] == "began second"
    again.signal(signal.SIGTERM)
    again.ends(0)


@pytest.mark.slow
def test_a_second_sigterm_waits_for_nothing_and_the_record_comes_again(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "stuck")])
    command = start(STUCK.format(topic=topic), "--drain-timeout", "600")
    assert command.line()[1] == "began stuck"
    command.signal(signal.SIGTERM)
    command.says("SIGTERM: waiting for running handlers")
    command.signal(signal.SIGTERM)
    command.ends(5)
    again = start(NOTE.format(topic=topic))
    assert again.line()[1] == "stuck"
    again.signal(signal.SIGTERM)
    again.ends(0)


@pytest.mark.slow
@pytest.mark.parametrize("text", [STUCK, STUCK_COROUTINE], ids=["thread", "coroutine"])
def test_what_runs_longer_than_the_drain_timeout_is_left_and_the_exit_code_says_so(
    kafka_cluster: Cluster, start: Start, text: str
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "stuck")])
    command = start(text.format(topic=topic), "--drain-timeout", "0.1")
    command.line()
    command.signal(signal.SIGTERM)
    command.ends(5)
    assert "Some running handlers did not finish; their records are handled again later." in command.log


@pytest.mark.slow
def test_a_worker_that_wants_an_error_for_a_missing_offset_ends_with_it(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    text = NOTE.replace("config=QUICK", 'config={{**QUICK, "auto.offset.reset": "error"}}')
    command = start(text.format(topic=topic))
    command.ends(1)
    assert f"of {topic} has no committed offset in the group" in command.log


@pytest.mark.slow
def test_a_sigterm_to_all_processes_at_once_is_one_sigterm(
    kafka_cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    """As systemd sends it."""
    topic, gate = plain_topic(kafka_cluster), tmp_path / "gate"
    os.mkfifo(gate)
    send(kafka_cluster, topic, [("a", "first")])
    text = """
@worker("{0}", group="{0}", config=QUICK)
def handle(record, context):
    say("began")
    open("gate").read()
    say("ended")
"""
    command = start(text.format(topic))
    pid, _ = command.line()
    os.kill(pid, signal.SIGTERM)
    command.signal(signal.SIGTERM)
    command.says("SIGTERM: waiting for running handlers")
    gate.write_text("go on")
    assert command.line()[1] == "ended"
    assert command.ends(0) == []


@pytest.mark.slow
def test_a_thread_of_a_handlers_own_that_never_ends_holds_up_nothing_for_long(
    kafka_cluster: Cluster, start: Start
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])
    text = """
@worker("{0}", group="{0}", config=QUICK)
def handle(record, context):
    threading.Thread(target=threading.Event().wait, daemon=False).start()
    say("started")
"""
    command = start(text.format(topic))
    command.line()
    command.signal(signal.SIGTERM)
    command.ends(0)


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_without_a_traceback(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "stuck")])
    command = start(STUCK.format(topic=topic), "--drain-timeout", "600", "--processes", "2")
    command.line()
    command.signal(signal.SIGINT)
    command.ends(130)
    assert "headway: stopped by Ctrl-C." in command.log


@pytest.mark.slow
@pytest.mark.parametrize("apart", [0.0, 0.02], ids=["at once", "20 ms apart"])
def test_two_ctrl_c_end_it_at_once_and_no_record_is_lost(kafka_cluster: Cluster, start: Start, apart: float) -> None:
    topic = plain_topic(kafka_cluster)
    sent = [str(i) for i in range(300)]
    send(kafka_cluster, topic, [(value, value) for value in sent])
    command = start(NOTE.format(topic=topic), "--processes", "2")
    got = {value for _, value in command.lines(30)}
    command.signal(signal.SIGINT)
    time.sleep(apart)
    command.signal(signal.SIGINT)
    got |= {line.partition(" ")[2] for line in command.ends(130)}
    if len(got) < len(sent):  # else a second command might get SIGTERM before it has a handler for it
        command = start(NOTE.format(topic=topic), "--processes", "2")
        while len(got) < len(sent):
            got.add(command.line()[1])
        command.signal(signal.SIGTERM)
        command.ends(0)
    assert got == set(sent)


# Mistakes


def test_an_error_in_the_module_is_one_sentence_and_nothing_is_started(start: Start) -> None:
    command = start("import nopackage")
    assert command.ends(1) == []
    assert "ModuleNotFoundError: No module named 'nopackage'" in command.log
    assert command.log.count("\n") == 1


@pytest.mark.slow
def test_a_file_named_like_a_module_of_python_hides_it_from_no_process(
    kafka_cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    for name in ("queue", "logging", "selectors", "statistics"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is mine')")
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [(None, "first")])
    command = start(NOTE.format(topic=topic))
    assert command.line()[1] == "first"
    command.signal(signal.SIGTERM)
    command.ends(0)


@pytest.mark.slow
def test_a_mistake_that_only_a_process_of_its_own_sees_ends_all_of_them(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    command = start(NOTE.format(topic=topic) + "\nif 'member' in sys.argv[0]: 1 / 0", "--processes", "2")
    assert command.ends(1) == []
    assert command.log.count("headway: shop cannot be imported") == 1
    assert command.log.count("Started") == 2


@pytest.mark.quick("with levels")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ('"nothing", group="g"', "headway: Kafka has no topic nothing, which shop:handle reads. Create it with"),
        ('"nothing", group="g", levels=2', "Create it with `headway topics create nothing --levels 2`."),
    ],
    ids=["without levels", "with levels"],
)
def test_a_topic_that_is_missing_is_one_sentence(start: Start, options: str, sentence: str) -> None:
    command = start(f"@worker({options})\ndef handle(record, context): ...")
    assert command.ends(1) == []
    assert sentence in command.log
    assert command.log.count("\n") == 1


def test_a_setting_that_kafkas_client_refuses_is_said_once(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    text = f'@worker("{topic}", group="g", config={{"fetch.mim.bytes": 1}})\ndef handle(record, context): ...'
    command = start(text, "--processes", "3")
    assert command.ends(1) == []
    assert command.log.count("'fetch.mim.bytes' is not known. Did you mean 'fetch.min.bytes'?") == 1


@pytest.mark.slow
def test_a_record_that_failed_for_good_without_a_dead_letter_topic_ends_all(
    kafka_cluster: Cluster, start: Start
) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")])
    text = """
@worker("{0}", group="{0}")
def handle(record, context):
    raise FatalError("no use")
"""
    command = start(text.format(topic), "--processes", "2")
    assert command.ends(3) == []
    assert "headway: shop:handle: ConsumerRecord(" in command.log
    assert "Name a dead_letter_topic" in command.log


# Records


def test_json_becomes_a_dataclass_and_what_cannot_be_read_a_dead_letter(kafka_cluster: Cluster, start: Start) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", '{"number": 1}'), ("a", '{"number": "one"}'), ("a", '{"number": 2}')])
    text = """
@dataclass
class Order:
    number: int

@worker("{0}", group="{0}", value=Order, dead_letter_topic="{1}")
def handle(record, context):
    say(record.value)
"""
    command = start(text.format(topic, dead))
    assert [words for _, words in command.lines(2)] == ["Order(number=1)", "Order(number=2)"]
    command.signal(signal.SIGTERM)
    command.ends(0)
    client = ck.Consumer(kafka_cluster.config({"log_level": 0, "group.id": dead, "auto.offset.reset": "earliest"}))
    client.subscribe([dead])
    [letter] = client.consume(1, 30)
    client.close()
    assert letter.value() == b'{"number": "one"}'
    headers: dict[str, Any] = dict(letter.headers() or [])
    assert headers["headway.error.exception"] == b"headway.errors.DeserializationError"
    assert b"Expected `int`, got `str` - at `$.number`" in headers["headway.error.message"]


@pytest.mark.slow
def test_a_handler_that_needs_the_processor_runs_in_further_processes(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", '{"number": 1}')], partition=2)
    text = """
@dataclass
class Order:
    number: int

@worker("{0}", group="{0}", value=Order, executor="process", processes=1)
def handle(record, context):
    logging.getLogger("shop").warning("It is done")
    say(record.value)
"""
    command = start(text.format(topic), "--log-format", "json")
    pid, words = command.line()
    assert words == "Order(number=1)"
    command.signal(signal.SIGTERM)
    assert command.ends(0) == []
    [event] = [each for each in map(json.loads, command.log.splitlines()) if each["logger"] == "shop"]
    assert (event["pid"], event["worker"], event["partition"]) == (pid, "shop:handle", 2)
    assert f"as process {pid}." not in command.log


@pytest.mark.slow
def test_logs_as_json_are_json_and_name_process_and_record(kafka_cluster: Cluster, start: Start) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", "1")], partition=2)
    text = """
@worker("{0}", group="{0}")
def handle(record, context):
    try:
        raise ValueError("not so bad")
    except ValueError:
        logging.getLogger("shop").exception("It is %s", "done", extra={{"customer": "ann"}})
    threading.Thread(target=lambda: 1 / 0).start()
    say("done")
"""
    command = start(text.format(topic), "--log-format", "json", "--log-level", "warning")
    pid, _ = command.line()
    command.says("ZeroDivisionError")
    command.signal(signal.SIGTERM)
    assert command.rest() == []
    assert command.process.wait(30) == 0
    events = list(map(json.loads, command.log.splitlines()))
    [event] = [each for each in events if each["logger"] == "shop"]
    assert event.pop("timestamp")
    assert event.pop("exception").endswith("ValueError: not so bad")
    assert event == {
        "level": "error",
        "logger": "shop",
        "message": "It is done",
        "worker": "shop:handle",
        "process": 0,
        "pid": pid,
        "topic": topic,
        "partition": 2,
        "offset": 0,
        "key": "a",
        "customer": "ann",
    }
    assert any("ZeroDivisionError" in each.get("exception", "") for each in events)


@pytest.mark.slow
def test_a_terminal_gets_a_line_of_progress_that_logs_write_over(kafka_cluster: Cluster, tmp_path: Path) -> None:
    topic = plain_topic(kafka_cluster)
    send(kafka_cluster, topic, [("a", str(i)) for i in range(3)])
    (tmp_path / "shop.py").write_text(PREFACE + NOTE.format(topic=topic))
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", "from headway.cli import main; main()", "worker", "shop", "--processes", "2"]
    env = os.environ | {"HEADWAY_BOOTSTRAP_SERVERS": kafka_cluster.bootstrap_servers, "COLUMNS": "100"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"3 done, " not in seen:
            seen += os.read(ours, 10_000)
        process.send_signal(signal.SIGTERM)
        while chunk := _read(ours):
            seen += chunk
        assert process.wait(30) == 0
    os.close(ours)
    assert b"; 2 processes" in seen
    assert re.search(rb"\r\x1b\[K[-: .\d]+ INFO    supervisor headway.worker: SIGTERM", seen)
    assert seen.endswith(b"\r\x1b[K")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 10_000)
    except OSError:  # as Linux says that nobody has its other end any more
        return b""


def test_the_probes_of_a_pod_are_those_of_all_its_processes(kafka_cluster: Cluster, start: Start) -> None:
    """Also of a process that was killed: its records stay in the sum."""
    topic = plain_topic(kafka_cluster)
    command = start(NOTE.format(topic=topic), "--processes", "2", "--probes", "127.0.0.1:0")
    address = command.says(r"http://127\.0\.0\.1:\d+")

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(address + path, timeout=10) as answer:  # noqa: S310 - it is ours
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def counted(line: str) -> Callable[[], bool]:
        return lambda: f"{line}\n" in get("/metrics")[1]

    wait_for(lambda: get("/readyz")[0] == 200)
    one_per_partition(kafka_cluster, topic, ["a", "b", "c", "d"])
    pids = {pid for pid, _ in command.lines(4)}
    labels = f'{{group="{topic}",handler="shop:handle"}}'
    wait_for(counted(f"headway_handler_done_total{labels} 4.0"))
    wait_for(counted('headway_worker_processes{handler="shop:handle"} 2.0'))
    committed = re.compile(r"^headway_partition_committed_offset.* 1\.0$", re.MULTILINE)
    wait_for(lambda: len(committed.findall(get("/metrics")[1])) == PARTITIONS)  # otherwise some are handled again
    os.kill(pids.pop(), signal.SIGKILL)
    wait_for(counted('headway_worker_process_deaths_total{handler="shop:handle"} 1.0'))
    assert counted(f"headway_handler_done_total{labels} 4.0")()
    wait_for(lambda: get("/readyz")[0] == 200)
    one_per_partition(kafka_cluster, topic, ["e", "f", "g", "h"])
    command.lines(4)
    wait_for(counted(f"headway_handler_done_total{labels} 8.0"))
    assert get("/livez") == (200, "ok\n")
    command.signal(signal.SIGTERM)
    command.ends(0)
