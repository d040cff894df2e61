"""What does tracing cost a record, in CPU time of its process?

Each round measures in turns: without tracing, with tracing of which no record is sampled, of which one in a hundred is
sampled, and of which all are sampled. The SDK is real, and its exporter drops what it gets. Handlers return at once, so
tracing costs the largest fraction that it can. `--quick` has fewer records and rounds.
"""

import statistics
from collections.abc import Callable, Sequence

from _cpu_clock import CpuClock
from _harness import Options, Report, main, ratio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, TraceIdRatioBased

from headway import ConsumerRecord, ParallelConsumer, Producer, create_topic
from headway.tracing import Tracing

QUESTION = "What does tracing cost a record?"
SAMPLERS: dict[str, Sampler | None] = {
    "off": None,
    "none sampled": ALWAYS_OFF,
    "1 in 100 sampled": TraceIdRatioBased(0.01),
    "all sampled": ALWAYS_ON,
}
VALUE = b"x" * 100
Path = Callable[[str, int, Tracing | None], float]


class Dropping(SpanExporter):
    """An exporter that costs nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Drop the spans."""
        return SpanExportResult.SUCCESS


def send(servers: str, count: int, tracing: Tracing | None) -> float:
    """Send records, and return the microseconds of each."""
    clock = CpuClock(count)
    with Producer({"bootstrap.servers": servers, "linger.ms": 5}, tracing=tracing) as producer:
        for number in range(count):
            producer.send("sent", VALUE)
            clock.see(number)
        producer.flush()
        clock.see(count)
    return clock.cost.microseconds


def handling(handler: Callable[[CpuClock, Callable[[], None]], Callable[[ConsumerRecord], object]]) -> Path:
    """Return the path that handles the filled topic with this handler."""

    def measure(servers: str, count: int, tracing: Tracing | None) -> float:
        clock = CpuClock(count)
        config = {"bootstrap.servers": servers, "group.id": f"g-{id(clock)}", "auto.offset.reset": "earliest"}
        consumer = ParallelConsumer(config, max_concurrency=100, ordering="unordered", tracing=tracing)
        with consumer:
            consumer.subscribe("filled")
            consumer.run(handler(clock, consumer.stop))
        return clock.cost.microseconds

    return measure


def in_threads(clock: CpuClock, stop: Callable[[], None]) -> Callable[[ConsumerRecord], object]:
    """Make a plain handler."""
    done = 0

    def handle(record: ConsumerRecord) -> None:
        nonlocal done
        done += 1
        if clock.see(done):
            stop()

    return handle


def on_the_loop(clock: CpuClock, stop: Callable[[], None]) -> Callable[[ConsumerRecord], object]:
    """Make an async handler."""
    handle = in_threads(clock, stop)

    async def handle_async(record: ConsumerRecord) -> None:
        handle(record)

    return handle_async


PATHS: dict[str, Path] = {"send": send, "threads": handling(in_threads), "loop": handling(on_the_loop)}


def measure(report: Report, options: Options) -> None:
    """Each path with each sampler, in turns."""
    count, rounds = (10_000, 1) if options.quick else (30_000, 3)
    with options.broker() as servers:
        for topic in ("sent", "filled"):
            create_topic({"bootstrap.servers": servers}, topic, partitions=4)
        fill(servers, int(1.1 * count))
        for name, path in PATHS.items():
            found: dict[str, list[float]] = {system: [] for system in SAMPLERS}
            for _ in range(rounds):
                for system, sampler in SAMPLERS.items():
                    found[system].append(measured(path, servers, count, sampler))
            for system, costs in found.items():
                report.add(name, system, statistics.median(costs), "µs")
                ratios = [ratio(cost, off) for cost, off in zip(costs, found["off"], strict=True)]
                report.add(name, f"{system}, beside off", statistics.median(ratios), "×")


def measured(path: Path, servers: str, count: int, sampler: Sampler | None) -> float:
    """Measure a path with a provider of its own."""
    if sampler is None:
        return path(servers, count, None)
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Dropping()))
    try:
        return path(servers, count, Tracing(provider=provider))
    finally:
        provider.shutdown()


def fill(servers: str, count: int) -> None:
    """Fill the topic of the handlers with traced records, as a service would."""
    provider = TracerProvider(shutdown_on_exit=False)
    with Producer({"bootstrap.servers": servers}, tracing=Tracing(provider=provider)) as producer:
        for _ in range(count):
            producer.send("filled", VALUE)


if __name__ == "__main__":
    main(QUESTION, measure)
