"""Reads the results of calls from one partition of a result topic: new ones in a thread, earlier ones on request."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from headway.core.calls.call_id import CallId
from headway.errors import KafkaError
from headway.kafka.missing_permissions import is_refusal, why_not_readable
from headway.kafka.reading.log_bounds import LogBounds
from headway.kafka.reading.range_reader import Range, RangeReader
from headway.kafka.reading.tail import Tail
from headway.kafka.reading.topic_naming import PlainPartition
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config

log = logging.getLogger(__name__)

_MOST_KEPT = 10_000  # results
_MOST_BYTES = 32 * 2**20
_MOST_MISSING = 100_000  # calls; the look-ups of further ones search the partition each time
# A result can have an earlier timestamp than its call if the clocks of the two machines differ.
_CLOCKS_DIFFER_BY_MS = 60_000
_TRIES_AGAIN_AFTER = 1.0  # seconds


class ResultLog(Closable):
    """The results in one partition. Thread-safe.

    Args:
        config: The connection's settings.
        topic: The result topic.
        partition: The number of the partition.
        arrived: A function that is called with the id and the value of each new result, on the reader's thread.
        failed: A function that is called with the reason if this client may no longer read the topic.

    Raises `KafkaError` if the end of the partition is not known.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        partition: int,
        arrived: Callable[[str, bytes], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        self._config = {**config, "isolation.level": "read_committed"}
        self._topic, self._partition = topic, partition
        self._arrived, self._failed = arrived, failed
        self._searching = threading.Lock()  # protects the reader, which is created by the first search
        self._reader: RangeReader | None = None
        self._lock = threading.Lock()  # protects the fields that follow
        # The latest results. With the calls that had no result, they answer repeated look-ups without Kafka.
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._missing: set[str] = set()
        self._since_ms = int(time.time() * 1000)  # all results of calls that were made later are in `_kept`
        self._ended = threading.Event()
        end = LogBounds(self._config).ends([(topic, partition)]).get((topic, partition))
        if end is None:
            raise KafkaError(
                f"The result topic {topic} has no partition {partition}. Check that it is the topic of the call. "
                "It may have been created again with fewer partitions."
            )
        self._start = end  # results at or after this offset are read by the thread
        self._position = self._start  # the offset after the last result that was read
        self._tail = Tail({**self._config, "auto.offset.reset": "earliest"}, topic, partition, self._start)
        self._thread = threading.Thread(target=self._read, name="headway-results", daemon=True)
        self._thread.start()

    def find(self, call: CallId) -> bytes | None:
        """Return the stored result of a call, or None if there is none yet or if it has expired.

        The first look-up of a call that was made before this object existed reads the partition from that time on.
        Raises `KafkaError` if it cannot be read.
        """
        name = str(call)
        with self._lock:
            if (kept := self._kept.get(name)) is not None:
                return kept
            if name in self._missing or call.made_at > self._since_ms + _CLOCKS_DIFFER_BY_MS:
                return None
            end = self._start
        found = self._search(call, end)
        with self._lock:
            if found is not None:
                self._keep(name, found)
                return found
            # The result may have arrived during the search, and may even have been dropped since.
            is_known = self._start == end and len(self._missing) < _MOST_MISSING
            if (kept := self._kept.get(name)) is None and is_known:
                self._missing.add(name)
            return kept

    def close(self) -> None:
        """Stop the thread and close the connections."""
        self._ended.set()
        if threading.current_thread() is not self._thread:  # a callback of a call can close everything
            self._thread.join()
        self._tail.close()
        with self._searching:
            if self._reader is not None:
                self._reader.close()

    def _search(self, call: CallId, end: int) -> bytes | None:
        """Look for the result among the records before the offset `end`."""
        place, name = (self._topic, self._partition), str(call).encode()
        start = LogBounds(self._config).at(call.made_at - _CLOCKS_DIFFER_BY_MS, [place]).get(place)
        if start is None or start >= end:
            return None
        wanted = Range(PlainPartition(self._topic, partition=self._partition), start, end)
        with self._searching:
            self._reader = self._reader or RangeReader(self._config, skip_lost=True)
            for _, messages in self._reader.read([wanted]):
                for message in messages:
                    if message.key() == name:
                        return message.value()
        return None

    def _keep(self, name: str, value: bytes) -> None:
        """Keep a result. The caller holds the lock."""
        self._missing.discard(name)
        if name in self._kept:
            return  # the first result counts, because it may have been acted upon
        self._kept[name] = value
        self._kept_bytes += len(value)
        if len(self._kept) > _MOST_KEPT or self._kept_bytes > _MOST_BYTES:
            self._forget_half()

    def _forget_half(self) -> None:
        """Drop the older half of the kept results, so that look-ups of earlier calls search the partition again."""
        for _ in range(len(self._kept) // 2 + 1):
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)
        self._missing.clear()
        self._since_ms, self._start = int(time.time() * 1000), self._position

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                self._read_one()
            except Exception:  # later results must still be read
                log.exception("Reading the results in %s raised an unexpected error, and continues.", self._topic)
                self._ended.wait(_TRIES_AGAIN_AFTER)

    def _read_one(self) -> None:
        message = self._tail.take()
        if message is None:
            return
        if (error := message.error()) is not None:
            if missing := why_not_readable(error, self._topic, self._config):
                self._failed(missing)
            elif not is_refusal(error):
                log.warning("The results in %s could not be read, and are read again: %s", self._topic, error.str())
            return
        key, value = message.key(), message.value()
        if key and value:
            name = key.decode(errors="replace")
            with self._lock:
                self._position = (message.offset() or 0) + 1
                self._keep(name, value)
            self._arrived(name, value)
