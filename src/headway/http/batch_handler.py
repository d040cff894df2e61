"""The handler of batches: a request for several records, and the meaning of its answer for each of them."""

import hashlib
from collections.abc import Sequence
from typing import Any

from headway import BatchError, Context, RetriableError
from headway.http.handler import Requests, id_of
from headway.http.named_failures import named_failures
from headway.http.request_response import Request, Response


class BatchHttpHandler(Requests[Sequence[Any]]):
    """A handler that sends a request for each batch: `consumer.run_batches(BatchHttpHandler(to_request), 100)`.

    All is as with `HttpHandler`, for the records of a batch together. The answer may name those that failed: a 2xx with
    the JSON `{"failures": [{"index": 3, "error": "no such customer", "retry": false}]}`. They alone are tried again, or
    with `"retry": false` become dead letters; the others are done. `to_request` makes the request of a list of records.
    `Idempotency-Key` is made of their origins, and is the same when the same batch is sent again.
    """

    _called_with = "records"

    async def __call__(self, records: Sequence[Any], contexts: Sequence[Context] | None = None) -> Response:
        """Send the request of a batch; return the answer if it names no failure. No contexts are needed."""
        request = self._to_request(records)
        response = await self._ask(request, lambda: _key_of(records))
        await self._tell(records, response)
        if failures := self._failures(request, response, len(records)):
            raise BatchError(failures)
        return response

    def _failures(self, request: Request, response: Response, count: int) -> Any:
        try:
            return named_failures(response, count, self._max_retry_after)
        except ValueError as error:  # all are tried again, since nobody knows which are done
            raise RetriableError(
                f"{request} was answered {response}, which does not say which records failed: {error}."
            ) from None


def _key_of(records: Sequence[Any]) -> str:
    return hashlib.sha256("\n".join(map(id_of, records)).encode()).hexdigest()
