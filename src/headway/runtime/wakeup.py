"""A wake-up, with which a thread or several tasks of an event loop can wait for several clients without polling.

librdkafka writes a byte to the socket when something arrives in a consumer's empty queue. Any thread can do the same by
calling `set`. The signal is edge-triggered, so after each wait, the caller must read from every client until the client
has nothing left, and only then wait again.
"""

import asyncio
import contextlib
import selectors
import socket
from collections.abc import Callable

# The maximum number of bytes to read at once. If the socket holds more bytes, that costs only one more iteration of the
# loop.
_PLENTY = 4096


class Wakeup:
    """A flag that librdkafka and any thread can set, and that threads and tasks of an event loop can wait for."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reader, selectors.EVENT_READ)
        self._waiting = set[asyncio.Event]()  # one event for each task of the event loop that is waiting

    @property
    def fd(self) -> int:
        """The descriptor that sets the flag when a byte is written to it."""
        return self._writer.fileno()

    def set(self) -> None:
        """Set the flag: wake all waiters, or make the next wait return at once. After `close`, this does nothing."""
        with contextlib.suppress(OSError):  # if the socket is full, the flag is already set
            self._writer.send(b"\x01")

    def wait(self, timeout: float | None) -> None:
        """Wait until the flag is set, or for at most `timeout` seconds, and clear the flag."""
        if self._selector.select(timeout):
            self._clear()

    async def wait_async(self, timeout: float | None) -> None:
        """Wait as `wait` does, but as a task of the running event loop. The flag wakes all waiting tasks."""
        loop = asyncio.get_running_loop()
        is_set = asyncio.Event()
        if not self._waiting:
            loop.add_reader(self._reader, self._wake_all)
        self._waiting.add(is_set)
        try:
            async with asyncio.timeout(timeout):
                await is_set.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(is_set)
            if not self._waiting:
                loop.remove_reader(self._reader)

    def _wake_all(self) -> None:
        self._clear()
        for each in self._waiting:
            each.set()

    def watch(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> Callable[[], None]:
        """Each time the flag is set, clear the flag, and call `call` in this event loop.

        Returns a function that ends the watch. The returned function must be called in the loop's thread.
        """

        def cleared() -> None:
            self._clear()
            call()

        def end() -> None:
            if not loop.is_closed():
                loop.remove_reader(self._reader)

        loop.add_reader(self._reader, cleared)
        return end

    def close(self) -> None:
        """Close the sockets. Afterwards, no client must write to them."""
        self._selector.close()
        self._reader.close()
        self._writer.close()

    def __del__(self) -> None:
        self.close()

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(_PLENTY)
