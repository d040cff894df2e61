"""The option `tracing` of clients. This module imports nothing of OpenTelemetry, so any program can import it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from headway.declarations import check_flag
from headway.errors import ConfigError
from headway.records.record_types import ConsumerRecord
from headway.runtime.extras import how_to_install
from headway.tracing.traced_record import TracedRecord

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from headway.tracing.spans import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Makes a client trace its records. A client without this option has no costs for tracing.

    >>> Producer(config, tracing=Tracing())  # doctest: +SKIP

    `docs/tracing.md` lists the spans. The names of attributes are those that the environment variable
    `OTEL_SEMCONV_STABILITY_OPT_IN` chooses when the client is created. A failure of the tracing never fails a record.

    Args:
        provider: The provider of the tracer. By default, OpenTelemetry's global provider.
        parent: True to make the span of a handler's call a child of the span that has sent the record, so that both
            are in one trace. By default, the span is linked to it. The spans of batches are always linked.
        keys: True to add the keys of records to their spans. Keys can be personal data.

    Raises `ConfigError` if the extra `otel` is not installed.
    """

    provider: "TracerProvider | None" = field(default=None, repr=False)
    parent: bool = False
    keys: bool = False

    def __post_init__(self) -> None:
        check_flag("parent", self.parent)
        check_flag("keys", self.keys)
        try:
            import_module("opentelemetry.trace")
        except ImportError as missing:
            raise ConfigError(
                f"Tracing needs OpenTelemetry's API, which is not installed. Run: {how_to_install('otel')}"
            ) from missing

    def spans(self) -> "Spans":
        """Return the object that makes the spans. Clients call this when they are created."""
        from headway.tracing.spans import Spans  # noqa: PLC0415 - only programs that trace need this import

        return Spans(self.provider, is_parent=self.parent, has_keys=self.keys)

    @contextmanager
    def process(self, *records: ConsumerRecord, group: str | None = None) -> Iterator[None]:
        """Make a span of the handling of these records, for a loop over the records of a `PriorityConsumer`.

        The span is current in the `with` block. `ParallelConsumer` does the same for each call of a handler.
        """
        traced = [TracedRecord.of(record) for record in records]
        with _spans_of(self).processing(traced, group):
            yield


@lru_cache(maxsize=16)
def _spans_of(tracing: Tracing) -> "Spans":
    return tracing.spans()


def checked_spans(tracing: object) -> "Spans | None":
    """Return the spans of the option `tracing`. Raises `ConfigError` if it is neither a `Tracing` nor None."""
    if tracing is None:
        return None
    if not isinstance(tracing, Tracing):
        raise ConfigError(f"tracing is a {type(tracing).__name__}; it must be a Tracing, such as Tracing(), or None.")
    return tracing.spans()
