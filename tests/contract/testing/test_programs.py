"""The tests of docs/testing.md, and those of the project in examples/tested, pass as they are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def passed(directory: Path, *arguments: str) -> str:
    """Run pytest in a directory; return its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(directory), *arguments]
    ran = subprocess.run(
        command, check=False, cwd=directory, env=os.environ, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.kafka
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        name = re.match(r"# (\w+\.py)\n", program)
        assert name
        if "headway.spark" in program:  # tests/spark/test_frames.py has these
            continue
        (tmp_path / name[1]).write_text(program)
    assert passed(tmp_path).startswith("4 passed")


def test_the_tests_of_the_example_pass() -> None:
    assert passed(ROOT / "examples" / "tested", "-c", os.devnull).startswith("5 passed")
