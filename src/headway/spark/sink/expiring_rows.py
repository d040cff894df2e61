"""Turns the column `expires` into the header that consumers read."""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from headway.core.untrusted import LATEST
from headway.errors import DeliveryError
from headway.kafka.producer.columnar import Columns
from headway.records.expiry import expiry_header


def expiring(columns: Columns, expires: Sequence[int | None], due: Sequence[int | None] | None) -> Columns:
    """Add the header to records that expire. Times are in microseconds since the epoch.

    Raises `DeliveryError` for a time out of bounds, and for a row that would expire before it is due.
    """
    headers: list[Any] = []
    rows = zip(expires, due or repeat(None), columns.headers or repeat(None), strict=False)
    for index, (at, due_at, own) in enumerate(rows):
        if at is None:
            headers.append(own)
            continue
        if not 0 <= at // 1000 <= LATEST:
            raise DeliveryError(
                f"{columns.name_of(index)} expires {at // 1000} ms after 1970; the time must be from 1970 to the year "
                "9999. Correct the column expires, or leave it null."
            )
        if due_at is not None and at <= due_at:
            raise DeliveryError(
                f"{columns.name_of(index)} expires {at // 1000} ms after 1970, but is due at {due_at // 1000}, when it "
                "would have expired already. Give a later time in the column expires, or leave it null."
            )
        headers.append([*(own or ()), expiry_header(at // 1000)])
    return columns._replace(headers=headers)
