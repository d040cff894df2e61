"""Detects brokers that refuse a client, from librdkafka's reports on its connections.

librdkafka retries every failed connection forever, whatever the reason for the failure. A single failure does not show
whether the password is wrong or the broker is restarting. But if a broker closes one connection after another before
the client can use them, the broker is refusing the client.
"""

import re
from typing import NamedTuple

_MOST_BROKERS = 64
_GAP = 30.0
"""How long after a refusal another one still counts as part of the same series of refusals, in seconds."""
_RECENT = 60.0  # how long the reason for the last failure is reported, in seconds

_ABOUT_A_BROKER = re.compile(r"(?:[a-z_]+://)?([^\s/]+:\d+)(?:/\w+)?: (.+)", re.DOTALL)
# The counters to remove: " (after 0ms in state CONNECT, 5 identical error(s) suppressed)".
_COUNTERS = re.compile(r" \(after \d+ms in state (?:[^()]|\([^()]*\))*\)")

# Texts in reports of closed connections. Such a report is not proof of a refusal, because a broker that shuts down also
# causes it.
_CLOSED = "Disconnected", "unexpected eof", "reset by peer"
_CERTAIN = "SSL routines", "SSL handshake failed", "SASL", "certificate"
_ELSEWHERE = "Connect to", "Failed to resolve", "timed out"

_ADVICE = (
    ("Unsupported SASL mechanism", "Set sasl.mechanism to a mechanism that the broker supports."),
    ("OAUTHBEARER", "Check the token that oauth_cb returns or that the settings sasl.oauthbearer.* produce."),
    ("invalid_token", "Check the token that oauth_cb returns or that the settings sasl.oauthbearer.* produce."),
    ("SASL", "Check sasl.username, sasl.password and sasl.mechanism."),
    (
        "certificate verify failed",
        "Check ssl.ca.location. The broker's certificate must be valid now and name the host in bootstrap.servers.",
    ),
    (
        "alert",
        "Check ssl.certificate.location and ssl.key.location. The broker must trust the certificate's signer.",
    ),
    ("wrong version number", "The port may be for plain text: check security.protocol and bootstrap.servers."),
    (
        "SSL",
        "The port may be for plain text, or may require a login: check security.protocol and bootstrap.servers.",
    ),
    ("", "The port may be for TLS, or may require a login: check security.protocol and bootstrap.servers."),
)


class Refusal(NamedTuple):
    """A series of connections that one broker has closed, with no other report about this broker in between.

    `reason` is the reason in the first report. `certain` is True if all these connections failed because of the
    identity of the client or the broker. It is False if the broker closed any of them without giving a reason.
    """

    broker: str
    reason: str
    since: float
    last: float
    certain: bool

    def sentence(self) -> str:
        """Return a sentence that names the broker, the reason, and the settings to check."""
        advice = next(text for sign, text in _ADVICE if sign in self.reason)
        return f"The broker at {self.broker} refuses this client: {self.reason}. {advice}"


class Refusals:
    """Evaluates the reports on the connections of one client. The caller passes the time in seconds."""

    def __init__(self) -> None:
        self._series: dict[str, Refusal] = {}
        self._last = ""
        self._last_at = 0.0

    def note(self, text: str, now: float) -> bool:
        """Evaluate a report from librdkafka, and return whether it is about a connection."""
        found = _ABOUT_A_BROKER.search(text)
        if found is None:
            return False
        broker, reason = found[1], without_counters(found[2])
        self._last, self._last_at = f"{broker}: {reason}", now
        is_closed = any(sign in reason for sign in _CLOSED)
        is_certain = not is_closed and any(sign in reason for sign in _CERTAIN)
        if any(sign in reason for sign in _ELSEWHERE) or not (is_closed or is_certain):
            self._series.pop(broker, None)
            return True
        before = self._series.pop(broker, None)
        if before is None or now - before.last > _GAP:
            self._series[broker] = Refusal(broker, reason, now, now, is_certain)
        else:  # keep the first reason, because OpenSSL adds earlier errors to the later reasons
            self._series[broker] = before._replace(last=now, certain=before.certain and is_certain)
        while len(self._series) > _MOST_BROKERS:
            self._series.pop(next(iter(self._series)))
        return True

    @property
    def brokers(self) -> int:
        """The number of brokers with a series of refusals."""
        return len(self._series)

    def reason(self, now: float) -> str:
        """Return a text with the broker and the reason of the last report on a connection.

        The text is empty if there was no report in the last minute.
        """
        return self._last if now - self._last_at < _RECENT else ""

    def longest(self) -> Refusal | None:
        """Return the series that has lasted longest, or None if no broker has refused the client at least twice."""
        repeated = (each for each in self._series.values() if each.last > each.since)
        return max(repeated, key=lambda each: each.last - each.since, default=None)

    def forget(self) -> None:
        """Forget all series, for example because a broker has answered."""
        self._series.clear()


def without_counters(text: str) -> str:
    """Return librdkafka's report on a connection without its counters, so that repeated reports are equal.

    >>> without_counters("Disconnected (after 7ms in state UP, 2 identical error(s) suppressed)")
    'Disconnected'
    """
    return _COUNTERS.sub("", text).rstrip(". ")
