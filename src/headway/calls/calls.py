"""Makes calls, and reads their results."""

import os
import random
import threading
import time
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

from headway.calls.call import Call, CallResult
from headway.core.calls.call_id import RANDOM_BYTES, CallId
from headway.core.calls.stored_result import StoredResult
from headway.core.levels.naming import is_topic_name
from headway.delay.due_time import When
from headway.errors import ClosedError, ConfigError, KafkaError, UnreadableError
from headway.kafka.admin import Admin
from headway.kafka.reading.result_log import ResultLog
from headway.kafka.result_topic import ensure_result_topic
from headway.priority.producer import Producer
from headway.records.record_types import Header
from headway.runtime.lifecycle import Closable
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of


class Calls(Closable):
    """Sends records whose handlers' results are wanted, and reads these results.

        with Producer(config) as producer, Calls(config, "image-results") as calls:
            call = calls.call(producer, "resize", b"...", level=2)
            thumbnail = call.result(timeout=30)

    The results are in the topic that the handlers have as `result_topic`, for a day by default. The first use creates
    the topic if it does not exist. Each object reads the results in one partition of it, one of four by default, and
    those of another partition once a call there is looked up. Up to 10,000 results and 32 MB of a partition stay in
    memory. Thread-safe.

    Args:
        config: The connection's settings. Settings that are for producers or consumers are ignored.
        topic: The result topic.
    """

    def __init__(self, config: Config, topic: str) -> None:
        if not is_topic_name(topic):
            raise ConfigError(f"The result topic is {topic!r}; it must be a valid name of a topic.")
        self._config = connection_of(config)
        self._topic = topic
        # Held while Kafka is asked, so a call in an event loop must not wait for it once `prepare` has returned.
        self._opening = threading.Lock()
        self._logs: dict[int, ResultLog] = {}
        self._own: int | None = None  # the partition for the results of the calls that are made here
        self._lock = threading.Lock()  # protects the fields that follow
        self._closed = False
        self._pending: WeakValueDictionary[str, Call] = WeakValueDictionary()

    def call(
        self,
        producer: Producer,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Iterable[Header] = (),
        *,
        level: int | None = None,
        partition: int | None = None,
        due: When | None = None,
        expires: When | None = None,
        returns: Any = Any,
    ) -> Call:
        """Send a record, and return a `Call`, a future of what its handler will return.

        `producer` sends the record, and `returns` is the type of the value, such as a dataclass; by default the value
        is what JSON has. The other arguments are those of `Producer.send`. Give the call an `expires` if nobody will
        need the result after some time: a handler that has not begun by then is not called, and the call fails.

        The first call creates the result topic if it does not exist, and raises `KafkaError` if that is refused or if
        Kafka does not answer.
        """
        call = self.expect(returns)
        sent = [*headers, self.header(call)]
        producer.send(
            topic, value, key, sent, partition, level=level, due=due, expires=expires, on_delivery=call.delivered
        )
        return call

    def expect(self, returns: Any = Any) -> Call:
        """Return a `Call` for a record that the caller sends, with the header `header(call)`."""
        made = CallId(self.prepare(), int(time.time() * 1000), os.urandom(RANDOM_BYTES).hex())
        return self._await(str(made), returns)

    def header(self, call: Call) -> Header:
        """Return the header with which a record asks for the result of this call."""
        return CallId.parse(call.id).header(self._topic)

    def get(self, id: str, returns: Any = Any) -> CallResult | None:
        """Return the result of a call, made by any process, or None if there is none yet or if it has expired.

        Looking up a pending call again costs nothing. The first look-up of a call that was made before this object
        reads all results in its partition since then.

        Raises `ConfigError` if `id` is not the id of a call, `KafkaError` if the results cannot be read, and
        `UnreadableError` if the stored result is not valid.
        """
        call = CallId.parse(id)
        stored = self._log(call.partition).find(call)
        return None if stored is None else CallResult.of(id, StoredResult.read(stored, id), returns)

    def attach(self, id: str, returns: Any = Any) -> Call:
        """Return a `Call` for a call that was made earlier, perhaps by another process. Raises the errors of `get`."""
        parsed = CallId.parse(id)
        log = self._log(parsed.partition)
        call = self._await(id, returns)
        if (stored := log.find(parsed)) is not None:
            call.settle(StoredResult.read(stored, id))
        return call

    def close(self) -> None:
        """Close the connections. Calls without a result fail with `ClosedError`."""
        with self._lock:
            self._closed = True
        with self._opening:
            logs, self._logs = list(self._logs.values()), {}
        for log in logs:
            log.close()
        self._fail_all(ClosedError("The Calls object was closed before the result arrived."))

    def prepare(self) -> int:
        """Do what the first call waits for. Returns the partition in which new results will be stored."""
        if self._own is None:
            with self._opening:
                self._check_open()
                count = ensure_result_topic(Admin(self._config), self._topic)
                # Another thread may have chosen the partition in the meantime.
                self._own = random.randrange(count) if self._own is None else self._own  # noqa: S311 - spreads callers
        self._log(self._own)
        return self._own

    def _log(self, partition: int) -> ResultLog:
        if (log := self._logs.get(partition)) is not None:
            return log
        with self._opening:
            self._check_open()
            if partition not in self._logs:
                self._logs[partition] = ResultLog(self._config, self._topic, partition, self._arrived, self._fail_all)
            return self._logs[partition]

    def _await(self, id: str, returns: Any) -> Call:
        """Return the pending call with this id, or a new one. Once the object is closed, this raises `ClosedError`."""
        with self._lock:
            self._check_open()
            call = self._pending.get(id)
            if call is None or call.done():  # a call that was cancelled can be waited for again
                call = self._pending[id] = Call(id, returns)
            return call

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The calls are closed. Create a new Calls to continue.")

    def _arrived(self, id: str, value: bytes) -> None:
        if (call := self._pending.pop(id, None)) is None:
            return
        try:
            stored = StoredResult.read(value, id)
        except UnreadableError as error:
            call.fail(error)
        else:
            call.settle(stored)

    def _fail_all(self, error: KafkaError | ClosedError) -> None:
        for reference in self._pending.valuerefs():  # a copy, because other threads add calls
            if (call := reference()) is not None:
                call.fail(error)
