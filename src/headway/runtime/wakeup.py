"""A wake-up that lets a thread, or several tasks of an event loop, wait on several clients at once without spinning.

librdkafka writes a byte to the socket when a consumer's empty queue gets something, and `set` does so from any thread.
The signal is edge-triggered: after a wait, every client must be asked until it has nothing, before the next wait.
"""

import asyncio
import contextlib
import selectors
import socket
from collections.abc import Callable

# How many bytes are read at once. If there are more, that only means one more turn of the loop.
_PLENTY = 4096


class Wakeup:
    """A flag that librdkafka and threads can set, and that threads and event loops can wait for."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reader, selectors.EVENT_READ)
        self._waiting = set[asyncio.Event]()  # the waiting tasks of one event loop

    @property
    def fd(self) -> int:
        """The descriptor to which a byte is written to set the flag."""
        return self._writer.fileno()

    def set(self) -> None:
        """End the wait of each waiter, or the next wait. After `close` it does nothing."""
        with contextlib.suppress(OSError):  # if the socket is full, the flag is already set
            self._writer.send(b"\x01")

    def wait(self, timeout: float | None) -> None:
        """Wait until the flag is set, for at most `timeout` seconds, and clear it."""
        if self._selector.select(timeout):
            self._clear()

    async def wait_async(self, timeout: float | None) -> None:
        """Wait like `wait`, but in the running event loop. All tasks that wait there are woken."""
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
        """Make a loop clear the flag and call `call` each time it is set.

        Returns a function that ends this, which must be called in the loop's thread.
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
        """Close the sockets. No client may write to them afterwards."""
        self._selector.close()
        self._reader.close()
        self._writer.close()

    def __del__(self) -> None:
        self.close()

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(_PLENTY)
