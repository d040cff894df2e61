"""Writes records to a file, and commits the records that were written."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Literal

import click

from headway.cli.display.streams import silence
from headway.cli.display.terminal import Complaints, ProgressLine, throughput_text
from headway.cli.records.record_lines import Encode
from headway.errors import FetchError, HeadwayError, KafkaError
from headway.priority.consumer import OnRebalance, PriorityConsumer
from headway.records.record_types import ConsumerRecord, TopicPartition
from headway.runtime.interrupt import INTERRUPTED, Interrupt

Start = Literal["beginning", "end", "committed"]

_COMMIT_EVERY = 1.0  # seconds between two commits
_LONGEST_WAIT = 0.5  # the longest wait for records in seconds; then commits are sent and Ctrl-C is noticed


class Consumption:
    """Writes a consumer's records to a file, and commits only records that were written completely."""

    def __init__(
        self, consumer: PriorityConsumer, file: IO[bytes], encode: Encode, levels: int, complaint: Complaints
    ) -> None:
        self._consumer = consumer
        self._file = file
        self._encode = encode
        self._complaint = complaint
        self._per_level = [0] * levels
        self._records = self._bytes = 0
        self._written: dict[TopicPartition, int] = {}
        self._committed_at = 0.0
        self._first: float | None = None
        self._last = 0.0
        self._interrupted = self._failed = False

    def run(
        self,
        topics: Sequence[str] | Mapping[str, int],
        start: Start,
        limit: int | None,
        timeout: float | None,
        progress: ProgressLine,
    ) -> None:
        """Write records until the limit, `timeout` seconds without a record, Ctrl-C, or a closed pipe."""
        self._consumer.subscribe(topics, self._starter(start), self._leave, self._forget)
        try:
            with Interrupt() as interrupt:
                self._write_all(interrupt.read(self._polls(limit, timeout)), limit, progress)
                self._interrupted = interrupt.requested
        except KeyboardInterrupt:  # a second Ctrl-C, because a write blocks while nobody reads the pipe
            self._interrupted = True
        except BrokenPipeError:
            silence(self._file.fileno())
        finally:
            self._consumer.commit(self._written)
            self._written.clear()  # otherwise `_leave` would commit the same offsets again

    def report(self) -> int:
        """Print a summary on stderr, and return the exit code."""
        seconds = 0.0 if self._first is None else self._last - self._first
        click.echo(throughput_text("written and committed", self._per_level, self._bytes, seconds), err=True)
        if self._interrupted:
            return INTERRUPTED
        return 1 if self._failed else 0

    def _polls(self, limit: int | None, timeout: float | None) -> Iterator[list[ConsumerRecord]]:
        arrived = time.monotonic()
        while limit is None or self._records < limit:
            wait = _LONGEST_WAIT if timeout is None else min(_LONGEST_WAIT, arrived + timeout - time.monotonic())
            if wait <= 0:
                return
            records = self._poll(wait)
            yield records
            if records:
                arrived = time.monotonic()

    def _write_all(self, polls: Iterable[list[ConsumerRecord]], limit: int | None, progress: ProgressLine) -> None:
        for records in polls:
            if records:
                self._write(records if limit is None else records[: limit - self._records])
            self._commit_if_due()
            progress.show(self._records, self._records)

    def _poll(self, timeout: float) -> list[ConsumerRecord]:
        try:
            return self._consumer.poll(timeout)
        except FetchError as error:  # the other levels continue, and the failed level resumes when it can
            self._failed = True
            self._complaint.say(str(error))
            return []

    def _write(self, records: list[ConsumerRecord]) -> None:
        if self._first is None:
            self._first = time.monotonic()
        lines = b"".join(map(self._encode, records))
        self._file.write(lines)
        self._file.flush()
        for record in records:
            self._written[record.topic_partition] = record.offset + 1
            self._per_level[record.level] += 1
        self._records += len(records)
        self._bytes += len(lines)
        self._last = time.monotonic()

    def _commit_if_due(self) -> None:
        now = time.monotonic()
        if self._last > self._committed_at and now - self._committed_at > _COMMIT_EVERY:
            self._committed_at = now
            self._try_commit(self._written, asynchronous=True)

    def _try_commit(self, offsets: Mapping[TopicPartition, int], *, asynchronous: bool) -> None:
        try:
            self._consumer.commit(offsets, asynchronous=asynchronous)
        # The next commit covers these records too, unless another member has the partition by then.
        except KafkaError as error:
            self._complaint.say(f"{str(error).rstrip('.')}. Records written since the last commit may be read again.")

    def _starter(self, start: Start) -> OnRebalance | None:
        """Return a callback that moves newly assigned partitions to the start.

        Reassigned partitions continue where they were.
        """
        if start == "committed":
            return None
        seek = self._consumer.seek_to_beginning if start == "beginning" else self._consumer.seek_to_end
        seen: set[TopicPartition] = set()

        def on_assign(partitions: list[TopicPartition]) -> None:
            seek([partition for partition in partitions if partition not in seen])
            seen.update(partitions)

        return on_assign

    def _leave(self, partitions: Iterable[TopicPartition]) -> None:
        leaving = {each: self._written[each] for each in partitions if each in self._written}
        self._try_commit(leaving, asynchronous=False)
        self._forget(partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._written.pop(partition, None)


@contextmanager
def writing(path: str, *, committed: bool = True) -> Iterator[IO[bytes]]:
    """Open a file for appending, or stdout for `-`. Raises `HeadwayError` if the file cannot be written."""
    try:
        with click.open_file(path, "ab") as file:
            yield file
    except OSError as error:
        name = "stdout" if path == "-" else path
        hint = " The records that were written are committed. Start again to continue after them." if committed else ""
        raise HeadwayError(f"{name} cannot be written: {error.strerror}.{hint}") from error
