"""The demo, from its command to its results."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.slow
def test_the_short_demo_keeps_its_promises_and_leaves_its_results(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo", "--records", "1000", "--output", str(tmp_path / "out")]

    demo = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    assert "✗" not in demo.stdout
    assert len(re.findall("^[✓–] ", demo.stdout, re.MULTILINE)) == 12
    assert re.search(r"✓ +every flight once, at its level +[\d,]+ \+ [\d,]+ \+ [\d,]+ *\n", demo.stdout)
    assert re.search(r"✓ +urgent flights pass those on time +[\d.]+% of [\d,]+ that met a backlog", demo.stdout)
    assert re.search(r"✓ +every flight once in Parquet +1,000, of which 1,000 different", demo.stdout)
    assert re.search(r"Done in \d+ s: (all 12|1[01] of 12) promises were kept", demo.stdout)
    assert max(map(len, demo.stdout.splitlines())) <= 80 + len(str(tmp_path))
    for picture in ("priority.png", "delays.png"):
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "out" / "flights").glob("*/*.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["Step 1", "Step 2"])  # in the second, Java is only starting
def test_ctrl_c_ends_the_demo_in_one_sentence(step: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo", "--records", "1000", "--output", str(tmp_path)]

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any(line.startswith(step) for line in demo.stdout)
        demo.send_signal(signal.SIGINT)
        rest, errors = demo.communicate(timeout=60)

    assert demo.returncode == 130, errors
    assert rest.endswith("\nStopped, and nothing is left running.\n")
    assert errors == ""
