"""Carries the context of a trace in the headers of records, and to the processes that run handlers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.propagate import extract, get_global_textmap, inject

from headway.records.record_types import Header

_LONGEST: Final = 8192  # what W3C allows for baggage; a longer header is ignored, because anybody can send records


def carrying(headers: Sequence[Header] | None, context: Context) -> list[Header]:
    """Return the headers with those of the context, which replace headers with the same names."""
    carried: dict[str, str] = {}
    inject(carried, context)
    return [*(each for each in headers or () if each[0] not in carried), *_encoded(carried)]


def _encoded(carried: Mapping[str, str]) -> Iterator[Header]:
    return ((name, text.encode()) for name, text in carried.items())


def context_in(headers: Sequence[Header]) -> Context:
    """Return the context in the headers of a record. It is empty if they have none that can be read."""
    if not headers:
        return Context()
    wanted = get_global_textmap().fields
    carried = {name: text for name, value in headers if name in wanted and (text := _text(value))}
    return extract(carried, Context()) if carried else Context()


def _text(value: str | bytes | None) -> str | None:
    if value is None or len(value) > _LONGEST:
        return None
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        return None


def carrier_of(context: Context) -> dict[str, str]:
    """Return the context in a form that can be sent to another process."""
    carried: dict[str, str] = {}
    inject(carried, context)
    return carried


@contextmanager
def in_context(carrier: Mapping[str, str]) -> Iterator[None]:
    """Make the context from another process the current one."""
    token = attach(extract(carrier, Context()))
    try:
        yield
    finally:
        detach(token)
