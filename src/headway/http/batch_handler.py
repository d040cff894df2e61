"""The batch handler: one request for several records, and what its answer means for each of them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from headway import BatchError, Context
from headway.declarations import is_number, is_whole
from headway.errors import FatalError, RetriableError
from headway.http.handler import Requests, id_of
from headway.http.request_response import Request, Response

_LONGEST = 1000  # characters of an error


class BatchHttpHandler(Requests[Sequence[Any]]):
    """A handler that sends one request per batch: `run(BatchHttpHandler(to_request), batches=Batches(100))`.

    Everything is as with `HttpHandler`, but for the records of a batch together. The answer can name the records that
    failed, with a 2xx status and the JSON `{"failures": [{"index": 3, "error": "no such customer", "retry": false}]}`.
    Only those are retried, or become dead letters if `"retry"` is false; the others are done. `to_request` turns a list
    of records into a request. `Idempotency-Key` is derived from their origins, and is the same if the same batch is
    sent again.
    """

    _called_with = "records"

    async def __call__(self, records: Sequence[Any], contexts: Sequence[Context] | None = None) -> Response:
        """Send the request for a batch. Returns the answer if it names no failure. The contexts are not used."""
        request = self._to_request(records)
        response = await self._ask(request, lambda: _key_of(records))
        await self._tell(records, response)
        if failures := self._failures(request, response, len(records)):
            raise BatchError(failures)
        return response

    def _failures(self, request: Request, response: Response, count: int) -> Any:
        try:
            return named_failures(response, count, self._max_retry_after)
        except ValueError as error:  # all are retried, because it is unknown which are done
            raise RetriableError(
                f"{request} was answered {response}, but which records failed cannot be read from it: {error}."
            ) from None


def _key_of(records: Sequence[Any]) -> str:
    return hashlib.sha256("\n".join(map(id_of, records)).encode()).hexdigest()


def named_failures(response: Response, count: int, max_retry_after: float) -> Mapping[int, Exception]:
    """Return the errors of the records that failed, by their index among the `count` records.

    `retry` defaults to true, and `retry_after` can then ask for a wait in seconds.

    Raises `ValueError` if the answer does not make clear which they are.
    """
    if not _is_json(response) or not response.body.strip():
        return {}
    if response.truncated:
        raise ValueError("it is longer than max_body")
    try:
        told = response.json()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    failures = told.get("failures") if isinstance(told, dict) else None
    if failures is None:
        return {}
    if not isinstance(failures, list):
        raise ValueError("failures is not a list")
    found: dict[int, Exception] = {}
    for failure in failures:
        index: Any = failure.get("index") if isinstance(failure, dict) else None
        if not is_whole(index) or not 0 <= index < count:
            raise ValueError(f"a failure has no index from 0 to {count - 1}")
        found[index] = _error(failure, max_retry_after)
    return found


def _error(failure: Mapping[str, Any], max_retry_after: float) -> Exception:
    error = failure.get("error")
    text = error[:_LONGEST] if isinstance(error, str) and error else "The server reported that it failed."
    if failure.get("retry", True) is False:
        return FatalError(text)
    wait: Any = failure.get("retry_after")
    if not is_number(wait) or not 0 <= wait < math.inf:
        return RetriableError(text)
    return RetriableError(text, retry_after=min(float(wait), max_retry_after))


def _is_json(response: Response) -> bool:
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return media_type in ("application/json", "text/json") or media_type.endswith("+json")
