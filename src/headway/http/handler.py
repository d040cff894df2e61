"""The handler: one request per record, and what its answer means for the record."""

import asyncio
import inspect
import io
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp
from multidict import CIMultiDict

from headway import ConsumerRecord, Context, FatalError, RetriableError
from headway.declarations import check_flag, check_function, check_number, check_whole, shown, takes
from headway.errors import ConfigError
from headway.http.hosts import Hosts
from headway.http.request_response import Request, Response

R = TypeVar("R")
_TRANSIENT = {
    408,
    425,
    429,
}  # the 4xx statuses after which another attempt may succeed (RFC 9110 §15.5.9, RFC 8470, RFC 6585)
_LARGE = 1 << 20
_NOT_IDEMPOTENT = {"POST", "PATCH"}  # by definition (RFC 9110 §9.2.2, RFC 5789)


def open_session() -> aiohttp.ClientSession:
    """Open a session without limits (the handler has its own) and without cookies, which could leak between records."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())


class _Client(NamedTuple):
    """What the requests in one event loop share. `keeper` closes the session when the loop ends."""

    session: aiohttp.ClientSession
    hosts: Hosts
    keeper: AsyncGenerator[None, None]


class Requests(Generic[R]):
    """The base of both handlers: sends requests for records or batches, and decides what an answer means."""

    _called_with = "record"

    def __init__(
        self,
        to_request: Callable[[R], Request],
        *,
        per_host: int = 20,
        timeout: float = 10.0,
        accept: Collection[int] = (),
        on_response: Callable[[R, Response], Any] | None = None,
        idempotency_key: bool = True,
        max_retry_after: float = 3600.0,
        max_body: int = 1 << 20,
        session: Callable[[], aiohttp.ClientSession] = open_session,
    ) -> None:
        check_function("to_request", to_request, (self._called_with,))
        check_whole("per_host", per_host, 1, " at a time")
        check_number("timeout", timeout, 0.001, " seconds")
        check_number("max_retry_after", max_retry_after, 0, " seconds")
        check_whole("max_body", max_body, 0, " bytes")
        check_flag("idempotency_key", idempotency_key)
        check_function("session", session, ())
        if on_response is not None and (not callable(on_response) or not takes(on_response, 2)):
            raise ConfigError(
                f"on_response is {shown(on_response)}; it must be a function of ({self._called_with}, response)."
            )
        if not isinstance(accept, Collection) or not all(isinstance(status, int) for status in accept):
            raise ConfigError(f"accept is {shown(accept)}; it must be a set of statuses, such as {{409}}.")
        self._to_request = to_request
        self._per_host = per_host
        self._timeout = timeout
        self._accept = frozenset(accept)
        self._on_response = on_response
        self._idempotency_key = idempotency_key
        self._max_retry_after = max_retry_after
        self._max_body = max_body
        self._open_session = session
        self._clients: dict[asyncio.AbstractEventLoop, _Client] = {}

    async def _ask(self, request: Request, key: Callable[[], str]) -> Response:
        """Send a request. Returns the answer if it means "done". `key` computes an `Idempotency-Key` if needed."""
        host = str(request.target.origin())
        client = await self._client()
        async with client.hosts.place(host):
            response = await self._send(client.session, request, self._headers(request, key))
            wait = self._wait(response)
            if wait:  # before the slot is released, so that the next request does not go out
                client.hosts.hold(host, wait)
        self._judge(request, response, wait)
        return response

    async def _tell(self, about: R, response: Response) -> None:
        if self._on_response:
            judged = self._on_response(about, response)
            if inspect.isawaitable(judged):
                await judged

    def _headers(self, request: Request, key: Callable[[], str]) -> CIMultiDict[str]:
        headers = CIMultiDict(request.headers)
        needs_key = self._idempotency_key and request.method.upper() in _NOT_IDEMPOTENT
        if needs_key and "Idempotency-Key" not in headers:
            headers["Idempotency-Key"] = key()
        return headers

    # Sending

    async def _send(self, session: aiohttp.ClientSession, request: Request, headers: CIMultiDict[str]) -> Response:
        """Send the request and return the answer, whatever its status.

        Errors are raised without their causes, whose messages can contain the URL with its secrets.
        """
        try:
            body, media_type = request.content
            if body is not None:
                headers.setdefault("Content-Type", media_type)
            sending = session.request(
                request.method,
                request.target,
                headers=headers,
                data=_in_pieces(body),
                allow_redirects=False,
                raise_for_status=False,
                timeout=aiohttp.ClientTimeout(),
            )
            # Use our own timeout, because aiohttp's rounds to whole seconds.
            async with asyncio.timeout(self._timeout), sending as answer:
                return await self._read(answer)
        except TimeoutError:
            raise RetriableError(f"{request} got no complete answer within {self._timeout:g} s.") from None
        except aiohttp.InvalidURL:
            raise FatalError(f"{request} cannot be sent: its URL is not valid.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RetriableError(f"{request} failed: {_reason(error)}.") from None
        except (TypeError, ValueError) as error:
            raise FatalError(f"{request} cannot be sent: {error}") from None

    async def _read(self, answer: aiohttp.ClientResponse) -> Response:
        body = bytearray()
        while chunk := await answer.content.read(self._max_body + 1 - len(body)):  # reading 0 bytes returns nothing
            body += chunk
        truncated = len(body) > self._max_body
        if truncated:
            answer.close()  # this closes the connection, so the rest of the answer is not read
        return Response(answer.status, answer.headers, bytes(body[: self._max_body]), truncated)

    # What an answer means

    def _is_done(self, response: Response) -> bool:
        return 200 <= response.status < 300 or response.status in self._accept

    def _wait(self, response: Response) -> float | None:
        """Return how long the host asks to wait, in seconds, if the request should be retried."""
        if self._is_done(response) or not _is_transient(response):
            return None
        wait = retry_after(response.headers, time.time())
        return None if wait is None else min(wait, self._max_retry_after)

    def _judge(self, request: Request, response: Response, wait: float | None) -> None:
        if self._is_done(response):
            return
        answered = f"{request} was answered {response}"
        if _is_transient(response):
            raise RetriableError(f"{answered}.", retry_after=wait)
        if 300 <= response.status < 400:
            raise FatalError(
                f"{answered}, but redirects are not followed. Send the request to the address that it redirects to."
            )
        raise FatalError(f"{answered}. If this means that the record is done, add the status to `accept`.")

    # The client

    async def _client(self) -> _Client:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            session = self._open_session()
            # If the handler is dropped while its loop goes on, as in Spark's workers, the finalizer closes the session.
            # Its reference also keeps the session from being reported as unclosed when the handler is collected.
            at_last = weakref.finalize(self, _close_later, loop, session)
            at_last.atexit = False
            keeper = self._keep(loop, session, at_last)
            self._clients[loop] = _Client(session, Hosts(self._per_host), keeper)
            await anext(keeper)
        return self._clients[loop]

    async def _keep(
        self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession, at_last: "weakref.finalize[Any, Any]"
    ) -> AsyncGenerator[None, None]:
        """Close the session in its own loop without being called: a loop that ends closes its generators."""
        async with session:
            try:
                yield
            finally:
                self._clients.pop(loop, None)
                at_last.detach()


class HttpHandler(Requests[Any]):
    """A handler that sends a request per record. The record is done if the answer is a 2xx, which is its result.

    For Spark's `parallel_map` it does the same with rows; there, the fields of the `Response` are the result.

    Network errors, timeouts and the statuses 408, 425, 429 and 5xx are retried, but not before `Retry-After`: until
    then, no request goes to that host. Any other status raises `FatalError`. Redirects are not followed, and TLS
    certificates are verified. Connections are kept open, and closed when the consumer's `run` ends.

    Args:
        to_request: Creates the request for a record. If it raises an error, the attempt has failed.
        per_host: How many requests one host (scheme, name and port) gets at the same time.
        timeout: How many seconds a request may take, from connecting to the last byte of the answer.
        accept: Statuses besides 2xx that mean "done", such as 409 if a repeated request is answered like that.
        on_response: Called with record and answer before the record is done. If it raises an error, the attempt has
            failed.
        idempotency_key: Send the header `Idempotency-Key` with a POST or PATCH, unless the request already has it. It
            is the record's origin, and so the same for each attempt.
        max_retry_after: The longest wait that a server may ask for, in seconds.
        max_body: How many bytes of an answer are read; a longer body is truncated.
        session: Opens the session, for proxies, client certificates and the like. Called in the event loop.

    Raises `ConfigError` for arguments out of bounds.
    """

    async def __call__(self, record: Any, context: Context | None = None) -> Response:
        """Send the record's request. Returns the answer if it means "done". The context is not used."""
        response = await self._ask(self._to_request(record), lambda: id_of(record))
        await self._tell(record, response)
        return response


def _close_later(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    closing = session.close()
    try:
        asyncio.run_coroutine_threadsafe(closing, loop)
    except RuntimeError:  # the loop has ended, and closed the session
        closing.close()


def id_of(record: Any) -> str:
    """Return the origin of a record or row as text, which is the same for each attempt.

    Raises `FatalError` for a row that has none, because a repeated request could not be recognised.
    """
    if isinstance(record, ConsumerRecord):
        return str(record.origin)
    record_origin = getattr(record, "record_origin", None)  # Arrow columns, with `arrow_columns`, do not have it
    origin = record_origin and record_origin()
    if origin is None:
        raise FatalError(
            "The row has no id for Idempotency-Key, which is derived from the columns topic, partition and offset of "
            'format("headway"). Keep these columns and leave out arrow_columns, or give the request its own header '
            "Idempotency-Key, or set idempotency_key=False."
        )
    return str(origin)


def _in_pieces(body: bytes | None) -> bytes | io.BytesIO | None:
    """Wrap a large body so that aiohttp sends it in pieces; in one piece it would block the event loop."""
    return body if body is None or len(body) <= _LARGE else io.BytesIO(body)


def _is_transient(response: Response) -> bool:
    return response.status >= 500 or response.status in _TRANSIENT


def _reason(error: Exception) -> str:
    """Describe a failure with the operating system's message, or else the error's name, but never its own text."""
    name = type(error).__name__
    return f"{error.strerror} ({name})" if isinstance(error, OSError) and error.strerror else name


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that Retry-After asks for, or None if it is missing or is neither seconds nor a date.

    A date is compared with the answer's own Date, so that a wrong clock on either side does not matter. Without a Date,
    it is compared with `now`, in seconds since the epoch.

    >>> retry_after({"Retry-After": "120"}, now=0)
    120.0
    >>> retry_after({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, now=784111770.0)
    7.0
    """
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    until = _seconds_of(value)
    if until is None:
        return None
    sent = _seconds_of(headers.get("Date", ""))
    return max(0.0, until - (now if sent is None else sent))


def _seconds_of(date: str) -> float | None:
    """Parse an HTTP date in any of its three forms (RFC 9110 §5.6.7) into seconds since the epoch, or return None."""
    try:
        parsed = parsedate_to_datetime(date)
        return _in_utc(parsed).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def _in_utc(date: datetime) -> datetime:
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date
