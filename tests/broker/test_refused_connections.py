"""Brokers that do not let a client in, on a secured Apache Kafka: every client says so, with the reason, in seconds."""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headway import (
    AsyncPriorityConsumer,
    AsyncProducer,
    AsyncScheduler,
    ParallelConsumer,
    PriorityConsumer,
    Producer,
    Relay,
    Scheduler,
)
from headway.broker import LocalBroker
from headway.broker.certificates import Authority
from headway.errors import AuthenticationError, KafkaError
from headway.kafka.admin import Admin
from headway.kafka.binding import connection
from headway.kafka.reading.group_inspector import GroupInspector

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Config = dict[str, Any]

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_PROPERTIES = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
    "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": (
        f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    ),
    "listener.name.sasl_ssl.connections.max.reauth.ms": "2000",
}
PATIENCE = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A secured broker that takes tokens as well, and asks for each login again after two seconds."""
    with LocalBroker(secure=True, properties=_PROPERTIES) as started:
        yield started


# Ten mistakes


def bad_token(_: str) -> tuple[str, float]:
    return "no-token", time.time() + 3600


@contextlib.contextmanager
def tls_server(certificate: Path) -> Iterator[str]:
    """The address of a server that shows this certificate, and closes each connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # it is shut down
                while True:
                    client, _ = server.accept()
                    client.settimeout(1)
                    with client, contextlib.suppress(OSError), context.wrap_socket(client, server_side=True) as tls:
                        tls.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


class Mistake(NamedTuple):
    config: Config
    reason: str
    advice: str


MISTAKES = (
    "wrong password",
    "unknown user",
    "wrong mechanism",
    "bad token",
    "untrusted authority",
    "expired server certificate",
    "server certificate of another host",
    "expired client certificate",
    "TLS on a plaintext port",
    "plaintext on a TLS port",
    "no login where one is asked for",
)


@pytest.fixture(scope="module")
def mistakes(
    broker: LocalBroker, headway_broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Mistake]]:
    """Settings of a client with each mistake."""
    directory = tmp_path_factory.mktemp("certificates")
    stranger = Authority(directory)
    stranger.make()
    authority = Authority(broker.config_file().parent)
    expired, expired_server, other_host = (directory / name for name in ("a.pem", "b.pem", "c.pem"))
    authority.issue("app", expired, lifetime=timedelta(seconds=-60))
    authority.issue("server", expired_server, hosts=["127.0.0.1"], lifetime=timedelta(seconds=-60))
    authority.issue("server", other_host, hosts=["kafka.example"])
    by_password, by_certificate = broker.client_config(), broker.client_config(certificate=True)
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    tls = {key: by_password[key] for key in ("bootstrap.servers", "ssl.ca.location")} | {"security.protocol": "SSL"}
    token = {**tls, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": bad_token}
    login = "sasl.username, sasl.password"
    with tls_server(expired_server) as late, tls_server(other_host) as elsewhere:
        made = [
            Mistake({**by_password, "sasl.password": "guessed"}, "invalid credentials", login),
            Mistake({**by_password, "sasl.username": "nobody"}, "invalid credentials", login),
            Mistake({**by_password, "sasl.mechanism": "PLAIN"}, "Unsupported SASL mechanism", "Set sasl.mechanism"),
            Mistake(token, "SASL authentication error", "oauth_cb"),
            Mistake(
                {**by_password, "ssl.ca.location": str(stranger.certificate)},
                "certificate verify failed",
                "ssl.ca.location",
            ),
            Mistake({**by_password, "bootstrap.servers": late}, "certificate verify failed", "must be valid now"),
            Mistake({**by_password, "bootstrap.servers": elsewhere}, "certificate verify failed", "name the host"),
            Mistake(
                {**by_certificate, "ssl.certificate.location": str(expired), "ssl.key.location": str(expired)},
                "alert certificate",
                "ssl.certificate.location",
            ),
            Mistake({**by_password, "bootstrap.servers": headway_broker.bootstrap_servers}, "SSL", "security.protocol"),
            Mistake(servers, "Disconnected", "security.protocol"),
            Mistake(tls, "Disconnected", "require a login"),
        ]
        yield dict(zip(MISTAKES, made, strict=True))


# The clients


def produce(config: Config) -> None:
    with Producer(config) as producer:
        producer.send("orders", b"one").result(PATIENCE)


def produce_with_keys(config: Config) -> None:
    with Producer({**config, "levels": 2, "value.serializer": lambda text: text.encode()}) as producer:
        sent = [producer.send("orders", "x" * 1000, f"key {i}", level=i % 2) for i in range(1000)]
        errors = {type(future.exception(PATIENCE)) for future in sent}
        assert len(errors) == 1
        assert producer.metrics().failed == [500, 500]  # nothing is left behind
        sent[0].result(0)


def produce_in_transactions(config: Config) -> None:
    with Producer({**config, "transactional.id": uuid.uuid4().hex}) as producer:
        producer.init_transactions(PATIENCE)


def produce_async(config: Config) -> None:
    async def run() -> None:
        async with AsyncProducer({**config, "levels": 2}) as producer:
            await producer.send("orders", b"one", level=1)

    asyncio.run(run())


def consumer_config(config: Config) -> Config:
    return {**config, "group.id": "billing", "levels": 2, "max.poll.records": 10}


def poll(config: Config) -> None:
    with PriorityConsumer(consumer_config(config)) as consumer:
        consumer.subscribe("orders")
        consumer.poll(PATIENCE)


def iterate(config: Config) -> None:
    with PriorityConsumer(consumer_config(config)) as consumer:
        consumer.subscribe("orders")
        next(consumer)


def iterate_async(config: Config) -> None:
    async def run() -> None:
        async with AsyncPriorityConsumer(consumer_config(config)) as consumer:
            consumer.subscribe("orders")
            await anext(consumer)

    asyncio.run(run())


def handle(config: Config) -> None:
    with ParallelConsumer({**config, "group.id": "billing"}) as consumer:
        consumer.subscribe("orders")
        consumer.run(lambda record, context: None)


def handle_with_outputs(config: Config) -> None:
    with ParallelConsumer({**config, "group.id": "billing"}, commit_mode="transactional") as consumer:
        consumer.subscribe("orders")
        consumer.run_and_produce(lambda record, context: None)


def relay(config: Config) -> None:
    with Relay(config) as running:
        running.run()


def schedule(config: Config) -> None:
    with Scheduler(config) as scheduler:
        scheduler.send_later(None, b"one", "orders", 1)


def schedule_async(config: Config) -> None:
    async def run() -> None:
        async with AsyncScheduler(config) as scheduler:
            await scheduler.send_later(None, b"one", "orders", 1)

    asyncio.run(run())


def list_topics(config: Config) -> None:
    Admin(config).topics()


CLIENTS: Mapping[str, Callable[[Config], None]] = {
    each.__name__: each
    for each in (
        produce,
        produce_with_keys,
        produce_in_transactions,
        produce_async,
        poll,
        iterate,
        iterate_async,
        handle,
        handle_with_outputs,
        relay,
        schedule,
        schedule_async,
        list_topics,
    )
}


class Lines:
    """A `logger` for one client, that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: int, message: str, *args: Any) -> None:
        self.lines.append(message % args)


class Told(NamedTuple):
    error: BaseException | None
    seconds: float
    lines: list[str]


Cell = tuple[str, str]
"""A client and a mistake."""


def tell(cells: Iterable[Cell], mistakes: Mapping[str, Mistake]) -> dict[Cell, Told]:
    """Return what became of each client with its mistake; all at the same time, as each of them only waits."""

    def run(client: str, mistake: str) -> Told:
        lines, began = Lines(), time.monotonic()
        try:
            CLIENTS[client]({**mistakes[mistake].config, "logger": lines})
        except Exception as error:
            return Told(error, time.monotonic() - began, lines.lines)
        return Told(None, time.monotonic() - began, lines.lines)

    cells = list(cells)
    with ThreadPoolExecutor(len(cells)) as threads:
        return dict(zip(cells, threads.map(lambda cell: run(*cell), cells), strict=True))


def check(told: Mapping[Cell, Told], mistakes: Mapping[str, Mistake], within: float) -> None:
    for (client, mistake), (error, seconds, lines) in told.items():
        expected = mistakes[mistake]
        assert isinstance(error, KafkaError), (client, mistake, error)
        assert expected.reason in str(error), (client, mistake)
        assert expected.advice in str(error), (client, mistake)
        assert "guessed" not in str(error), (client, mistake)
        assert len([line for line in lines if line.startswith("FAIL")]) <= 1 + seconds // 10, (client, mistake)
        assert seconds < within, (client, mistake)


def test_each_client_that_is_not_let_in_says_why_and_what_to_check(mistakes: dict[str, Mistake]) -> None:
    cells = zip(CLIENTS, cycle(MISTAKES), strict=False)
    check(tell(cells, mistakes), mistakes, within=PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_says_of_each_mistake_why_it_is_not_let_in_and_what_to_check(
    client: str, mistakes: dict[str, Mistake]
) -> None:
    check(tell([(client, mistake) for mistake in MISTAKES], mistakes), mistakes, within=5 * 3)  # 3 s on an idle machine


def test_librdkafka_writes_nothing_to_stderr_and_a_users_error_cb_is_called(
    mistakes: dict[str, Mistake], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    heard = list[str]()
    config = {**mistakes["wrong password"].config, "error_cb": lambda error: heard.append(error.name())}
    with caplog.at_level(logging.INFO, "headway.librdkafka"), pytest.raises(AuthenticationError):
        poll(config)
    assert "_AUTHENTICATION" in heard
    assert len([each for each in caplog.records if each.name == "headway.librdkafka"]) <= 1
    assert config["bootstrap.servers"] not in capfd.readouterr().err


def test_a_result_that_does_not_come_in_time_says_what_hinders_it(mistakes: dict[str, Mistake]) -> None:
    with Producer(mistakes["wrong password"].config) as producer:
        future = producer.send("orders", b"one")

        def says_why() -> bool:
            try:
                future.result(0.2)
            except TimeoutError as error:
                return "invalid credentials" in str(error)
            return False

        wait_for(says_why)


def test_a_port_where_nobody_listens_is_no_refusal() -> None:
    with PriorityConsumer(consumer_config({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})) as consumer:
        consumer.subscribe("orders")
        assert consumer.poll(1.5 * connection.NEVER_LET_IN_AFTER) == []


# Credentials that change


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that is let in no more ends after seconds rather than half a minute."""
    monkeypatch.setattr(connection, "LET_IN_NO_MORE_AFTER", 3.0)
    monkeypatch.setattr(connection, "ASK_AGAIN_AFTER", 0.5)


class User(NamedTuple):
    name: str
    config: Config
    set_password: Callable[[str], None]


@pytest.fixture
def user(broker: LocalBroker, headway_topic: str) -> User:
    """A user who may do everything with two topics, and whose password can be changed."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    Admin(broker.admin_config).create([f"{headway_topic}-0"], 1)
    config = broker.add_user(name)
    for operation in ("Read", "Write"):
        broker.grant(name, operation, "Topic", headway_topic, prefixed=True)
    broker.grant(name, "Read", "Group", headway_topic, prefixed=True)

    def set_password(password: str) -> None:
        admin = AdminClient({**broker.admin_config, "log_level": 2})
        change = UserScramCredentialUpsertion(
            name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
        )
        [done] = admin.alter_user_scram_credentials([change]).values()
        done.result(PATIENCE)

    return User(name, {**config, "auto.offset.reset": "earliest", "reconnect.backoff.max.ms": 500}, set_password)


def test_a_member_that_is_let_in_no_more_ends_and_its_successor_loses_nothing(
    user: User, headway_topic: str, impatient: None
) -> None:
    ended: list[BaseException] = []
    handled = list[bytes | None]()
    groups = {"group.id": headway_topic, "levels": 1, "session.timeout.ms": 6000}

    def run(config: Config) -> ParallelConsumer:
        consumer = ParallelConsumer({**config, **groups})
        consumer.subscribe(headway_topic)

        def handle_until_it_ends() -> None:
            try:
                consumer.run(lambda record, context: handled.append(record.value))
            except KafkaError as error:
                ended.append(error)

        threading.Thread(target=handle_until_it_ends).start()
        return consumer

    def send(config: Config, values: list[bytes]) -> None:
        with Producer({**config, "levels": 1}) as producer:
            for value in values:
                producer.send(headway_topic, value)

    before, after = [b"%d" % i for i in range(50)], [b"%d" % i for i in range(50, 100)]
    send(user.config, before)
    with run(user.config) as first:
        wait_for(lambda: len(handled) == 50)
        first.request_commit()
        with GroupInspector(user.config, f"{headway_topic}-0") as group:
            wait_for(lambda: group.committed([(f"{headway_topic}-0", 0)]) != {})
        user.set_password("another")
        wait_for(lambda: bool(ended))
    [error] = ended
    assert isinstance(error, AuthenticationError)
    assert error.was_connected
    assert "The client was connected before" in str(error)
    renewed = {**user.config, "sasl.password": "another"}
    send(renewed, after)
    with run(renewed):
        wait_for(lambda: len(handled) >= 100)
    assert sorted(handled, key=lambda value: int(value or b"")) == before + after


def test_clients_that_are_let_in_no_more_say_so_and_go_on_with_the_credentials_that_they_are_told(
    user: User, headway_topic: str, impatient: None
) -> None:
    config = {**user.config, "levels": 1}
    consumer_settings = {**config, "group.id": headway_topic, "max.poll.records": 10}
    with Producer(config) as producer, PriorityConsumer(consumer_settings) as consumer:
        consumer.subscribe(headway_topic)
        producer.send(headway_topic, b"before").result(PATIENCE)
        assert next(consumer).value == b"before"
        user.set_password("another")
        with pytest.raises(AuthenticationError, match="The client was connected before") as raised:
            consumer.poll(PATIENCE)
        assert raised.value.was_connected
        future = producer.send(headway_topic, b"after")  # and waits, as credentials may come
        with pytest.raises(TimeoutError, match="invalid credentials"):
            future.result(0.5)
        producer.set_sasl_credentials(user.name, "another")
        consumer.set_sasl_credentials(user.name, "another")
        future.result(PATIENCE)
        assert next(consumer).value == b"after"


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
