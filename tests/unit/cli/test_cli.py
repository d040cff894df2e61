"""The `headway` command itself: its help, its subcommands, and how mistakes look."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headway import cli
from headway.cli.options.kafka_options import connect
from headway.errors import ConfigError
from tests.unit.cli import missing_modules


def subcommand(monkeypatch: pytest.MonkeyPatch, run: click.Command) -> None:
    """Make `headway levels` be another command."""
    monkeypatch.setattr("headway.cli.commands.levels.levels", run)


def test_the_help_names_every_subcommand_and_imports_none() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from headway import cli\n"
        "print(CliRunner().invoke(cli.headway, ['--help']).output)\n"
        "print('imported:', [m for m in sys.modules if m.startswith(('headway.cli.', 'headway.broker', 'rich'))])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name} " in output for name in cli.SUMMARIES)
    assert "imported: []" in output


@pytest.mark.parametrize("name", cli.SUMMARIES)
def test_the_line_in_the_help_is_what_the_subcommand_says_of_itself(name: str) -> None:
    command = cli.headway.get_command(click.Context(cli.headway), name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == cli.SUMMARIES[name]


@pytest.mark.parametrize(
    "arguments", [["produce"], ["consume"], ["levels"], ["topics"], ["topics", "create"], ["topics", "delete"]]
)
def test_every_help_teaches_with_an_example(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.headway, [*arguments, "--help"])
    assert result.exit_code == 0
    assert f"headway {' '.join(arguments)} " in result.output.partition("Usage")[2].partition("\n")[2]


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """The commands below this one that have none below them."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        below = command.get_command(context, each)
        assert below is not None
        yield from leaves(below, f"{name} {each}")


def test_in_every_command_json_is_lines_of_json() -> None:
    said = {
        name: option.help
        for name, command in leaves(cli.headway, "headway")
        for option in command.params
        if isinstance(option, click.Option) and "--json" in option.opts
    }
    assert said.keys() >= {"headway topics list", "headway schedule stats", "headway acls consumer"}
    for name, text in said.items():
        assert re.match("For programs: (a line of JSON for each|one line of JSON)", text or ""), name


def test_a_mistake_is_one_sentence_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def refuses() -> None:
        raise ConfigError("Something is wrong. Do it right.")

    subcommand(monkeypatch, refuses)
    result = CliRunner().invoke(cli.headway, ["levels"])
    assert (result.exit_code, result.stderr) == (1, "headway: Something is wrong. Do it right.\n")


def test_ctrl_c_is_one_sentence_and_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def waits() -> None:
        raise KeyboardInterrupt

    subcommand(monkeypatch, waits)
    result = CliRunner().invoke(cli.headway, ["levels"])
    assert (result.exit_code, result.stderr) == (130, "\nheadway: stopped by Ctrl-C.\n")


def test_a_command_without_its_extra_says_how_to_install_it_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HEADWAY_BOOTSTRAP_SERVERS", raising=False)
    missing_modules.remove(monkeypatch, "platformdirs", "headway.broker", "headway.cli.commands.broker")
    result = CliRunner().invoke(cli.headway, ["broker", "status"])
    assert result.exit_code == 1
    assert result.stderr.startswith("headway: ")
    assert "pip install 'cjdk" in result.stderr
    assert result.stderr.count("\n") == 1
    assert connect(None, [], None).config == {"bootstrap.servers": "localhost:9092"}


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli.headway, ["prodcue"])
    assert result.exit_code == 2
    assert "No such command 'prodcue'" in result.stderr


@pytest.mark.parametrize("arguments", ["levels --levels 3 --capacity 50", "--help", "topics --help"])
@pytest.mark.parametrize(
    ("where", "reason"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_a_stdout_that_takes_nothing_is_one_sentence(arguments: str, where: str, reason: str) -> None:
    if where == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    ended = shell(arguments, where)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"headway: Reading stdin or writing stdout failed: {reason}. Check what")
    assert ended.stderr.count("\n") == 1


def test_a_stderr_that_is_closed_is_no_error() -> None:
    ended = shell("levels --levels 3 --capacity 50", "2>&-")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "level  share  percent")
    assert shell("levels --levels 3 --capacity 5", "2>&-").returncode == 1


def test_a_stdin_that_is_closed_is_not_an_empty_one() -> None:
    ended = shell("offsets decode - --offset 3", "<&-")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("headway: Reading stdin or writing stdout failed: Bad file descriptor.")


def shell(arguments: str, streams: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell does it, which can close streams."""
    program = "import sys; sys.argv[0] = 'headway'; from headway.cli import main; main()"
    command = f'exec "$0" -c "{program}" {arguments} {streams}'
    return subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [["levels", "--levels", "3", "--capacity", "50"], ["worker", "--help"]])
def test_a_pipe_in_latin_1_gets_bars_and_dots_in_ascii(words: list[str]) -> None:
    program = [sys.executable, "-P", "-c", "from headway.cli import main; main()", *words]
    in_latin_1 = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ran = subprocess.run(program, env=in_latin_1, capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ("######" if words[0] == "levels" else "MODULE[:HANDLER]...") in ran.stdout.decode("ascii")
