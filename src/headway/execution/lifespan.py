"""The lifespan of a run: a context manager that makes the objects that handlers share.

It is open while handlers run.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple, Self

from headway.core.user_errors import description_of
from headway.declarations import called, is_coroutine_function, runs_nothing_when_called, shown, takes
from headway.errors import ConfigError, LifespanError
from headway.execution.event_loop import LoopThread
from headway.execution.handlers import WithContext, needs_no_context
from headway.execution.tracebacks import place_in_user_code
from headway.runtime.flag import Flag

Entered = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]

Lifespan = Callable[[], Entered] | Callable[[dict[str, Any]], Entered]
"""A function that makes a context manager. If it has a parameter, it is called with the connection's settings."""


class Consequences(NamedTuple):
    """Sentences for error messages that state what a failure of the lifespan means for the records."""

    at_start: str = "No record was taken."
    at_end: str = "All records that are done are committed."
    of_an_early_end: str = "Records that are not done will be handled again."


_OF_RECORDS: Final = Consequences()

SHUT_DOWN_WITHIN: Final = 10.0
"""How long the shut-down of a lifespan can take, in seconds."""

_GIVES_UP_WITHIN = 1.0  # how long a lifespan that is cancelled, or is still starting, has to end, in seconds
_CHECK_EVERY = 0.1  # how often the start-up checks whether the run was stopped, in seconds
_ADVICE = "Write a function that yields, and decorate it with @asynccontextmanager or @contextmanager of contextlib."


def check_lifespan(lifespan: Any, *, has_settings: bool = True) -> None:
    """Raise `ConfigError` unless the value is a function that can make a context manager.

    If `has_settings` is true, the function can have a parameter for the connection's settings.
    """
    if not callable(lifespan):
        raise ConfigError(
            f"lifespan is {shown(lifespan)}; it must be a function that makes a context manager. {_ADVICE}"
        )
    if runs_nothing_when_called(lifespan):
        raise ConfigError(f"lifespan is {called(lifespan)}, which makes no context manager. {_ADVICE}")
    takes_nothing = takes(lifespan, 0, as_promised=True)
    if not takes_nothing and not has_settings:
        raise ConfigError(
            f"lifespan is {called(lifespan)}, which cannot be called with (). Declare it without a parameter, because "
            "no connection settings are passed to it here."
        )
    if not takes_nothing and not _takes_settings(lifespan):
        raise ConfigError(
            f"lifespan is {called(lifespan)}, which can be called neither with () nor with (settings). Declare it with "
            "no parameter, or with one."
        )


def check_lifespan_of(lifespan: Any, handler: Callable[..., Any]) -> None:
    """Raise `ConfigError` if the lifespan is async but the handler is not, because no loop would run the lifespan."""
    inner = inspect.unwrap(lifespan)
    is_async = inspect.isasyncgenfunction(inner) or (isinstance(inner, type) and hasattr(inner, "__aenter__"))
    if is_async and not is_coroutine_function(handler):
        raise ConfigError(
            f"The lifespan {called(lifespan)} is async, and the handler {called(handler)} is a plain function, which "
            "runs on no event loop. Write the lifespan with @contextmanager, or the handler as an async def."
        )


def make(lifespan: Lifespan, settings: Mapping[str, Any] | None) -> Entered:
    """Call a lifespan, and return the context manager that it makes.

    A lifespan that has a parameter is called with `settings`, or with an empty dict if `settings` is None.
    """
    gets_settings = settings is not None and _takes_settings(lifespan)
    made: Entered = lifespan(dict(settings or {})) if gets_settings else lifespan()  # type: ignore[call-arg]
    if not hasattr(type(made), "__aenter__") and not hasattr(type(made), "__enter__"):
        raise ConfigError(f"The function returned {shown(made)}, which is not a context manager. {_ADVICE}")
    return made


def failed_at_start(lifespan: Lifespan, error: BaseException, then: Consequences = _OF_RECORDS) -> LifespanError:
    """Make the `LifespanError` that reports that the start-up failed with `error`."""
    return _failed(lifespan, error, "failed at its start", then.at_start)


def failed_at_end(lifespan: Lifespan, error: BaseException, then: Consequences = _OF_RECORDS) -> LifespanError:
    """Make the `LifespanError` that reports that the shut-down failed with `error`."""
    return _failed(lifespan, error, "failed at its end", then.at_end)


def _failed(lifespan: Lifespan, error: BaseException, how: str, then: str) -> LifespanError:
    failure = LifespanError(
        f"The lifespan {called(lifespan)} {how}{place_in_user_code(error)}: {description_of(error)}. {then}"
    )
    failure.__cause__ = error
    return failure


def _takes_settings(lifespan: Callable[..., Any]) -> bool:
    return takes(lifespan, 1, as_promised=True)


class WithState(partial[Any]):
    """Wraps a handler, and sets the `state` of each context before it calls the handler.

    The class is a `partial`, so that `inspect` recognises the wrapper of an async handler as async.
    """

    inner: WithContext  # the wrapped handler; `func` can be an inner function, because Python flattens nested partials
    state_of: Callable[[], Any]
    in_batches: bool

    def __new__(cls, handler: WithContext, state_of: Callable[[], Any], in_batches: bool) -> Self:
        made = super().__new__(cls, handler)
        made.inner, made.state_of, made.in_batches = handler, state_of, in_batches
        return made

    def __call__(self, record: Any, context: Any) -> Any:
        state = self.state_of()
        for each in context if self.in_batches else (context,):
            each.state = state
        return self.inner(record, context)


def with_state(handler: WithContext, state_of: Callable[[], Any], *, in_batches: bool) -> WithContext:
    """Wrap a handler so that its context has the lifespan's state. In a batch, every context has the state."""
    return handler if needs_no_context(handler) else WithState(handler, state_of, in_batches)


class Life:
    """Runs a lifespan in this process: on the event loop of the handlers, or in a thread of its own.

    If the handler is async, the lifespan runs in one task of the handlers' event loop, even if the lifespan itself is
    not async. Otherwise the lifespan runs in a thread of its own, so that it starts and ends in the same thread. If the
    thread does not end in time, it is abandoned.
    """

    def __init__(
        self, lifespan: Lifespan, settings: Mapping[str, Any] | None, then: Consequences = _OF_RECORDS
    ) -> None:
        self._state: Any = None
        self.failure: LifespanError | None = None
        """The error that the shut-down raised, or None."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that runs the lifespan and the handlers, or None if the handler is a plain function."""
        self._lifespan = lifespan
        self._settings = settings
        self._then = then
        self._started: Future[Any] = Future()
        self._ended: Future[None] | None = None
        self._ending = Flag()
        self._ending_in_loop: asyncio.Event | None = None
        self._own_loop: LoopThread | None = None

    def state(self) -> Any:
        """Return the object that the lifespan has yielded, or None if it has not started."""
        return self._state

    def check(self, handler: Callable[..., Any]) -> None:
        """Raise `ConfigError` if the lifespan cannot be used with this handler."""
        check_lifespan_of(self._lifespan, handler)

    def start(
        self,
        handler: Callable[..., Any],
        owner_loop: asyncio.AbstractEventLoop | None,
        is_stopping: Callable[[], bool],
        give_up: Callable[[LifespanError], None],
    ) -> None:
        """Enter the lifespan, and wait until it has started. Raises `LifespanError` if the start-up fails.

        If the handler is async and there is no `owner_loop`, an event loop in a new thread runs the lifespan and the
        handler until `close` is called. `give_up` is called with an error if the lifespan ends before the run does. If
        `is_stopping` returns True, this method stops waiting and returns.
        """
        if is_coroutine_function(handler):
            if owner_loop is None:
                self._own_loop = LoopThread()
            self.loop = owner_loop or self._own_loop.loop  # type: ignore[union-attr]
            self._ended = asyncio.run_coroutine_threadsafe(self._live_in_loop(), self.loop)
        else:
            self._ended = Future()
            threading.Thread(target=self._serve, args=[self._ended], name="headway-lifespan", daemon=True).start()
        while not (self._started.done() or self._ended.done()):
            wait([self._started, self._ended], _CHECK_EVERY, "FIRST_COMPLETED")
            if is_stopping():
                return
        if not self._started.done():
            raise failed_at_start(self._lifespan, _error_of(self._ended), self._then) from None
        self._state = self._started.result()
        self._ended.add_done_callback(lambda ended: self._tell_of_end(ended, give_up))

    def _serve(self, ended: "Future[None]") -> None:
        try:
            self._live()
        # The user's code can raise anything, and no other code would report an error of this thread.
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    def _live(self) -> None:
        made = make(self._lifespan, self._settings)
        if not hasattr(type(made), "__enter__"):
            raise ConfigError("It is async, but the handler is a plain function. Write it with @contextmanager")
        with made as state:  # type: ignore[union-attr]
            self._started.set_result(state)
            self._ending.wait()

    async def _live_in_loop(self) -> None:
        self._ending_in_loop = asyncio.Event()
        if self._ending.is_set():
            return
        made = make(self._lifespan, self._settings)
        if hasattr(type(made), "__aenter__"):
            async with made as state:  # type: ignore[union-attr]
                await self._wait_for_end(state)
        else:
            with made as state:  # type: ignore[union-attr]
                await self._wait_for_end(state)

    async def _wait_for_end(self, state: Any) -> None:
        assert self._ending_in_loop is not None  # noqa: S101 - for the type checker
        self._started.set_result(state)
        await self._ending_in_loop.wait()

    def _tell_of_end(self, ended: Future[None], give_up: Callable[[LifespanError], None]) -> None:
        if self._ending.is_set() or ended.cancelled():
            return
        error = ended.exception() or RuntimeError("it returned")
        give_up(_failed(self._lifespan, error, "ended while records were handled", self._then.of_an_early_end))

    def close(self, timeout: float) -> None:
        """Leave the lifespan. The shut-down can take `SHUT_DOWN_WITHIN` seconds, regardless of `timeout`."""
        if self._ended is None:
            return
        ended_itself = self._ended.done()
        self._ending.set()
        if self.loop and self._ending_in_loop:
            with contextlib.suppress(RuntimeError):  # raised if the loop has ended
                self.loop.call_soon_threadsafe(self._ending_in_loop.set)
        try:
            if not ended_itself:
                self._wait_for(self._ended)
        finally:
            if self._own_loop:
                self._own_loop.close(_GIVES_UP_WITHIN)

    def _wait_for(self, ended: Future[None]) -> None:
        has_started = self._started.done()
        if self.loop and not has_started:
            ended.cancel()
        wait([ended], SHUT_DOWN_WITHIN if has_started else _GIVES_UP_WITHIN)
        if not ended.done() and has_started:
            self.note(self.endless())
        if not ended.done() and self.loop:
            ended.cancel()
        elif has_started and not ended.cancelled() and ended.done() and (error := ended.exception()):
            self.note(failed_at_end(self._lifespan, error, self._then))

    def for_process(self) -> tuple[Lifespan, Mapping[str, Any]]:
        """Return the lifespan and its settings in a form that can be sent to another process."""
        return self._lifespan, (self._settings or {}) if _takes_settings(self._lifespan) else {}

    def endless(self) -> LifespanError:
        """Make the error that reports that the shut-down took too long."""
        return LifespanError(
            f"The lifespan {called(self._lifespan)} did not end within {SHUT_DOWN_WITHIN:g} s and was abandoned. "
            f"{self._then.at_end} Set a shorter time limit for its shut-down."
        )

    def note(self, failure: LifespanError | None) -> None:
        """Record that a shut-down failed, in this process or in another one. Only the first failure is kept."""
        self.failure = self.failure or failure


def _error_of(ended: Future[None]) -> BaseException:
    try:
        return ended.exception() or RuntimeError("it ended without a yield")
    except CancelledError as error:
        return error
