"""Handlers that send one request per record or per batch, and decide by the answer whether the records are done."""

import asyncio
import hashlib
import inspect
import io
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp
from multidict import CIMultiDict

from headway import BatchError, ConsumerRecord, Context, FatalError, RetriableError
from headway.declarations import check_flag, check_function, check_number, check_whole, shown, takes
from headway.errors import ConfigError
from headway.http.batch_failures import named_failures
from headway.http.hosts import Hosts
from headway.http.request_response import Request, Response

R = TypeVar("R")
_TRANSIENT = {408, 425, 429}  # another attempt can succeed after these (RFC 9110 §15.5.9, RFC 8470, RFC 6585)
_LARGE = 1 << 20  # bytes of a body
_NOT_IDEMPOTENT = {"POST", "PATCH"}  # by definition (RFC 9110 §9.2.2, RFC 5789)


def open_session() -> aiohttp.ClientSession:
    """Open a session without limits, because the handler has its own, and without cookies that records would share."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())


class _LoopSession(NamedTuple):
    """The session and the hosts of one event loop. `keeper` closes the session when the loop ends."""

    session: aiohttp.ClientSession
    hosts: Hosts
    keeper: AsyncGenerator[None, None]


class Requests(Generic[R]):
    """The base of both handlers: sends the requests, and decides whether an answer means "done"."""

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
        self._clients: dict[asyncio.AbstractEventLoop, _LoopSession] = {}

    async def _ask(self, request: Request, key: Callable[[], str]) -> Response:
        """Send a request. Returns the answer if it means "done". `key` computes an `Idempotency-Key` if needed."""
        host = str(request.target.origin())
        client = await self._client()
        async with client.hosts.slot(host):
            response = await self._send(client.session, request, self._headers(request, key))
            wait = self._wait(response)
            if wait:  # before the slot is released, or the next request would go out first
                client.hosts.pause(host, wait)
        self._require_done(request, response, wait)
        return response

    async def _call_on_response(self, about: R, response: Response) -> None:
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
                data=_streamed(body),
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

    # The meaning of an answer

    def _is_done(self, response: Response) -> bool:
        return 200 <= response.status < 300 or response.status in self._accept

    def _wait(self, response: Response) -> float | None:
        """Return how many seconds the host asks to wait, if the request should be retried."""
        if self._is_done(response) or not _is_transient(response):
            return None
        wait = retry_after(response.headers, time.time())
        return None if wait is None else min(wait, self._max_retry_after)

    def _require_done(self, request: Request, response: Response, wait: float | None) -> None:
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

    # The session of each event loop

    async def _client(self) -> _LoopSession:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            session = self._open_session()
            # If the handler is dropped while its loop continues, as in Spark's workers, the finalizer closes the
            # session. Its reference also keeps the session from being reported as unclosed when the handler is
            # collected.
            at_last = weakref.finalize(self, _close_later, loop, session)
            at_last.atexit = False
            keeper = self._keep(loop, session, at_last)
            self._clients[loop] = _LoopSession(session, Hosts(self._per_host), keeper)
            await anext(keeper)
        return self._clients[loop]

    async def _keep(
        self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession, at_last: "weakref.finalize[Any, Any]"
    ) -> AsyncGenerator[None, None]:
        """Close the session in its own loop. Users need not call this, because an ending loop closes its generators."""
        async with session:
            try:
                yield
            finally:
                self._clients.pop(loop, None)
                at_last.detach()


class HttpHandler(Requests[Any]):
    """A handler that sends one request per record. The record is done if the status is 2xx. The result is the answer.

    It also handles rows in Spark's `parallel_map`. Their results are the fields of the `Response`.

    Network errors, timeouts and the statuses 408, 425, 429 and 5xx are retried. If an answer has `Retry-After`, no
    request is sent to that host before then. Any other status raises `FatalError`. Redirects are not followed, and TLS
    certificates are verified. Connections are kept open, and closed when the consumer's `run` ends.

    Args:
        to_request: Creates the request for a record. If it raises an error, the attempt has failed.
        per_host: The most simultaneous requests to one host (scheme, name and port).
        timeout: How many seconds a request may take, from connecting to the last byte of the answer.
        accept: Statuses besides 2xx that mean "done", such as 409 if the server sends it for a repeated request.
        on_response: Called with record and answer before the record is done. If it raises an error, the attempt has
            failed.
        idempotency_key: Whether to send the header `Idempotency-Key` with a POST or PATCH, unless the request already
            has it. Its value is the record's origin, so it is the same for each attempt.
        max_retry_after: The longest wait that a server may ask for, in seconds.
        max_body: How many bytes of an answer are read; a longer body is truncated.
        session: A function that opens the session, for proxies, client certificates and the like. It is called in the
            event loop.

    Raises `ConfigError` for arguments out of bounds.
    """

    async def __call__(self, record: Any, context: Context | None = None) -> Response:
        """Send the record's request. Returns the answer if it means "done". The context is not used."""
        response = await self._ask(self._to_request(record), lambda: id_of(record))
        await self._call_on_response(record, response)
        return response


class BatchHttpHandler(Requests[Sequence[Any]]):
    """A handler that sends one request per batch: `run(BatchHttpHandler(to_request), batches=Batches(100))`.

    It has the arguments of `HttpHandler`, but `to_request` and `on_response` are called with the list of records.
    `Idempotency-Key` is derived from the origins of all records, so it is the same if the same batch is sent again.

    An answer with a 2xx status can name the records that failed, as JSON:
    `{"failures": [{"index": 3, "error": "no such customer", "retry": false}]}`. Only those are retried, or become dead
    letters if `"retry"` is false. The others are done.
    """

    _called_with = "records"

    async def __call__(self, records: Sequence[Any], contexts: Sequence[Context] | None = None) -> Response:
        """Send the request for a batch. Returns the answer if it names no failure. The contexts are not used."""
        request = self._to_request(records)
        response = await self._ask(request, lambda: _key_of(records))
        await self._call_on_response(records, response)
        if failures := self._failures(request, response, len(records)):
            raise BatchError(failures)
        return response

    def _failures(self, request: Request, response: Response, count: int) -> Any:
        try:
            return named_failures(response, count, self._max_retry_after)
        except ValueError as error:  # all records are retried, because it is not known which are done
            raise RetriableError(
                f"{request} was answered {response}, but which records failed cannot be read from it: {error}."
            ) from None


def _close_later(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    closing = session.close()
    try:
        asyncio.run_coroutine_threadsafe(closing, loop)
    except RuntimeError:  # the loop has ended, and closed the session
        closing.close()


def id_of(record: Any) -> str:
    """Return the origin of a record or row as text. It is the same for each attempt.

    Raises `FatalError` for a row without an origin, because the server could not recognise a repeated request.
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


def _key_of(records: Sequence[Any]) -> str:
    return hashlib.sha256("\n".join(map(id_of, records)).encode()).hexdigest()


def _streamed(body: bytes | None) -> bytes | io.BytesIO | None:
    """Wrap a large body so that aiohttp sends it in chunks. Sent at once, it would block the event loop."""
    return body if body is None or len(body) <= _LARGE else io.BytesIO(body)


def _is_transient(response: Response) -> bool:
    return response.status >= 500 or response.status in _TRANSIENT


def _reason(error: Exception) -> str:
    """Describe a failure by the operating system's message or the error's class. Its own text can contain secrets."""
    name = type(error).__name__
    return f"{error.strerror} ({name})" if isinstance(error, OSError) and error.strerror else name


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that Retry-After asks for, or None if it is missing or is neither seconds nor a date.

    A date is compared with the header Date of the answer, so a wrong clock on either side does not matter. Without that
    header, it is compared with `now`, in seconds since the epoch.

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


def _seconds_of(text: str) -> float | None:
    """Parse an HTTP date in any of its three forms (RFC 9110 §5.6.7) into seconds since the epoch, or return None."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
