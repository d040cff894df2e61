"""The option `tracing`: what it accepts, and that it can be sent to processes."""

import pickle
import subprocess
import sys

import pytest

from headway import ParallelConsumer, Producer
from headway.errors import ConfigError
from headway.tracing import Tracing


def printed_by(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("make", [Producer, ParallelConsumer])
def test_tracing_must_be_a_tracing(make: type) -> None:
    config = {"bootstrap.servers": "localhost:1"} | ({"group.id": "billing"} if make is ParallelConsumer else {})
    with pytest.raises(ConfigError, match=r"it must be a Tracing, such as Tracing\(\)"):
        make(config, tracing=True)


def test_an_option_of_tracing_is_a_flag() -> None:
    with pytest.raises(ConfigError, match="parent"):
        Tracing(parent="yes")  # type: ignore[arg-type]


def test_tracing_can_be_sent_to_another_process() -> None:
    tracing = Tracing(parent=True, keys=True)
    assert pickle.loads(pickle.dumps(tracing)) == tracing  # noqa: S301 - our own bytes


def test_without_opentelemetry_the_error_says_what_to_install_and_everything_else_works() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import headway
headway.Producer({"bootstrap.servers": "localhost:1"}).close(0)
from headway.tracing import Tracing
try:
    Tracing()
except headway.errors.ConfigError as error:
    print(error)
"""
    assert "Tracing needs OpenTelemetry's API, which is not installed. Run: pip install" in printed_by(program)


def test_a_program_that_does_not_trace_imports_nothing_for_it() -> None:
    program = """
import sys
import headway
headway.ParallelConsumer, headway.Producer, headway.Relay, headway.Scheduler
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    assert printed_by(program) == "[]\n"
