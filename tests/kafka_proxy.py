"""A TCP proxy in front of Kafka's brokers that adds delay, holds back answers, and records the requests.

    with KafkaProxy("localhost:9092", round_trip=0.02) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})

It reads only what it must of the protocol: the length and header of each request (KIP-482 leaves the first fields where
they always were), and the ports of brokers in the answers that name them.
"""

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

PRODUCE, METADATA = 0, 3
_NAMES_BROKERS = {METADATA, 10, 60}  # also FindCoordinator and DescribeCluster
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")  # of a request: the key and version of its API, and its number


@dataclass(slots=True)
class Request:
    """A request that went through: its API, its connection, and when it was sent and answered, in monotonic time."""

    api: int
    connection: int
    broker: int
    sent: float
    answered: float | None = None


@dataclass(slots=True)
class _Connection:
    """A client's connection to one of the brokers, and its requests that wait for answers."""

    number: int
    broker: int
    waiting: dict[int, Request] = field(default_factory=dict)


class KafkaProxy:
    """A proxy in front of each of the brokers in `bootstrap_servers`, in its own thread.

    Args:
        bootstrap_servers: The brokers' addresses.
        round_trip: How many seconds it adds between a request and its answer. Can be changed at any time.
        keeps_account: Whether it collects the requests in `requests`, which takes more and more memory.
    """

    def __init__(self, bootstrap_servers: str, round_trip: float = 0.0, *, keeps_account: bool = True) -> None:
        self.round_trip = round_trip
        self._keeps_account = keeps_account
        self.requests: list[Request] = []
        self._brokers = [_address(server) for server in bootstrap_servers.split(",")]
        self._ports: dict[int, int] = {}
        self._servers: list[asyncio.Server] = []
        self.pauses: dict[int, float] = {}  # by API, how many seconds each answer, and those after it, are delayed
        self._held: set[int] = set()
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._tasks = set[asyncio.Task[None]]()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headway-kafka-proxy", daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses to connect to in place of the brokers'."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def hold(self, *apis: int) -> None:
        """Hold back all answers to requests of these APIs. Without any, all of them go through in their order."""
        self._held = set(apis)

    def of(self, api: int) -> list[Request]:
        """Return the requests of an API so far."""
        return [request for request in list(self.requests) if request.api == api]

    def most_at_once(self, api: int) -> int:
        """Return the largest number of requests of an API that were in flight at once on one connection."""
        requests = self.of(api)
        return max((_under_way(each, requests) for each in requests), default=0)

    async def _listen(self) -> None:
        for host, port in self._brokers:
            server = await asyncio.start_server(self._serve_broker(host, port), "127.0.0.1", 0, limit=1 << 24)
            self._servers.append(server)
            self._ports[port] = server.sockets[0].getsockname()[1]

    def _serve_broker(
        self, host: str, port: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._connections += 1
            connection = _Connection(self._connections, port)
            to_broker = await asyncio.open_connection(host, port, limit=1 << 24)
            pumps = (
                self._pump(reader, to_broker[1], lambda frame: self._note_request(connection, frame)),
                self._pump(to_broker[0], writer, lambda frame: self._note_answer(connection, frame)),
            )
            for pump in pumps:
                task = self._loop.create_task(pump)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        return serve

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        note: Callable[[bytes], tuple[bytes, int | None]],
    ) -> None:
        """Forward frames in their order, each half a round trip after its arrival."""
        frames: asyncio.Queue[tuple[float, bytes, int | None]] = asyncio.Queue()
        task = self._loop.create_task(self._deliver(frames, writer))
        try:
            while True:
                length = await reader.readexactly(_LENGTH.size)
                frame, api = note(await reader.readexactly(*_LENGTH.unpack(length)))
                frames.put_nowait((time.monotonic() + self.round_trip / 2, length + frame, api))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            task.cancel()
            with contextlib.suppress(RuntimeError):
                writer.close()

    async def _deliver(
        self, frames: asyncio.Queue[tuple[float, bytes, int | None]], writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                due, frame, api = await frames.get()
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                if api in self.pauses:
                    await asyncio.sleep(self.pauses[api])
                while api in self._held:
                    await asyncio.sleep(0.005)
                writer.write(frame)
                await writer.drain()

    def _note_request(self, connection: _Connection, frame: bytes) -> tuple[bytes, None]:
        api, _, number = _HEADER.unpack_from(frame)
        request = Request(api, connection.number, connection.broker, time.monotonic())
        connection.waiting[number] = request
        if self._keeps_account:
            self.requests.append(request)
        return frame, None

    def _note_answer(self, connection: _Connection, frame: bytes) -> tuple[bytes, int | None]:
        [number] = _LENGTH.unpack_from(frame)
        request = connection.waiting.pop(number, None)
        if request is None:
            return frame, None
        request.answered = time.monotonic()
        if request.api in _NAMES_BROKERS:
            for port, ours in self._ports.items():  # a port follows its host directly
                frame = frame.replace(b"127.0.0.1" + _LENGTH.pack(port), b"127.0.0.1" + _LENGTH.pack(ours))
                frame = frame.replace(b"localhost" + _LENGTH.pack(port), b"127.0.0.1" + _LENGTH.pack(ours))
        return frame, request.api

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _address(server: str) -> tuple[str, int]:
    host, port = server.rsplit(":", 1)
    return host, int(port)


def _under_way(request: Request, among: Iterable[Request]) -> int:
    return sum(
        each.connection == request.connection
        and each.sent <= request.sent
        and (each.answered is None or each.answered > request.sent)
        for each in among
    )
