"""Reads the response to the request for a batch, which can name the records that failed."""

import math
from collections.abc import Mapping
from typing import Any

from headway.declarations import is_number, is_whole
from headway.errors import FatalError, RetriableError
from headway.http.request_response import Response

_LONGEST = 1000  # at most this many characters of an error are kept


def named_failures(response: Response, count: int, max_retry_after: float) -> Mapping[int, Exception]:
    """Return the errors of the failed records, by their indexes in a batch of `count` records.

    A failed record is retried unless `retry` is false in its entry. The entry's `retry_after`, if present, is the
    number of seconds to wait before the retry.

    Raises `ValueError` if the response does not show clearly which records failed.
    """
    if not _is_json(response) or not response.body.strip():
        return {}
    if response.truncated:
        raise ValueError("it is longer than max_body")
    try:
        answer = response.json()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    failures = answer.get("failures") if isinstance(answer, dict) else None
    if failures is None:
        return {}
    if not isinstance(failures, list):
        raise ValueError("failures is not a list")
    found: dict[int, Exception] = {}
    for failure in failures:
        index: Any = failure.get("index") if isinstance(failure, dict) else None
        if not is_whole(index) or not 0 <= index < count:
            raise ValueError(f"the index of a failure is missing or is not a number from 0 to {count - 1}")
        found[index] = _error(failure, max_retry_after)
    return found


def _error(failure: Mapping[str, Any], max_retry_after: float) -> Exception:
    error = failure.get("error")
    text = error[:_LONGEST] if isinstance(error, str) and error else "The server reported that this record failed."
    if failure.get("retry", True) is False:
        return FatalError(text)
    wait: Any = failure.get("retry_after")
    if not is_number(wait) or not 0 <= wait < math.inf:
        return RetriableError(text)
    return RetriableError(text, retry_after=min(float(wait), max_retry_after))


def _is_json(response: Response) -> bool:
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return media_type in ("application/json", "text/json") or media_type.endswith("+json")
