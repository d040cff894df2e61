"""A proxy in front of one broker that replaces, drops or refuses single answers."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar

HEADER = struct.Struct(">hhi")  # of a request: its API's key, its version, its number
LENGTH = struct.Struct(">i")

Meddle = Callable[[int, bytes, bytes], bytes | None]
"""Takes an API's key, the request and the answer; returns the answer to pass on, or None to drop it."""


class Proxy:
    """Listens at `address` and passes on everything to a broker on 127.0.0.1, except what `meddle` changes."""

    names_brokers: ClassVar = {3, 10, 60}  # the answers that tell clients where brokers are

    def __init__(self, broker: str, meddle: Meddle) -> None:
        self._broker = int(broker.rsplit(":", 1)[1])
        self._meddle = meddle
        self._server = socket.create_server(("127.0.0.1", 0))
        self._port = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            broker = socket.create_connection(("127.0.0.1", self._broker))
            requests: dict[int, tuple[int, bytes]] = {}
            threading.Thread(target=self._pass_requests, args=(client, broker, requests), daemon=True).start()
            threading.Thread(target=self._pass_answers, args=(broker, client, requests), daemon=True).start()

    def _pass_requests(
        self, client: socket.socket, broker: socket.socket, requests: dict[int, tuple[int, bytes]]
    ) -> None:
        with _closing(client, broker):
            while frame := _read_frame(client):
                api, _, number = HEADER.unpack_from(frame)
                requests[number] = api, frame
                broker.sendall(LENGTH.pack(len(frame)) + frame)

    def _pass_answers(
        self, broker: socket.socket, client: socket.socket, requests: dict[int, tuple[int, bytes]]
    ) -> None:
        with _closing(client, broker):
            while frame := _read_frame(broker):
                api, request = requests.pop(*LENGTH.unpack_from(frame))
                if api in self.names_brokers:
                    ours = b"127.0.0.1" + LENGTH.pack(self._port)
                    for host in (b"127.0.0.1", b"localhost"):
                        frame = frame.replace(host + LENGTH.pack(self._broker), ours)
                answer = self._meddle(api, request, frame)
                if answer is not None:
                    client.sendall(LENGTH.pack(len(answer)) + answer)


@contextlib.contextmanager
def _closing(*connections: socket.socket) -> Iterator[None]:
    with contextlib.suppress(OSError):
        yield
    for each in connections:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _read_frame(source: socket.socket) -> bytes:
    size = _read(source, LENGTH.size)
    return _read(source, *LENGTH.unpack(size)) if size else b""


def _read(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data
