"""The batch handler: one request for several records, and what its answer means for each of them."""

import hashlib
from collections.abc import Sequence
from typing import Any

from headway import BatchError, Context, RetriableError
from headway.http.handler import Requests, id_of
from headway.http.named_failures import named_failures
from headway.http.request_response import Request, Response


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
