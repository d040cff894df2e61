"""Detects brokers that refuse a client, from librdkafka's reports on its connections.

librdkafka tries every connection again forever, whatever was wrong with it. Only repetition tells a wrong password from
a broker that restarts: the broker answers the client, but ends every connection before it is of use.
"""

import re
from typing import NamedTuple

_MOST_BROKERS = 64
_GAP = 30.0
"""Seconds between two refusals; after a longer gap the second one begins a new series."""
_RECENT = 60.0  # seconds for which the last reason is reported

_ABOUT_A_BROKER = re.compile(r"(?:[a-z_]+://)?([^\s/]+:\d+)(?:/\w+)?: (.+)", re.DOTALL)
# The counters to remove: " (after 0ms in state CONNECT, 5 identical error(s) suppressed)".
_COUNTERS = re.compile(r" \(after \d+ms in state (?:[^()]|\([^()]*\))*\)")

# Signs of a closed connection. A broker that shuts down causes the same messages, so they are not certain refusals.
_CLOSED = "Disconnected", "unexpected eof", "reset by peer"
_CERTAIN = "SSL routines", "SSL handshake failed", "SASL", "certificate"
_ELSEWHERE = "Connect to", "Failed to resolve", "timed out"

_ADVICE = (
    ("Unsupported SASL mechanism", "Set sasl.mechanism to one that the broker has."),
    ("OAUTHBEARER", "Check the token that oauth_cb, or sasl.oauthbearer.*, gives."),
    ("invalid_token", "Check the token that oauth_cb, or sasl.oauthbearer.*, gives."),
    ("SASL", "Check sasl.username, sasl.password and sasl.mechanism."),
    (
        "certificate verify failed",
        "Check ssl.ca.location, and that the broker's certificate is in date and names the host in bootstrap.servers.",
    ),
    ("alert", "Check ssl.certificate.location and ssl.key.location: who signed the client's certificate, its dates."),
    ("wrong version number", "The port may be one for plain text: check security.protocol and bootstrap.servers."),
    (
        "SSL",
        "The port may be one for plain text, or ask for a login: check security.protocol and bootstrap.servers.",
    ),
    ("", "The port may be one for TLS, or ask for a login: check security.protocol and bootstrap.servers."),
)


class Refusal(NamedTuple):
    """A series of connections that one broker has ended, with no other report about it in between.

    `certain` is True if the reason was the identity of the client or the broker; otherwise the broker closed the
    connection without giving a reason.
    """

    broker: str
    reason: str
    since: float
    last: float
    certain: bool

    def sentence(self) -> str:
        """Return a sentence that names the broker, the reason, and the setting to check."""
        advice = next(text for sign, text in _ADVICE if sign in self.reason)
        return f"The broker at {self.broker} refuses this client: {self.reason}. {advice}"


class Refusals:
    """The reports on one client's connections; the caller passes the time, in seconds."""

    def __init__(self) -> None:
        self._series: dict[str, Refusal] = {}
        self._last = ""
        self._last_at = 0.0

    def note(self, text: str, now: float) -> bool:
        """Take in one of librdkafka's reports, and return whether it is about a connection."""
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
        else:  # the first reason says most, because OpenSSL's later ones repeat remembered errors
            self._series[broker] = before._replace(last=now, certain=before.certain and is_certain)
        while len(self._series) > _MOST_BROKERS:
            self._series.pop(next(iter(self._series)))
        return True

    @property
    def brokers(self) -> int:
        """The number of brokers with a series."""
        return len(self._series)

    def reason(self, now: float) -> str:
        """Return why the last connection ended, and which broker's; empty if none ended in the last minute."""
        return self._last if now - self._last_at < _RECENT else ""

    def longest(self) -> Refusal | None:
        """Return the series that has gone on for the longest time, among those of two or more refusals."""
        repeated = (each for each in self._series.values() if each.last > each.since)
        return max(repeated, key=lambda each: each.last - each.since, default=None)

    def forget(self) -> None:
        """Forget all series, for example because a broker has answered."""
        self._series.clear()


def without_counters(text: str) -> str:
    """Return librdkafka's report on a connection without its counters, which make each report differ from the last.

    >>> without_counters("Disconnected (after 7ms in state UP, 2 identical error(s) suppressed)")
    'Disconnected'
    """
    return _COUNTERS.sub("", text).rstrip(". ")
