"""Handlers that send one request per record or batch. The response decides whether the records are done."""

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
# Statuses after which another attempt can succeed (RFC 9110 §15.5.9, RFC 8470, RFC 6585).
_TRANSIENT = {408, 425, 429}
_LARGE = 1 << 20  # bytes; a body that is larger is sent in chunks
_NOT_IDEMPOTENT = {"POST", "PATCH"}  # methods that are not idempotent by definition (RFC 9110 §9.2.2, RFC 5789)


def open_session() -> aiohttp.ClientSession:
    """Open a session that does not limit the number of connections and keeps no cookies.

    The handler itself limits the requests to each host. If cookies were kept, the requests for all records would share
    them.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())


class _LoopSession(NamedTuple):
    """The session and the hosts that are used in one event loop. `keeper` closes the session when the loop ends."""

    session: aiohttp.ClientSession
    hosts: Hosts
    keeper: AsyncGenerator[None, None]


class Requests(Generic[R]):
    """The base class of `HttpHandler` and `BatchHttpHandler`: sends requests, and decides which records are done."""

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
            raise ConfigError(f"accept is {shown(accept)}; it must be a set of HTTP statuses, such as {{409}}.")
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
        """Send a request, and return the response.

        Raises an error unless the response means that the record is done. If the request needs an `Idempotency-Key`,
        `key` is called to compute the key.
        """
        host = str(request.target.origin())
        client = await self._client()
        async with client.hosts.slot(host):
            response = await self._send(client.session, request, self._headers(request, key))
            wait = self._wait(response)
            if wait:  # otherwise the next request could be sent before the pause begins
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
        """Send a request, and return the response, whatever its status is.

        Errors are raised without a `__cause__`, because the message of the cause can contain the URL, which can contain
        secrets.
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
            # The time-outs of aiohttp are rounded to whole seconds, so they are not used.
            async with asyncio.timeout(self._timeout), sending as answer:
                return await self._read(answer)
        except TimeoutError:
            raise RetriableError(f"{request} got no complete response within {self._timeout:g} s.") from None
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
            answer.close()  # closing the connection avoids reading the rest of the response
        return Response(answer.status, answer.headers, bytes(body[: self._max_body]), truncated)

    # Deciding whether the record is done

    def _is_done(self, response: Response) -> bool:
        return 200 <= response.status < 300 or response.status in self._accept

    def _wait(self, response: Response) -> float | None:
        """Return the seconds that the host requests to wait before a retry, or None if there is no such request."""
        if self._is_done(response) or not _is_transient(response):
            return None
        wait = retry_after(response.headers, time.time())
        return None if wait is None else min(wait, self._max_retry_after)

    def _require_done(self, request: Request, response: Response, wait: float | None) -> None:
        if self._is_done(response):
            return
        answered = f"{request} got the response {response}"
        if _is_transient(response):
            raise RetriableError(f"{answered}.", retry_after=wait)
        if 300 <= response.status < 400:
            raise FatalError(
                f"{answered}, but redirects are not followed. Send the request to the URL that it is redirected to."
            )
        raise FatalError(f"{answered}. If this means that the record is done, add the status to `accept`.")

    # The session of each event loop

    async def _client(self) -> _LoopSession:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            session = self._open_session()
            # In a worker of Spark, the handler can be garbage-collected while its loop continues. The finalizer then
            # closes the session. Because the finalizer refers to the session, aiohttp does not warn that the session
            # was not closed.
            at_last = weakref.finalize(self, _close_later, loop, session)
            at_last.atexit = False
            keeper = self._keep(loop, session, at_last)
            self._clients[loop] = _LoopSession(session, Hosts(self._per_host), keeper)
            await anext(keeper)
        return self._clients[loop]

    async def _keep(
        self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession, at_last: "weakref.finalize[Any, Any]"
    ) -> AsyncGenerator[None, None]:
        """Keep the session open until its event loop ends, and then close it in that loop.

        When an event loop ends, it closes its async generators, including this one. So users need not close anything.
        """
        async with session:
            try:
                yield
            finally:
                self._clients.pop(loop, None)
                at_last.detach()


class HttpHandler(Requests[Any]):
    """A handler that sends one request per record and returns the response. With a status of 2xx, the record is done.

    This handler also handles rows in Spark's `parallel_map`. The result of a row has the fields of the `Response`.

    Network errors, time-outs and the statuses 408, 425, 429 and 5xx are retried. If a response has the header
    `Retry-After`, no request is sent to its host before that time. After any other status the handler raises
    `FatalError`. Redirects are not followed, and TLS certificates are verified. Connections are kept open until the
    consumer's `run` ends.

    Args:
        to_request: A function that creates the request for a record. If it raises an error, the attempt has failed.
        per_host: The maximum number of simultaneous requests to one host (scheme, name and port).
        timeout: The maximum duration of a request in seconds, from connecting to the last byte of the response.
        accept: Statuses in addition to 2xx that mean that the record is done, such as 409 if the server sends it for a
            repeated request.
        on_response: A function that is called with the record and the response before the record is done. If it raises
            an error, the attempt has failed.
        idempotency_key: True to add the header `Idempotency-Key` to a POST or PATCH that does not have it. The header's
            value is the record's origin, which is the same for each attempt.
        max_retry_after: The longest wait that a server can request, in seconds. A longer wait is shortened to this
            limit.
        max_body: The maximum number of bytes that are read of a response's body. A longer body is truncated.
        session: A function that opens the session, for example with a proxy or a client certificate. It is called in
            the event loop.

    Raises `ConfigError` if an argument is outside its allowed range.
    """

    async def __call__(self, record: Any, context: Context | None = None) -> Response:
        """Send the request for a record, and return the response. The context is ignored.

        Raises an error unless the response means that the record is done.
        """
        response = await self._ask(self._to_request(record), lambda: id_of(record))
        await self._call_on_response(record, response)
        return response


class BatchHttpHandler(Requests[Sequence[Any]]):
    """A handler that sends one request per batch, as in `run(BatchHttpHandler(to_request), batches=Batches(100))`.

    `BatchHttpHandler` has the same arguments as `HttpHandler`, but `to_request` and `on_response` are called with the
    list of records. The `Idempotency-Key` is derived from the origins of all records, so it is the same if the same
    batch is sent again.

    A response with a 2xx status can name the records that failed, as JSON:
    `{"failures": [{"index": 3, "error": "no such customer", "retry": false}]}`. Only these records are retried, or
    become dead letters if `"retry"` is false. All other records of the batch are done.
    """

    _called_with = "records"

    async def __call__(self, records: Sequence[Any], contexts: Sequence[Context] | None = None) -> Response:
        """Send the request for a batch, and return the response. The contexts are ignored.

        Raises `BatchError` if the response names records that failed, and another error if the whole batch failed.
        """
        request = self._to_request(records)
        response = await self._ask(request, lambda: _key_of(records))
        await self._call_on_response(records, response)
        if failures := self._failures(request, response, len(records)):
            raise BatchError(failures)
        return response

    def _failures(self, request: Request, response: Response, count: int) -> Any:
        try:
            return named_failures(response, count, self._max_retry_after)
        except ValueError as error:  # all records are retried, because it is not known which of them are done
            raise RetriableError(
                f"{request} got the response {response}, but the failed records cannot be read from its body: {error}."
            ) from None


def _close_later(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    closing = session.close()
    try:
        asyncio.run_coroutine_threadsafe(closing, loop)
    except RuntimeError:  # the loop has ended, and has closed the session
        closing.close()


def id_of(record: Any) -> str:
    """Return the origin of a record or row as a string. The string is the same for each attempt.

    Raises `FatalError` for a row without an origin, because the server could not recognise a repeated request.
    """
    if isinstance(record, ConsumerRecord):
        return str(record.origin)
    record_origin = getattr(record, "record_origin", None)  # rows have this method, but Arrow columns do not
    origin = record_origin and record_origin()
    if origin is None:
        raise FatalError(
            "The row has no id for Idempotency-Key, which is derived from the columns `topic`, `partition` and `offset`"
            ' of format("headway"). Keep these columns and leave out arrow_columns, or set the header Idempotency-Key '
            "in the request, or set idempotency_key=False."
        )
    return str(origin)


def _key_of(records: Sequence[Any]) -> str:
    return hashlib.sha256("\n".join(map(id_of, records)).encode()).hexdigest()


def _streamed(body: bytes | None) -> bytes | io.BytesIO | None:
    """Wrap a large body, so that aiohttp sends it in chunks. Sending it at once would block the event loop."""
    return body if body is None or len(body) <= _LARGE else io.BytesIO(body)


def _is_transient(response: Response) -> bool:
    return response.status >= 500 or response.status in _TRANSIENT


def _reason(error: Exception) -> str:
    """Describe an error by the operating system's message or by its class, because its text can contain secrets."""
    name = type(error).__name__
    return f"{error.strerror} ({name})" if isinstance(error, OSError) and error.strerror else name


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that the header Retry-After requests to wait, or None if it is missing or not valid.

    If the header is a date, the difference from the response's header Date is returned, so that a wrong clock on the
    server or on this machine does not matter. Without the header Date, the difference from `now` (in seconds since the
    epoch) is returned.

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
