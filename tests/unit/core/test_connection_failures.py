"""What librdkafka says of connections: which of it is a refusal, and what of it is logged."""

from typing import Any

import pytest

from headway.core.connection_failures import Refusals
from headway.errors import ConfigError
from headway.kafka.binding.client_log import ClientLog

LOGIN = (
    "sasl_ssl://kafka:9093/bootstrap: SASL authentication error: Authentication failed during authentication due to "
    "invalid credentials with SASL mechanism SCRAM-SHA-512 (after 333ms in state AUTH_REQ)"
)
AUTHORITY = (
    "ssl://kafka:9093/1: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker "
    "certificate could not be verified (after 8ms in state SSL_HANDSHAKE, 3 identical error(s) suppressed)"
)
ALERT = "ssl://kafka:9093/1: Receive failed: error:0A000416:SSL routines::ssl/tls alert certificate unknown: number 46"
CLOSED = "kafka:9092/bootstrap: Disconnected: connection closed by peer (after 1ms in state APIVERSION_QUERY)"
PLAIN = "ssl://kafka:9092/1: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?"
COORDINATOR = f"GroupCoordinator: {LOGIN}"
NOBODY = "kafka:9093/bootstrap: Connect to ipv4#10.0.0.1:9093 failed: Connection refused (after 0ms in state CONNECT)"
SLOW = "kafka:9093/bootstrap: Connection setup timed out in state CONNECT (after 30036ms in state CONNECT)"
UNKNOWN = "kafka:9093/bootstrap: Failed to resolve 'kafka:9093': Name or service not known"


@pytest.mark.parametrize(
    ("text", "certain", "advice"),
    [
        (LOGIN, True, "Check sasl.username, sasl.password"),
        (COORDINATOR, True, "Check sasl.username, sasl.password"),
        (AUTHORITY, True, "Check ssl.ca.location"),
        (ALERT, True, "Check ssl.certificate.location"),
        (CLOSED, False, "check security.protocol"),
        (PLAIN, False, "be for plain text"),
    ],
)
def test_what_is_said_again_and_again_is_a_refusal(text: str, certain: bool, advice: str) -> None:
    refusals = Refusals()
    assert refusals.note(text, 1.0)
    assert refusals.longest() is None  # once may be a broker that stops
    refusals.note(text, 4.0)
    found = refusals.longest()
    assert found is not None
    assert (found.since, found.last, found.certain) == (1.0, 4.0, certain)
    assert found.broker in found.sentence()
    assert advice in found.sentence()
    assert "in state" not in found.sentence()


@pytest.mark.parametrize("text", [NOBODY, SLOW, UNKNOWN])
def test_a_broker_that_is_away_is_none_and_ends_the_series_of_its_own(text: str) -> None:
    refusals = Refusals()
    refusals.note(LOGIN, 0.0)
    refusals.note(text, 1.0)
    refusals.note(LOGIN, 9.0)
    assert refusals.longest() is None
    refusals.note("other:9093/2: Connect to 10.0.0.2:9093 failed: Connection refused", 9.5)
    refusals.note(LOGIN, 10.0)
    assert refusals.longest()


def test_after_a_long_time_without_one_a_refusal_begins_a_new_series() -> None:
    refusals = Refusals()
    refusals.note(LOGIN, 0.0)
    refusals.note(LOGIN, 100.0)
    assert refusals.longest() is None


def test_a_connection_that_was_closed_without_a_word_makes_a_series_uncertain() -> None:
    refusals = Refusals()
    refusals.note(LOGIN, 0.0)
    refusals.note("kafka:9093/1: Disconnected (after 60000ms in state UP)", 1.0)
    refusals.note(LOGIN, 2.0)
    found = refusals.longest()
    assert found is not None
    assert not found.certain


def test_of_many_brokers_some_are_remembered() -> None:
    refusals = Refusals()
    for i in range(1000):
        refusals.note(f"kafka{i}:9093/{i}: SASL authentication error: no", float(i % 2))
    assert 1 < refusals.brokers <= 64


def test_the_last_reason_is_known_for_a_minute() -> None:
    refusals = Refusals()
    assert refusals.reason(0.0) == ""
    refusals.note(NOBODY, 0.0)
    assert refusals.reason(59.0) == "kafka:9093: Connect to ipv4#10.0.0.1:9093 failed: Connection refused"
    assert refusals.reason(61.0) == ""


def test_what_is_of_no_connection_is_nothing() -> None:
    assert not Refusals().note("1/1 brokers are down", 0.0)


class Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def log(self, level: int, message: str, *args: Any) -> None:
        self.lines.append((level, message % args))


def test_a_line_of_a_connection_is_logged_every_ten_seconds_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("headway.kafka.binding.client_log.time.monotonic", lambda: now)
    logger = Lines()
    config = {"bootstrap.servers": "kafka:9093", "logger": logger}
    clients = [ClientLog(config, lambda line: "refused" in line) for _ in range(3)]
    for tenth in range(300):
        now = tenth / 10
        for client in clients:
            client.log(40, "%s [%s] %s", "FAIL", "rdkafka#consumer-1", "kafka:9093: refused")
    assert len(logger.lines) == 3
    clients[0].log(30, "%s [%s] %s", "CONFWARN", "rdkafka#consumer-1", "a setting")
    assert len(logger.lines) == 4


def test_a_log_level_keeps_lines_back_that_are_heard_all_the_same() -> None:
    logger, heard = Lines(), list[str]()

    def hear(line: str) -> bool:
        heard.append(line)
        return False

    log = ClientLog({"log_level": "3", "logger": logger}, hear)
    assert log.settings["log_level"] == 6
    log.log(20, "%s", "said at level 6")
    log.log(40, "%s", "an error")
    assert heard == ["said at level 6", "an error"]
    assert logger.lines == [(40, "an error")]


def test_debug_lines_are_logged_where_they_are_asked_for() -> None:
    logger = Lines()
    log = ClientLog({"debug": "broker", "logger": logger}, lambda line: False)
    log.log(10, "%s", "a detail")
    assert logger.lines == [(10, "a detail")]


def test_a_log_level_that_is_none_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="The setting log_level is 'much'"):
        ClientLog({"log_level": "much"}, lambda line: False)
