"""Sends lines as records, and counts their outcomes."""

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import click

from headway.cli.display.terminal import Complaints, ProgressLine, count, stderr_is_terminal, throughput_text
from headway.cli.options.topic_choice import TopicChoice
from headway.cli.records.lines import Draft, LinePosition, LongLine, Parse, read_lines, size_of_files
from headway.kafka.producer.delivery import OnDelivery
from headway.priority.producer import Producer
from headway.records.record_types import Header, RecordMetadata
from headway.runtime.interrupt import INTERRUPTED, Interrupt

_CHECK_FOR_CTRL_C_EVERY = 0.2  # the longest single wait in seconds, so that Ctrl-C is noticed


class Production:
    """Sends lines, and counts their outcomes. Closes the producer at the end."""

    def __init__(
        self,
        producer: Producer,
        topics: TopicChoice,
        parse: Parse,
        headers: Sequence[Header],
        complaint: Complaints,
        *,
        expires: float | None,
        stop_on_error: bool,
        longest: int,
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._parse = parse
        self._headers = list(headers) or None
        self._expires = expires  # each record expires this many seconds after it is sent
        self._complaint = complaint
        self._stop_on_error = stop_on_error
        self._longest = longest
        self._stopped = False
        self._interrupted = False
        self._lines = self._bytes = self._bad = self._too_long = 0
        self._seconds = 0.0

    def run(self, files: Sequence[str]) -> None:
        """Send all lines, and wait until they are delivered.

        After Ctrl-C, wait only for the lines that were read so far.
        """
        started = time.monotonic()
        progress = ProgressLine(size_of_files(files), shown=stderr_is_terminal())
        try:
            with progress, Interrupt() as interrupt:
                self._send_all(interrupt.read(read_lines(files, self._longest)), progress)
                self._deliver(interrupt)
        except KeyboardInterrupt:
            self._interrupted = True
        finally:
            self._producer.close(0)
        self._seconds = time.monotonic() - started

    def report(self) -> int:
        """Print a summary on stderr, and return the exit code."""
        metrics = self._producer.metrics()
        lost = sum(metrics.sent) - sum(metrics.delivered) + self._too_long
        text = throughput_text("delivered", metrics.delivered, self._bytes, self._seconds)
        # For a topic without levels, the producer counts one level. Do not show it, because it would confuse the user.
        click.echo(text if self._topics.priorities is None else text.partition("\n")[0], err=True)
        if self._bad:
            click.echo(f"{count(self._bad, 'line')} left out", err=True)
        if lost:
            click.echo(f"{count(lost, 'record')} not delivered", err=True)
        if self._interrupted:
            click.echo(f"Ended by Ctrl-C after {count(self._lines, 'line')}.", err=True)
            return INTERRUPTED
        return 1 if lost or self._stopped else 0

    def _send_all(self, lines: Iterable[tuple[LinePosition, bytes | LongLine]], progress: ProgressLine) -> None:
        for place, line in lines:
            self._lines += 1
            if isinstance(line, LongLine):
                self._bytes += line.size
                self._reject_long_line(place, line)
            else:
                self._bytes += len(line)
                self._send(place, line)
            progress.show(self._bytes, self._lines)
            if self._stopped:
                break

    def _send(self, place: LinePosition, line: bytes) -> None:
        try:
            draft = self._parse(line)
            if draft is not None:
                self._hand_over(draft, partial(self._reported, place))
        except ValueError as reason:
            self._reject_line(place, reason)

    def _hand_over(self, draft: Draft, reported: OnDelivery) -> None:
        value, key, level = draft
        options: Any = {"headers": self._headers, "expires": self._expires, "on_delivery": reported}
        if self._topics.priorities is None:
            self._producer.send(self._topics.names[0], value, key, level=level, **options)
        else:
            self._producer.send(self._topics.only_topic(level), value, key, **options)

    def _reject_long_line(self, place: LinePosition, line: LongLine) -> None:
        self._too_long += 1
        self._stopped = self._stop_on_error
        self._complaint.say(
            f"{place}: Message size too large: {line.size:,} bytes, but a record can have at most {self._longest:,}. "
            "Raise message.max.bytes with -X if the topic accepts larger records."
        )

    def _reject_line(self, place: LinePosition, reason: ValueError) -> None:
        self._bad += 1
        self._stopped = self._stop_on_error
        hint = " No later line was sent. Use --on-error skip to leave out such lines." if self._stopped else ""
        self._complaint.say(f"{place}: {reason}.{hint}")

    def _reported(self, place: LinePosition, error: Exception | None, metadata: RecordMetadata | None) -> None:
        if error is not None:
            self._stopped = self._stop_on_error
            self._complaint.say(f"{place}: {error}")

    def _deliver(self, interrupt: Interrupt) -> None:
        while self._producer.flush(_CHECK_FOR_CTRL_C_EVERY):
            if interrupt.requested:
                self._complaint.say("Delivering the lines that were read so far. Press Ctrl-C again to stop waiting.")
        self._interrupted = interrupt.requested
