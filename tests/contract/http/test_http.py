"""Requests for records: a real HTTP server on this machine, and a real Apache Kafka."""

import asyncio
import contextlib
import email.utils
import gc
import http.server
import itertools
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import aiohttp
import confluent_kafka as ck
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import IntegerType, MapType, StringType, StructType

from headway import BatchError, Batches, ConsumerRecord, Context, FatalError, Ordering, Origin, RetriableError, Retries
from headway.core.retry import fixed_backoff
from headway.errors import HandlerError
from headway.http import BatchHttpHandler, HttpHandler, Request, Response
from headway.http.handler import open_session
from headway.records.history import History
from headway.records.record_types import Header, RecordSource
from headway.spark.stage.outcomes import outcome_columns
from headway.spark.stage.settings import Settings
from headway.spark.stage.task import Stage
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import consumer, plain_topic, send, topic_of, wait_for

DOCUMENT = Path(__file__).parents[3] / "docs" / "http.md"
SECRET = "s3cret"  # noqa: S105 - and that is what is looked for


# Rows of Spark's, without Spark


ROWS: Mapping[str, Sequence[Any]] = {
    "topic": ["orders"] * 3,
    "level": [1] * 3,
    "partition": [0] * 3,
    "offset": [4, 5, 6],
    "value": [b"a", b"b", b"c"],
}
ANSWER = (
    StructType()
    .add("status", IntegerType())
    .add("headers", MapType(StringType(), StringType()))
    .add("body", StringType())
)


def came_of(handler: Any, columns: Mapping[str, Sequence[Any]], **more: Any) -> list[Any]:
    retries = Retries(fixed_backoff(0.01), max_attempts=3)
    kind = outcome_columns(ANSWER)
    stage = Stage(handler, Settings(key=(), max_concurrency=3, time_limit=None, retries=retries, columns=kind, **more))
    return [row for batch in stage.run(iter([pa.RecordBatch.from_pydict(columns)])) for row in batch.to_pylist()]


@pytest.mark.parametrize("arrow", [False, True])
def test_a_batch_of_rows_is_one_request_and_one_in_arrow_is_none(serve: "Callable[..., Server]", arrow: bool) -> None:
    server = serve(lambda _: Answer(200, JSON, b"{}"))

    def to_request(rows: Any) -> Request:
        return Request("POST", f"{server.url}/", json=[str(each) for each in (rows["value"] if arrow else rows)])

    batches: dict[str, Any] = {"batches": Batches(3, linger=5.0), "arrow_columns": ("value",) if arrow else ()}
    rows = came_of(BatchHttpHandler(to_request), ROWS, **batches)
    if arrow:
        assert {row["outcome"] for row in rows} == {"failed"}
        assert "leave out arrow_columns" in rows[0]["error"]["message"]
        assert server.seen == []
    else:
        assert [(row["outcome"], row["result"]["status"]) for row in rows] == [("ok", 200)] * 3
        assert len(server.seen) == 1


def test_rows_of_spark_have_the_same_requests_and_answers_as_records(serve: "Callable[..., Server]") -> None:
    refused = iter([True])

    def answer(seen: Seen) -> Answer:
        return Answer(503) if seen.body == b"b" and next(refused, False) else Answer(201, {"A": "1"}, b"done")

    server = serve(answer)
    handler = HttpHandler(lambda row: Request("POST", f"{server.url}/", body=row.value))
    rows = came_of(handler, ROWS)

    assert {row["outcome"] for row in rows} == {"ok"}
    assert all((row["result"]["status"], row["result"]["body"]) == (201, "done") for row in rows)
    assert all(dict(row["result"]["headers"])["A"] == "1" for row in rows)
    assert sorted((seen.body, seen.key) for seen in server.seen) == [
        (b"a", "orders-1-0-4"),
        (b"b", "orders-1-0-5"),
        (b"b", "orders-1-0-5"),
        (b"c", "orders-1-0-6"),
    ]


def test_a_row_without_an_id_is_not_sent_where_a_repeated_request_would_do_its_work_twice(
    serve: "Callable[..., Server]",
) -> None:
    server = serve(lambda seen: Answer(200))
    columns = {"value": [b"a"]}
    rows = came_of(HttpHandler(lambda row: Request("POST", f"{server.url}/", body=row.value)), columns)
    assert (rows[0]["outcome"], rows[0]["attempts"], server.seen) == ("failed", 1, [])
    assert "no id for Idempotency-Key" in rows[0]["error"]["message"]

    own = HttpHandler(lambda row: Request("POST", f"{server.url}/", headers={"idempotency-key": "7"}))
    without = HttpHandler(lambda row: Request("POST", f"{server.url}/"), idempotency_key=False)
    assert [came_of(handler, columns)[0]["outcome"] for handler in (own, without)] == ["ok", "ok"]


# A server


class Seen(NamedTuple):
    """A request as it came, and when, in seconds of the monotonic clock."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def key(self) -> str:
        """The record's address."""
        return self.headers["Idempotency-Key"]


class Answer(NamedTuple):
    """What to answer."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b"{}"


DROP = Answer(0)  # no answer: the connection is closed


class Server(http.server.ThreadingHTTPServer):
    """A server that answers as it is told, and notes what it was asked. A thread for each connection."""

    daemon_threads = False  # so that closing waits for them
    request_queue_size = 128

    def __init__(self, answer: Callable[[Seen], Answer] = lambda seen: Answer(), port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Connection)
        self.answer = answer
        self.seen: list[Seen] = []
        self.answered: list[tuple[Seen, int]] = []
        self.most_at_a_time = 0
        self.released = threading.Event()  # ends the wait of answers that wait for it
        self.lock = threading.Lock()
        self.now = 0
        self.connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        return self.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Die: connections break, whatever is on them."""
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.break_connections()
        self.server_close()

    def break_connections(self) -> None:
        """Whatever is on them."""
        with self.lock:
            for connection in self.connections:
                with contextlib.suppress(OSError):  # the client was first
                    connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note the connection before it has a thread."""
        with self.lock:
            self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The connection has ended."""
        with self.lock:
            self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""


class _Connection(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written one after the other
    server: Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = Seen(self.command, self.path, dict(self.headers), body, time.monotonic())
        with self.server.lock:
            self.server.seen.append(seen)
            self.server.now += 1
            self.server.most_at_a_time = max(self.server.most_at_a_time, self.server.now)
        try:
            answer = self.server.answer(seen)
        finally:
            with self.server.lock:
                self.server.now -= 1
        self._send(seen, answer)

    do_GET = do_POST = _serve  # noqa: N815 - the names are the library's

    def _send(self, seen: Seen, answer: Answer) -> None:
        if answer is DROP:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
        with self.server.lock:
            self.server.answered.append((seen, answer.status))

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers, which end with the test."""
    servers: list[Server] = []

    def start(*arguments: Any, **options: Any) -> Server:
        servers.append(Server(*arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(serve: Callable[..., Server]) -> Iterator[None]:
    """A client that was not closed complains when it is collected, and a warning is an error."""
    yield
    gc.collect()


# Records


def post(server: Server) -> Callable[[ConsumerRecord], Request]:
    return lambda record: Request("POST", f"{server.url}/bills", body=record.value)


def letters(cluster: Cluster, topic: str, count: int) -> list[dict[str, str]]:
    """The first dead letters of a topic, each as what its headers say."""
    client = ck.Consumer(cluster.config({"log_level": 0, "group.id": "reader", "auto.offset.reset": "earliest"}))
    client.subscribe([topic])
    messages = client.consume(count, 30)
    client.close()
    headers = [cast(list[tuple[str, bytes]], message.headers()) for message in messages]
    return [{name.removeprefix("headway.error."): value.decode() for name, value in each} for each in headers]


class Run:
    """A consumer whose handler is a handler of requests; stops when so many records are done."""

    def __init__(self, cluster: Cluster, topic: str, until: int, **options: Any) -> None:
        self.consumer = consumer(
            cluster, topic, {"retries": Retries(fixed_backoff(0.05)), "max_concurrency": 50} | options
        )
        self.done: list[ConsumerRecord] = []
        self._until = until

    def __call__(self, to_request: Callable[[ConsumerRecord], Request], **options: Any) -> None:
        """Until all is done."""
        self.consumer.run(HttpHandler(to_request, on_response=self._note, **options))

    def _note(self, record: ConsumerRecord, response: Response) -> None:
        self.done.append(record)
        if len(self.done) == self._until:
            self.consumer.stop()


def test_every_record_has_exactly_one_good_answer(kafka_cluster: Cluster, serve: Callable[..., Server]) -> None:
    topic, count, together = plain_topic(kafka_cluster), 300, threading.Barrier(20)

    def answer(seen: Seen) -> Answer:
        together.wait(30)
        return Answer()

    server = serve(answer)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    Run(kafka_cluster, topic, count)(post(server), per_host=20)
    assert sorted(int(seen.body) for seen in server.seen) == list(range(count))
    assert {seen.key.rpartition("-")[0] for seen in server.seen} <= {f"{topic}-{partition}" for partition in range(4)}
    assert len({seen.key for seen in server.seen}) == count
    assert server.most_at_a_time == 20


def test_server_errors_are_tried_again_with_the_same_key_until_it_goes_well(
    kafka_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    topic, count = plain_topic(kafka_cluster), 20
    attempts: Counter[str] = Counter()

    def answer(seen: Seen) -> Answer:
        attempts[seen.key] += 1
        return Answer(200 if attempts[seen.key] == 3 else 500)

    server = serve(answer)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    Run(kafka_cluster, topic, count)(post(server))
    assert set(attempts.values()) == {3}
    assert Counter(status for _, status in server.answered) == {500: 2 * count, 200: count}


@pytest.mark.quick("seconds")
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_holds_back_all_requests_to_that_host_and_no_others(
    kafka_cluster: Cluster, serve: Callable[..., Server], form: str
) -> None:
    topic, dead, count, wait = plain_topic(kafka_cluster), plain_topic(kafka_cluster), 30, 5

    def answer(seen: Seen) -> Answer:
        if len(busy.seen) > 1:
            return Answer()
        date = email.utils.formatdate(time.time() + wait, usegmt=True)
        return Answer(429, {"Retry-After": str(wait) if form == "seconds" else date})

    busy, other = serve(answer), serve()
    # More for the busy host than there are slots, and before the others: it keeps none of them.
    send(kafka_cluster, topic, [(None, "busy")] * count + [(None, "other")] * count, partition=0)
    run = Run(
        kafka_cluster,
        topic,
        2 * count,
        ordering=Ordering.UNORDERED,
        max_concurrency=4,
        retries=Retries(fixed_backoff(0.05), max_attempts=2),  # to be held back is no attempt, so no dead letter
        dead_letter_topic=dead,
    )
    run(lambda record: post(busy if record.value == b"busy" else other)(record), per_host=1)
    refused, *later = busy.seen
    assert len(later) == len(other.seen) == count
    # The server writes its Date, and reads the clock, up to a second apart.
    assert later[0].at - refused.at >= (wait if form == "seconds" else wait - 1)
    assert max(seen.at for seen in other.seen) < later[0].at
    assert Counter(seen.key for seen in busy.seen)[refused.key] == 2


def test_a_wait_that_is_too_long_is_cut(kafka_cluster: Cluster, serve: Callable[..., Server]) -> None:
    topic, statuses = plain_topic(kafka_cluster), iter([503, 200])
    server = serve(lambda seen: Answer(next(statuses), {"Retry-After": "86400"}))
    send(kafka_cluster, topic, [("a", "1")])
    Run(kafka_cluster, topic, 1)(post(server), max_retry_after=0.5)
    assert 0.5 <= server.seen[1].at - server.seen[0].at < 20


def test_another_4xx_becomes_a_dead_letter_that_says_what_happened(
    kafka_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    server = serve(lambda seen: Answer(404 if seen.body == b"bad" else 200))
    send(kafka_cluster, topic, [("a", "bad"), ("a", "good")])
    Run(kafka_cluster, topic, 1, dead_letter_topic=dead)(post(server))
    [letter] = letters(kafka_cluster, dead, 1)
    assert letter["exception"] == "headway.errors.FatalError"
    assert letter["attempts"] == "1"
    assert letter["message"] == (
        f"POST {server.url}/bills got the response 404 Not Found. "
        "If this means that the record is done, add the status to `accept`."
    )


def test_a_host_has_no_more_requests_than_its_places_while_another_goes_on(
    kafka_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    topic, count = plain_topic(kafka_cluster), 20
    others_are_done, places, order = threading.Event(), threading.Barrier(3), itertools.count()

    def answer(seen: Seen) -> Answer:
        if next(order) < places.parties:
            places.wait(30)
        assert others_are_done.wait(30)
        return Answer()

    def answer_other(seen: Seen) -> Answer:
        if len(other.seen) == count:
            others_are_done.set()
        return Answer()

    slow, other = serve(answer), serve(answer_other)
    send(kafka_cluster, topic, [(None, "slow")] * count + [(None, "other")] * count, partition=0)
    run = Run(kafka_cluster, topic, 2 * count, ordering=Ordering.UNORDERED)
    run(lambda record: post(slow if record.value == b"slow" else other)(record), per_host=places.parties, timeout=30.0)
    assert slow.most_at_a_time == places.parties
    assert len(slow.seen) == len(other.seen) == count


def test_a_server_that_hangs_costs_a_timeout_and_is_asked_again(
    kafka_cluster: Cluster, serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    topic = plain_topic(kafka_cluster)

    def answer(seen: Seen) -> Answer:
        if len(server.seen) == 1:
            server.released.wait(30)
        return Answer()

    server = serve(answer)
    send(kafka_cluster, topic, [("a", "1")])
    Run(kafka_cluster, topic, 1)(post(server), timeout=2.0)
    assert len(server.seen) == 2
    assert f"POST {server.url}/bills got no complete response within 2 s." in caplog.text


def test_a_server_that_dies_in_the_midst_and_comes_back_loses_nothing(
    kafka_cluster: Cluster, serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    topic, count = plain_topic(kafka_cluster), 200
    enough, died = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Answer:
        if len(first.seen) >= count // 4:  # some are answered, some are under way
            enough.set()
            assert died.wait(30)
            return DROP  # the dead answer nobody
        return Answer()

    first = serve(answer)
    second: list[Server] = []

    def die_and_come_back() -> None:
        assert enough.wait(30)
        first.break_connections()
        died.set()
        first.close()
        wait_for(lambda: "failed: " in caplog.text)
        second.append(serve(port=first.port))

    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(count)])
    killer = threading.Thread(target=die_and_come_back)
    killer.start()
    run = Run(kafka_cluster, topic, count)
    run(post(first))
    killer.join()
    assert {int(record.value) for record in run.done} == set(range(count))
    answered = {seen.key for seen, _ in first.answered} | {seen.key for seen, _ in second[0].answered}
    assert len(answered) == count
    assert second[0].answered


def refuse(seen: Seen) -> Answer:
    return Answer(404, {"X-Echo": SECRET}, SECRET.encode())


def fail_first(status: Answer) -> Callable[[Seen], Answer]:
    """The first is answered so, the second with 404."""
    count = iter(range(2))
    return lambda seen: status if next(count) == 0 else refuse(seen)


@pytest.mark.parametrize(
    "answer",
    [refuse, fail_first(Answer(500)), fail_first(Answer(429, {"Retry-After": "1"})), fail_first(DROP)],
    ids=["4xx", "5xx", "held", "dropped"],
)
def test_no_secret_is_in_logs_or_errors(
    kafka_cluster: Cluster, serve: Callable[..., Server], caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    topic, server = plain_topic(kafka_cluster), serve(answer)
    caplog.set_level("DEBUG")
    send(kafka_cluster, topic, [("a", "1")])

    def to_request(record: ConsumerRecord) -> Request:
        url = server.url.replace("//", f"//me:{SECRET}@") + f"/bills?token={SECRET}"
        return Request("POST", url, headers={"X-Key": SECRET}, json=SECRET)

    with pytest.raises(HandlerError) as raised:
        Run(kafka_cluster, topic, 1)(to_request)
    assert SECRET in repr(server.seen)  # it was sent
    assert SECRET not in "".join(traceback.format_exception(raised.value)) + caplog.text
    assert f"{server.url}/bills" in str(raised.value)


# The client's life


def test_the_client_is_closed_when_run_ends_and_the_handler_can_be_used_again(
    kafka_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    server, sessions = serve(), list[aiohttp.ClientSession]()

    def session() -> aiohttp.ClientSession:
        sessions.append(open_session())
        loops.append(weakref.ref(asyncio.get_running_loop()))
        return sessions[-1]

    done = threading.Event()
    loops = list["weakref.ref[asyncio.AbstractEventLoop]"]()
    handle = HttpHandler(post(server), session=session, on_response=lambda record, response: done.set())
    for _ in range(2):
        topic = plain_topic(kafka_cluster)
        send(kafka_cluster, topic, [("a", "1")])
        parallel = consumer(kafka_cluster, topic)
        stopper = threading.Thread(target=lambda closing=parallel: (done.wait(30), closing.stop()))
        stopper.start()
        parallel.run(handle)
        stopper.join()
        done.clear()
        assert sessions[-1].closed
    assert len(sessions) == len(server.seen) == 2
    del parallel, stopper
    sessions.clear()
    gc.collect()
    assert not any(loop() for loop in loops)  # nor is a loop that ended remembered
    wait_for(lambda: not server.connections)


INTERRUPTED = """
import sys
from headway import ParallelConsumer
from headway.http import HttpHandler, Request

servers, topic, url = sys.argv[1:]
config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
with ParallelConsumer(config) as consumer:
    consumer.subscribe(topic)
    consumer.run(HttpHandler(lambda record: Request("POST", url, body=record.value), timeout=60.0))
"""


@pytest.mark.slow
def test_ctrl_c_in_the_midst_of_requests_ends_without_complaints(
    kafka_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    topic = plain_topic(kafka_cluster)

    def answer(seen: Seen) -> Answer:
        if len(server.seen) > 5:
            server.released.wait(60)
        return Answer()

    server = serve(answer)
    send(kafka_cluster, topic, [(f"key-{i}", str(i)) for i in range(30)])
    command = [sys.executable, "-X", "dev", "-c", INTERRUPTED, kafka_cluster.bootstrap_servers, topic, server.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: server.now >= 10 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
    lines = complaints.splitlines()
    assert lines[-1] == "KeyboardInterrupt"
    # asyncio's debug mode tells of steps over 0.1 s, which a busy machine has.
    told = "\n".join(line for line in lines if not line.startswith("Executing <"))
    assert not re.search(r"[Uu]nclosed|Warning|Task|never", told), told


# Without Kafka: what one request does


class Message:
    """As a Kafka client has it."""

    topic, partition, offset = (lambda self: "orders-1"), (lambda self: 3), (lambda self: 42)

    def __init__(self, headers: list[Header] | None = None) -> None:
        self._headers = headers

    def headers(self) -> list[Header] | None:
        return self._headers


def record_with(headers: list[Header] | None = None) -> ConsumerRecord:
    source = RecordSource(1, "-1", lambda message: None, lambda message: None)
    return ConsumerRecord(Message(headers), source, b"1")  # type: ignore[arg-type]


RECORD = record_with()
CONTEXT = cast(Context, None)  # which it does not look at


async def handled(
    to_request: Callable[[ConsumerRecord], Request], record: ConsumerRecord = RECORD, **options: Any
) -> Response:
    """The answer to one request of a client that ends with its loop."""
    return await HttpHandler(to_request, **options)(record, CONTEXT)


@pytest.mark.parametrize(
    ("method", "headers", "options", "key"),
    [
        ("POST", {}, {}, "orders-1-3-42"),
        ("POST", {"idempotency-key": "mine"}, {}, "mine"),
        ("POST", {}, {"idempotency_key": False}, None),
        ("GET", {}, {}, None),
    ],
)
def test_a_post_has_the_address_of_its_record_as_its_key(
    serve: Callable[..., Server], method: str, headers: dict[str, str], options: dict[str, Any], key: str | None
) -> None:
    server = serve()
    asyncio.run(handled(lambda record: Request(method, server.url, headers=headers), **options))
    names = {name.lower(): value for name, value in server.seen[0].headers.items()}
    assert names.get("idempotency-key") == key


def test_a_record_that_was_sent_on_keeps_the_key_of_its_origin(serve: Callable[..., Server]) -> None:
    server = serve()
    for topic in ("orders-1", "another"):  # a history of another topic was copied, and is none
        sent_on = record_with([History(topic, Origin("orders-1", 0, 7)).header()])
        asyncio.run(handled(lambda record: Request("POST", server.url), sent_on))
    assert [seen.key for seen in server.seen] == ["orders-1-0-7", "orders-1-3-42"]


def test_the_answer_is_what_the_handler_returns(serve: Callable[..., Server]) -> None:
    server = serve(lambda seen: Answer(201, {"X-Bill": "7"}, seen.body))
    response = asyncio.run(handled(lambda record: Request("POST", server.url, json={"order": 1})))
    assert (response.status, response.headers["x-bill"], response.json()) == (201, "7", {"order": 1})
    assert server.seen[0].headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("options", "sent", "media_type"),
    [
        ({"body": "é"}, "é".encode(), "text/plain; charset=utf-8"),
        ({"body": b"1"}, b"1", "application/octet-stream"),
        ({"body": b"x" * (5 << 20)}, b"x" * (5 << 20), "application/octet-stream"),
        ({"json": []}, b"[]", "application/json"),
        ({"json": {}, "headers": {"content-type": "application/ld+json"}}, b"{}", "application/ld+json"),
        ({}, b"", None),
    ],
    ids=["text", "bytes", "many bytes", "JSON", "a type of its own", "nothing"],
)
def test_a_body_is_sent_whole_and_with_its_type(
    serve: Callable[..., Server], options: dict[str, Any], sent: bytes, media_type: str | None
) -> None:
    server = serve()
    asyncio.run(handled(lambda record: Request("GET" if not options else "POST", server.url, **options)))
    [seen] = server.seen
    assert seen.body == sent
    assert {name.lower(): value for name, value in seen.headers.items()}.get("content-type") == media_type


def test_a_body_of_any_length_is_read_only_so_far(serve: Callable[..., Server]) -> None:
    sent = b"x" * (20 << 20)
    server = serve(lambda seen: Answer(200, {}, sent))
    response = asyncio.run(handled(post(server), max_body=1000))
    assert (response.body, response.truncated) == (b"x" * 1000, True)
    assert not server.answered  # nobody read it to its end
    whole = asyncio.run(handled(post(server), max_body=len(sent)))
    assert (len(whole.body), whole.truncated) == (len(sent), False)


def test_a_redirect_is_not_followed(serve: Callable[..., Server]) -> None:
    server = serve(lambda seen: Answer(307, {"Location": "/elsewhere"}))
    with pytest.raises(FatalError, match="307 Temporary Redirect, but redirects are not followed"):
        asyncio.run(handled(post(server)))
    assert [seen.path for seen in server.seen] == ["/bills"]


def test_a_status_that_is_accepted_means_done(serve: Callable[..., Server]) -> None:
    server = serve(lambda seen: Answer(409))
    assert asyncio.run(handled(post(server), accept={409})).status == 409
    with pytest.raises(FatalError, match="409 Conflict"):
        asyncio.run(handled(post(server)))


def test_a_good_answer_can_be_refused(serve: Callable[..., Server]) -> None:
    def check(record: ConsumerRecord, response: Response) -> None:
        raise RetriableError(f"{record!r}: {response.json()['state']}", retry_after=5)

    server = serve(lambda seen: Answer(body=b'{"state": "pending"}'))
    with pytest.raises(RetriableError, match="pending") as raised:
        asyncio.run(handled(post(server), on_response=check))
    assert raised.value.retry_after == 5


def test_an_attempt_that_was_held_back_says_that_it_does_not_count(serve: Callable[..., Server]) -> None:
    server = serve(lambda seen: Answer(503, {"Retry-After": "60"}))
    handle = HttpHandler(post(server))

    async def raised() -> RetriableError:
        with pytest.raises(RetriableError) as raised:
            await handle(RECORD, CONTEXT)
        return raised.value

    async def twice() -> list[bool]:
        return [(await raised()).untried, (await raised()).untried]

    assert asyncio.run(twice()) == [False, True]
    assert len(server.seen) == 1


def test_no_cookie_of_one_record_is_sent_with_another(serve: Callable[..., Server]) -> None:
    server = serve(lambda seen: Answer(200, {"Set-Cookie": "session=1"}))
    url = server.url.replace("127.0.0.1", "localhost")  # an address would get no cookies from anybody
    handle = HttpHandler(lambda record: Request("POST", url))

    async def twice() -> None:
        for _ in range(2):
            await handle(RECORD, CONTEXT)

    asyncio.run(twice())
    assert not any("Cookie" in seen.headers for seen in server.seen)


@pytest.mark.parametrize(
    "request_", [Request("POST", "http://127.0.0.1:1", json=object()), Request("A B", "http://127.0.0.1:1")]
)
def test_what_cannot_be_sent_is_not_tried_again(request_: Request) -> None:
    with pytest.raises(FatalError, match="cannot be sent"):
        asyncio.run(handled(lambda record: request_))


def test_a_server_that_is_not_there_is_tried_again() -> None:
    with socket.socket() as unheard:  # bound, and not listening
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        with pytest.raises(RetriableError, match=r"failed: Connect call failed|refused"):
            asyncio.run(handled(lambda record: Request("GET", url)))


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_a_certificate_that_cannot_be_verified_gets_no_request(serve: Callable[..., Server], tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = serve()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    with pytest.raises(RetriableError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(handled(lambda record: Request("GET", url)))
    assert not server.seen
    trusting = ssl.create_default_context(cafile=certificate)

    def session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting))

    assert asyncio.run(handled(lambda record: Request("GET", url), session=session)).status == 200


# The document


def test_the_programs_of_the_document_run(kafka_cluster: Cluster, serve: Callable[..., Server]) -> None:
    program, *others = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    topic, dead = plain_topic(kafka_cluster), plain_topic(kafka_cluster)
    finished = threading.Event()

    def answer(seen: Seen) -> Answer:
        if len(server.seen) == 10:
            finished.set()
        return Answer()

    server = serve(answer)
    send(kafka_cluster, topic, [(f"key-{i}", f"order {i}") for i in range(10)])
    program = program.replace("localhost:9092", kafka_cluster.bootstrap_servers).replace(
        "127.0.0.1:8080", server.url[7:]
    )
    program = program.replace('"orders"', repr(topic)).replace('"orders-dead"', repr(dead))
    names: dict[str, Any] = {}
    stopper = threading.Thread(target=lambda: (finished.wait(60), names["consumer"].stop()))
    stopper.start()
    exec(compile(program, "docs/http.md", "exec"), names)  # noqa: S102 - our own text
    stopper.join()
    assert sorted(seen.body for seen in server.seen) == sorted(b'{"order": "order %d"}' % i for i in range(10))
    for other in others:
        exec(compile(other, "docs/http.md", "exec"), {})  # noqa: S102 - our own text


def test_who_looks_at_the_answer_may_be_a_coroutine_function(
    kafka_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    topic, checked = plain_topic(kafka_cluster), list[int]()

    async def check(record: ConsumerRecord, response: Response) -> None:
        await asyncio.sleep(0)
        checked.append(response.status)
        if len(checked) < 3:
            raise RetriableError("not yet")
        parallel.stop()

    server = serve()
    send(kafka_cluster, topic, [("key", "value")])
    parallel = consumer(kafka_cluster, topic, {"retries": Retries(fixed_backoff(0.05))})
    parallel.run(HttpHandler(post(server), on_response=check))
    assert checked == [200, 200, 200]


# Batches


class PlacedMessage(Message):
    """A message at an offset of its own, with a value."""

    def __init__(self, value: str, offset: int) -> None:
        super().__init__()
        self._value, self._offset = value.encode(), offset

    def value(self) -> bytes:
        return self._value

    def offset(self) -> int:
        return self._offset


def record_of(value: str, offset: int = 42) -> ConsumerRecord:
    source = RecordSource(1, "-1", PlacedMessage.value, PlacedMessage.value)  # type: ignore[arg-type]
    message: Any = PlacedMessage(value, offset)
    return ConsumerRecord(message, source, value.encode())


JSON = {"Content-Type": "application/json; charset=utf-8"}


def many(server: Server) -> Callable[[Sequence[ConsumerRecord]], Request]:
    return lambda records: Request(
        "POST", f"{server.url}/many", json={"records": [record.value.decode() for record in records]}
    )


def named(*failures: Mapping[str, Any]) -> Answer:
    return Answer(200, JSON, json.dumps({"failures": failures}).encode())


def test_of_a_batch_those_that_the_answer_names_are_tried_again_or_dead_and_no_others(
    kafka_cluster: Cluster, serve: Callable[..., Server]
) -> None:
    topic, dead = topic_of(kafka_cluster, 1), plain_topic(kafka_cluster)

    def answer(seen: Seen) -> Answer:
        values = json.loads(seen.body)["records"]
        failures: list[dict[str, Any]] = []
        if "3" in values:
            failures.append({"index": values.index("3"), "error": "no such order", "retry": False})
        if "7" in values and sum(b'"7"' in each.body for each in server.seen) < 3:
            failures.append({"index": values.index("7"), "error": "not yet", "retry_after": 0.05})
        return named(*failures)

    server = serve(answer)
    send(kafka_cluster, topic, [("key", str(i)) for i in range(20)])
    options = {"retries": Retries(fixed_backoff(0.01)), "dead_letter_topic": dead}
    with consumer(kafka_cluster, topic, options) as parallel:

        def stop() -> None:
            wait_for(lambda: parallel.metrics().done == 20)
            parallel.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        parallel.run(BatchHttpHandler(many(server)), batches=Batches(20, 0.5))
        stopper.join()
    asked = Counter(value for seen in server.seen for value in json.loads(seen.body)["records"])
    assert asked == Counter({str(i): 1 for i in range(20)} | {"7": 3})
    [letter] = letters(kafka_cluster, dead, 1)
    assert letter["message"] == "no such order"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(), None),
        (Answer(200, JSON, b""), None),
        (Answer(204, body=b""), None),
        (Answer(200, {"Content-Type": "text/html"}, b"<p>" * 1000), None),
        (named(), None),
        (named({"index": 0}, {"index": 1, "retry": False}), BatchError),
        (named({"index": 2}), RetriableError),
        (named({"index": True}), RetriableError),
        (named({}), RetriableError),
        (Answer(200, JSON, b'{"failures": 3}'), RetriableError),
        (Answer(200, JSON, b"{"), RetriableError),
        (Answer(200, JSON, b"[" * 90), RetriableError),
        (Answer(200, JSON, b'{"failures": []}' + b" " * 1000), RetriableError),
        (Answer(503), RetriableError),
        (Answer(404), FatalError),
    ],
)
def test_what_an_answer_says_of_a_batch(
    serve: Callable[..., Server], answer: Answer, error: type[Exception] | None
) -> None:
    server = serve(lambda seen: answer)
    records = [record_of("a"), record_of("b")]

    async def handled_together() -> Response:
        return await BatchHttpHandler(many(server), max_body=100)(records)

    if error is None:
        assert asyncio.run(handled_together()).status == answer.status
    else:
        with pytest.raises(error) as raised:
            asyncio.run(handled_together())
        if isinstance(raised.value, BatchError):
            assert [type(each) for each in raised.value.failures.values()] == [RetriableError, FatalError]


def test_the_same_batch_has_the_same_idempotency_key_and_another_one_has_another(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    first, second = record_of("a", offset=1), record_of("b", offset=2)

    async def send_three() -> None:
        handle = BatchHttpHandler(many(server))
        for batch in ([first, second], [first, second], [second]):
            await handle(batch)

    asyncio.run(send_three())
    keys = [seen.key for seen in server.seen]
    assert keys[0] == keys[1] != keys[2]
