"""The detection of brokers that refuse a client, from librdkafka's reports on connections, by broker and time.

librdkafka tries every connection again for ever, whatever was wrong with it. Only repetition distinguishes a wrong
password from a broker that restarts: the broker answers the client, and ends every connection before it is of use.
"""

import re
from typing import NamedTuple

_MOST_BROKERS = 64
_GAP = 30.0
"""Seconds between two refusals after which the second begins a new series."""
_RECENT = 60.0

_ABOUT_A_BROKER = re.compile(r"(?:[a-z_]+://)?([^\s/]+:\d+)(?:/\w+)?: (.+)", re.DOTALL)
# " (after 0ms in state CONNECT, 5 identical error(s) suppressed)"
_COUNTERS = re.compile(r" \(after \d+ms in state (?:[^()]|\([^()]*\))*\)")

# The words in which connections end; also those of a broker that stops.
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
    """A series of connections that one broker has ended, with no other report from it in between.

    `certain` is True if the reason was the client's or the broker's identity; else the broker closed without a word.
    """

    broker: str
    reason: str
    since: float
    last: float
    certain: bool

    def sentence(self) -> str:
        """Return a sentence with the broker that refuses, the reason, and the setting to check."""
        advice = next(text for sign, text in _ADVICE if sign in self.reason)
        return f"The broker at {self.broker} refuses this client: {self.reason}. {advice}"


class Refusals:
    """The reports on one client's connections; time is an argument, in seconds."""

    def __init__(self) -> None:
        self._series: dict[str, Refusal] = {}
        self._last = ""
        self._last_at = 0.0

    def note(self, text: str, now: float) -> bool:
        """Take in a report of librdkafka, and return whether it is about a connection."""
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
        else:  # the first reason says most: OpenSSL makes the next ones from what it remembers
            self._series[broker] = before._replace(last=now, certain=before.certain and is_certain)
        while len(self._series) > _MOST_BROKERS:
            self._series.pop(next(iter(self._series)))
        return True

    @property
    def brokers(self) -> int:
        """The number of brokers with a series."""
        return len(self._series)

    def reason(self, now: float) -> str:
        """Return why a connection ended last, and to which broker; empty if none has in the last minute."""
        return self._last if now - self._last_at < _RECENT else ""

    def longest(self) -> Refusal | None:
        """Return the series that has gone on for the longest time, if there is one of two or more refusals."""
        repeated = (each for each in self._series.values() if each.last > each.since)
        return max(repeated, key=lambda each: each.last - each.since, default=None)

    def forget(self) -> None:
        """Begin anew, as after a sign that a broker answers."""
        self._series.clear()


def without_counters(text: str) -> str:
    """Return librdkafka's report on a connection without the counters that make each report another one.

    >>> without_counters("Disconnected (after 7ms in state UP, 2 identical error(s) suppressed)")
    'Disconnected'
    """
    return _COUNTERS.sub("", text).rstrip(". ")
