"""A call that was made, and its result."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from headway.core.calls.stored_result import StoredResult
from headway.errors import CallFailedError, DeserializationError


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call.

    Attributes:
        id: The id of the call.
        value: What the handler returned. JSON turns tuples into lists, bytes into base64, and dataclasses into dicts,
            unless `returns` named a type.
        error: The error with which the record failed for good, or None.
        attempts: The number of the last attempt. 0 if the handler was never called.
        ended_at: When the record was done or had failed.
    """

    id: str
    value: Any
    error: CallFailedError | None
    attempts: int
    ended_at: datetime

    @classmethod
    def of(cls, call: str, stored: StoredResult, returns: Any) -> "CallResult":
        """Decode a stored result. Raises `DeserializationError` if the value is not of the type `returns`."""
        ended_at = datetime.fromtimestamp(stored.ended_at / 1000, UTC)
        if stored.error is not None:
            exception, message = stored.error.type, stored.error.message
            text = f"The call {call} failed after {stored.attempts} attempts: {exception}: {message}"
            return cls(call, None, CallFailedError(text, exception, message), stored.attempts, ended_at)
        try:
            value = msgspec.json.decode(stored.value, type=returns)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reason = f"The result of the call {call} cannot be decoded as {returns}: {error}"
            raise DeserializationError(reason) from error
        return cls(call, value, None, stored.attempts, ended_at)


class Call(Future[Any]):
    """A call that was made. As a future, it resolves to what the handler returned.

    It raises `CallFailedError` if the record failed for good, `DeliveryError` if it was not stored, and `KafkaError` if
    the result cannot be read. If nobody keeps the object, its result is no longer waited for, and its callbacks are not
    called.

    Attributes:
        id: The id, with which any process can look up the result later.
    """

    def __init__(self, id: str, returns: Any) -> None:
        super().__init__()
        self.id = id
        self._returns = returns
        self._resolving = threading.Lock()
        self._is_resolved = False

    def __await__(self) -> Generator[Any, None, Any]:
        # Several tasks can await the same call, and a task that is cancelled must not cancel it for the others.
        return asyncio.shield(asyncio.wrap_future(self)).__await__()

    def settle(self, stored: StoredResult) -> None:
        """Resolve the call with its stored result, unless it has been resolved or cancelled."""
        try:
            result = CallResult.of(self.id, stored, self._returns)
        except DeserializationError as error:
            self.fail(error)
            return
        if result.error is not None:
            self.fail(result.error)
        elif self._is_first():
            self.set_result(result.value)

    def fail(self, error: BaseException) -> None:
        """Resolve the call with an error, unless it has been resolved or cancelled."""
        if self._is_first():
            self.set_exception(error)

    def delivered(self, error: BaseException | None, _: object) -> None:
        """Take the delivery report of the record."""
        if error is not None:
            self.fail(error)

    def _is_first(self) -> bool:
        """Return whether the caller is the first to resolve this future. It must do so if the result is True."""
        with self._resolving:
            first, self._is_resolved = not self._is_resolved, True
        return first and self.set_running_or_notify_cancel()
