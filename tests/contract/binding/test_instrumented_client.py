"""OpenTelemetry's instrumentation of the Kafka client, which would break ours, does not reach our clients."""

import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "headway"

INSTRUMENTED_FIRST = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
ConfluentKafkaInstrumentor().instrument()
{rest}
"""
INSTRUMENTED_LAST = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
import headway
import headway.parallel.consumer, headway.priority.producer
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
ConfluentKafkaInstrumentor().instrument()
{rest}
"""
REST = """
import confluent_kafka
from headway import ParallelConsumer, Producer
from headway.kafka.binding.mock_cluster import MockCluster

with MockCluster() as mock:
    mock.create(["orders"], 1)
    with Producer(mock.settings) as producer:
        producer.send("orders", b"value").result(10)
    consumer = ParallelConsumer({**mock.settings, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe("orders")

    def handle(record):
        print(tuple(record.headers))
        consumer.stop()

    with consumer:
        consumer.run(handle)
print("instrumentation" in confluent_kafka.Producer.__module__)
"""


def output(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_our_clients_are_not_instrumented_if_the_client_library_is() -> None:
    """Its `produce` would add headers of its own, and its `consume` would make spans that no handler belongs to."""
    # `instrument` replaces names in `confluent_kafka`, so it matters whether our modules were imported before.
    for program in (INSTRUMENTED_FIRST, INSTRUMENTED_LAST):
        assert output(program.format(rest=REST)) == "()\nTrue\n"


def test_the_clients_classes_come_from_the_module_that_is_never_patched() -> None:
    patched = re.compile(r"\bck\.(Consumer|Producer)\b|from confluent_kafka import [^\n]*\b(Consumer|Producer)\b")
    assert [path for path in SOURCE.rglob("*.py") if patched.search(path.read_text())] == []
