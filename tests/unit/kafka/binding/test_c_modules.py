"""The C modules stay within their memory, whatever the messages are."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SOURCES = ROOT / "src" / "headway" / "kafka" / "binding"


@pytest.fixture
def sanitizer() -> str:
    """The library of the address sanitizer, which must be loaded before Python."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc, which compiles the module with sanitizers")
    named = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(named.stdout.strip()).is_absolute():
        pytest.skip("gcc has no address sanitizer (libasan)")
    return named.stdout.strip()


@pytest.mark.parametrize("name", ["columns", "messages"])
def test_random_messages_are_copied_without_a_step_beyond_any_buffer(tmp_path: Path, sanitizer: str, name: str) -> None:
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").exists():
        pytest.skip("the headers of Python are not installed")
    module = tmp_path / f"native_{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]
    command = [
        "gcc",
        "-std=c11",
        *checks,
        "-DMOST_BYTES=1000",
        "-shared",
        "-fPIC",
        f"-I{include}",
        str(SOURCES / f"native_{name}.c"),
        "-o",
        str(module),
    ]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    # With malloc for every object, the sanitizer also sees what is written beyond the end of a bytes object.
    variables = {"LD_PRELOAD": sanitizer, "PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(f"fuzz_{name}.py")), str(tmp_path)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "every message was copied and freed\n"), done.stderr
