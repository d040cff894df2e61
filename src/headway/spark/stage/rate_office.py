"""Enforces the rate limit of a stage over the network: tasks connect to the driver, which grants them permits.

A permit lets a task start one attempt.

The driver is used because it outlives all tasks and executors. The driver listens at the address to which executors
connect anyway, but on an additional port. When a task ends, for whatever reason, its connection is closed, so the
driver drops its request.
"""

import asyncio
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from pyspark import SparkContext

from headway.core.user_errors import description_of
from headway.errors import HeadwayError
from headway.execution.event_loop import LoopThread
from headway.spark.stage.rate_grants import Grants

_CONNECT_WITHIN = 30.0  # a task must be able to connect to the driver within this many seconds
_HELLO_WITHIN = 30.0  # a client must send its secret and stage within this many seconds, or it is disconnected
# A stage is forgotten after this many seconds without a connected task. If the stage gets a task later, the task has a
# full burst. By then the burst would have been refilled anyway, unless the rate is very low.
_FORGET_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The rate limit of one stage, and the address of the server from which its tasks request permits."""

    rate: float
    host: str
    port: int
    secret: str
    name: str  # identifies the stage


class RateOffice:
    """The driver's server, which grants permits to the tasks of all stages. It listens on the interface `bind`."""

    def __init__(self, bind: str) -> None:
        self._secret = secrets.token_hex(16)
        self._stages: dict[str, _RatedStage] = {}
        loop = LoopThread("headway-rate-office").loop
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, bind, 0), loop).result()
        self._port: int = server.sockets[0].getsockname()[1]
        self._server = server  # without this reference, the server would be garbage-collected

    def limit(self, rate: float, host: str) -> RateLimit:
        """Create the rate limit for a new stage, whose tasks connect to this server at `host`."""
        return RateLimit(rate, host, self._port, self._secret, secrets.token_hex(8))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = ""
        try:
            hello = (await asyncio.wait_for(reader.readline(), _HELLO_WITHIN)).decode().split()
            if len(hello) != 3 or not hmac.compare_digest(hello[0], self._secret):
                return
            name, rate = hello[1], float(hello[2])
            stage = self._stages.setdefault(name, _RatedStage(Grants(rate, time.monotonic())))
            stage.tasks.add(writer)
            while line := await reader.readline():
                stage.ask(writer, int(line))
        except (OSError, ValueError, TimeoutError):  # the task was killed, or the client is not one of our tasks
            pass
        finally:
            if name:
                self._leave(name, writer)
            writer.close()

    def _leave(self, name: str, writer: asyncio.StreamWriter) -> None:
        stage = self._stages[name]
        stage.leave(writer)
        if not stage.tasks:
            asyncio.get_running_loop().call_later(_FORGET_AFTER, self._forget, name)

    def _forget(self, name: str) -> None:
        if (stage := self._stages.get(name)) and not stage.tasks:
            del self._stages[name]


class _RatedStage:
    """The connected tasks of a stage, and the starts that they are granted."""

    def __init__(self, grants: Grants[asyncio.StreamWriter]) -> None:
        self._grants = grants
        self._timer: asyncio.TimerHandle | None = None
        self.tasks: set[asyncio.StreamWriter] = set()

    def leave(self, task: asyncio.StreamWriter) -> None:
        """Remove a task that has disconnected."""
        self.tasks.discard(task)
        self._grants.leave(task)

    def ask(self, task: asyncio.StreamWriter, starts: int) -> None:
        """Record how many permits a task requests, and grant them now or as soon as the rate allows."""
        self._grants.ask(task, starts)
        if self._timer is None:
            self._grant()

    def _grant(self) -> None:
        now = time.monotonic()
        for task, starts in self._grants.due(now):
            task.write(b"%d\n" % starts)
        due = self._grants.next_due()
        loop = asyncio.get_running_loop()
        self._timer = None if due is None else loop.call_later(max(0.0, due - now), self._grant)


def limit_for(rate: float, context: SparkContext) -> RateLimit:
    """Create the rate limit for a new stage of a Spark program. Starts the driver's server if it is not running yet."""
    conf = context.getConf()
    host = str(conf.get("spark.driver.host", "127.0.0.1"))
    return _office(str(conf.get("spark.driver.bindAddress", host))).limit(rate, host)


@cache  # one server for each interface, which runs until the program ends
def _office(bind: str) -> RateOffice:
    return RateOffice(bind)


class RateClient:
    """The connection over which a task requests permits from the driver.

    `granted` is called with each grant, on a thread of the client. `gone` is called with an error if the connection
    ends before `close`. Raises `HeadwayError` if the driver cannot be reached.
    """

    def __init__(self, limit: RateLimit, granted: Callable[[int], None], gone: Callable[[HeadwayError], None]) -> None:
        self._address = f"{limit.host}:{limit.port}"
        try:
            self._socket = socket.create_connection((limit.host, limit.port), _CONNECT_WITHIN)
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(f"{limit.secret} {limit.name} {limit.rate!r}\n".encode())
        except OSError as error:
            raise self._unreachable(error) from error
        self._granted = granted
        self._gone = gone
        self._closed = False
        threading.Thread(target=self._read, name="headway-rate", daemon=True).start()

    def ask(self, starts: int) -> None:
        """Request this many permits from the driver."""
        with suppress(OSError):  # the connection has ended, which the reading thread reports
            self._socket.sendall(b"%d\n" % starts)

    def close(self) -> None:
        """Disconnect. `gone` is not called."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        try:
            with suppress(OSError), self._socket.makefile("rb") as lines:
                for line in lines:
                    self._granted(int(line))
        except Exception as error:  # must be reported, because without grants the task would wait forever
            self._gone(HeadwayError(f"A message with permits for the rate_limit could not be processed: {error!r}."))
            return
        if not self._closed:
            self._gone(self._unreachable(ConnectionError("the connection has ended")))

    def _unreachable(self, error: OSError) -> HeadwayError:
        return HeadwayError(
            f"The task needs the driver at {self._address} for its share of the rate_limit, but cannot reach it: "
            f"{description_of(error)}. Let executors connect to any port of the driver, or leave rate_limit out."
        )
