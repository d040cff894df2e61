"""Where the commands find Kafka, and that they keep secrets."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headway import cli
from headway.cli.connection import Connection, connect, kafka_options, read_properties
from headway.errors import ConfigError

SECRET = "hunter2"  # noqa: S105
# Nobody listens on port 1: connections are refused at once.
NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr("headway.cli.connection._local_broker", lambda: None)


def servers(option: str | None = None, setting: str | None = None, file: Path | None = None) -> str:
    settings = [("bootstrap.servers", setting)] if setting else []
    found = connect(option, settings, file).config["bootstrap.servers"]
    assert isinstance(found, str)
    return found


def test_an_option_wins_over_a_setting_that_over_the_file_and_that_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.cli.connection._local_broker", lambda: "local")
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file\n")
    assert servers() == "local"
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", "environment")
    assert servers() == "environment"
    assert servers(file=file) == "file"
    assert servers(setting="setting", file=file) == "setting"
    assert servers("option", "setting", file) == "option"


def test_without_anything_it_is_kafkas_usual_port_on_this_machine() -> None:
    assert servers() == "localhost:9092"


def test_a_file_of_settings_may_have_comments_and_values_with_equals_signs(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# ours\n! too\n\n sasl.username = me \nsasl.password=a=b#c\n")
    assert read_properties(file) == {"sasl.username": "me", "sasl.password": "a=b#c"}


def test_a_line_that_is_no_setting_is_named_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"sasl.username=me\nsasl.password {SECRET}\n")
    with pytest.raises(ConfigError, match=r"Line 2 of .* is not key=value") as error:
        read_properties(file)
    assert SECRET not in str(error.value)


def test_a_file_that_is_not_text_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        read_properties(file)


def test_the_settings_reach_the_command_and_its_repr_does_not_show_them() -> None:
    @click.command()
    @kafka_options
    def command(connection: Connection) -> None:
        click.echo(connection.config["sasl.password"] == SECRET)
        click.echo(repr(connection))

    output = CliRunner().invoke(command, ["-X", f"sasl.password={SECRET}"]).output
    assert output == "True\nConnection()\n"


@pytest.mark.parametrize(
    "settings",
    [
        ["-X", f"sasl.password={SECRET}", "-X", "sasl.mechanism=PLAIN", "-X", "security.protocol=SASL_PLAINTEXT"],
        ["-X", f"sasl.pasword={SECRET}"],
        ["-X", f"sasl.password={SECRET}", "-X", "linger.ms=soon"],
        ["-X", f"sasl.password {SECRET}"],
        ["-X", f"={SECRET}"],
        ["-X", f"ssl.key.pem={SECRET}", "-X", "security.protocol=SSL"],
    ],
)
def test_no_error_shows_a_secret_of_the_command_line(settings: list[str]) -> None:
    result = CliRunner().invoke(cli.headway, ["topics", "list", "-b", NOWHERE, *settings])
    assert result.exit_code in (1, 2)
    assert result.output
    assert SECRET not in result.output


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "list"],
        ["topics", "create", "orders", "--levels", "3"],
        ["topics", "delete", "orders", "--yes"],
        ["produce", "orders"],
        ["consume", "orders", "--group", "billing"],
    ],
)
def test_a_broker_that_does_not_answer_is_one_sentence_that_says_what_to_do(command: list[str]) -> None:
    result = CliRunner().invoke(cli.headway, [*command, "-b", NOWHERE], input="record\n")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"headway: Kafka cannot be reached at {NOWHERE} (")
    assert "Connection refused" in result.stderr
    assert "`headway broker start`" in result.stderr
    assert result.stderr.count("\n") == 1
