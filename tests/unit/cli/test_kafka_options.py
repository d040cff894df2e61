"""Where the commands find Kafka, and that they keep secrets."""

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headway import cli
from headway.cli.options.kafka_options import ConnectionSettings, connect, kafka_options
from headway.errors import ConfigError
from headway.settings.settings_file import read_properties

SECRET = "hunter2"  # noqa: S105
# Nobody listens on port 1: connections are refused at once.
NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr("headway.cli.options.kafka_options.local_broker", lambda: None)


def servers(option: str | None = None, setting: str | None = None, file: Path | None = None) -> str:
    settings = [("bootstrap.servers", setting)] if setting else []
    found = connect(option, settings, file).config["bootstrap.servers"]
    assert isinstance(found, str)
    return found


def test_an_option_wins_over_a_setting_that_over_the_file_and_that_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.cli.options.kafka_options.local_broker", lambda: "local")
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
    def command(connection: ConnectionSettings) -> None:
        click.echo(connection.config["sasl.password"] == SECRET)
        click.echo(repr(connection))

    output = CliRunner().invoke(command, ["-X", f"sasl.password={SECRET}"]).output
    assert output == "True\nConnectionSettings(assumes_servers=True)\n"


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


KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQ==\nc2VjcmV0cw==\n-----END PRIVATE KEY-----\n"
CHAIN = "-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----\n" * 2
IN_ONE_LINE = KEY.replace("\n", "\\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"ssl.key.pem={KEY}", KEY),
        (f"ssl.key.pem=\n{KEY}", KEY),
        (f'ssl.key.pem="{KEY.rstrip()}"\n', KEY),
        (f'ssl.key.pem="\n{KEY}"\n', KEY),
        (f"ssl.key.pem = {IN_ONE_LINE}\n", KEY),
        (f'ssl.key.pem="{IN_ONE_LINE}"\n', KEY),
        ("ssl.key.pem=" + " ".join(KEY.splitlines()) + "\n", KEY),
        ("ssl.key.pem=" + KEY.rstrip().replace("\n", " \\\n  ") + "\n", KEY),
        ("ssl.key.pem=" + KEY.replace("\n", "\r\n"), KEY),
        (f"ssl.key.pem={CHAIN}", CHAIN),
        ("ssl.key.pem=" + CHAIN.replace("-----\n---", "-----\n\n---"), CHAIN),
        (f"ssl.key.pem={CHAIN.replace(chr(10), chr(92) + 'n')}\n", CHAIN),
    ],
)
def test_a_pem_text_is_in_a_file_of_settings_as_it_is(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# ours\n{text}\nsasl.username=me\n", newline="")
    assert read_properties(file) == {"ssl.key.pem": expected, "sasl.username": "me"}


@pytest.mark.parametrize("text", [KEY.partition("-----END")[0], KEY.rstrip("-\n"), "-----BEGIN PRIVATE KEY-----"])
def test_a_pem_text_without_an_end_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"sasl.username=me\nssl.key.pem={text}")
    with pytest.raises(ConfigError, match=r"The PEM text that begins in line 2 of .* is not complete") as error:
        read_properties(file)
    assert "c2VjcmV0cw" not in str(error.value)


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_around_a_value_stay_part_of_it_and_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, quote: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"sasl.username=o'hara\nsasl.password = {quote}{SECRET}{quote}\n")
    assert read_properties(file) == {"sasl.username": "o'hara", "sasl.password": f"{quote}{SECRET}{quote}"}
    [said] = caplog.messages
    assert said == (
        f"The quotes around the value of sasl.password in line 2 of {file} are read as part of the value. Remove them "
        "unless they belong to it."
    )


def test_the_environment_names_a_file_of_settings_and_an_option_wins_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @kafka_options
    def command(connection: ConnectionSettings) -> None:
        click.echo(connection.config["bootstrap.servers"])

    def printed(*arguments: str) -> str:
        return CliRunner().invoke(command, arguments).output.strip()

    here, other = tmp_path / "here.properties", tmp_path / "other.properties"
    here.write_text("bootstrap.servers=here\n")
    other.write_text("bootstrap.servers=other\n")
    monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", "servers")
    monkeypatch.setenv("HEADWAY_CONFIG_FILE", str(here))
    assert printed() == "here"
    assert printed("--config-file", str(other)) == "other"
    monkeypatch.setenv("HEADWAY_CONFIG_FILE", "")
    assert printed() == "servers"
    monkeypatch.setenv("HEADWAY_CONFIG_FILE", str(tmp_path / "none"))
    assert f"{tmp_path / 'none'}' does not exist" in printed()


def test_librdkafkas_other_name_for_the_servers_counts_as_well() -> None:
    assert connect(None, [("metadata.broker.list", "there")], None).config == {"bootstrap.servers": "there"}


def test_what_a_worker_declares_wins_only_over_servers_that_nobody_has_named() -> None:
    declared = {"bootstrap.servers": "declared", "client.id": "declared"}
    assumed, said = connect(None, [], None), connect("said", [("client.id", "said")], None)
    assert assumed.over(declared) == {}
    assert assumed.over({}) == {"bootstrap.servers": "localhost:9092"}
    assert said.over(declared) == {"bootstrap.servers": "said", "client.id": "said"}


def test_a_function_is_named_in_a_setting_and_found_in_the_directory_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = ["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=OAUTHBEARER"]

    def told(*settings: str) -> str:
        monkeypatch.setattr("sys.path", [*sys.path])
        result = CliRunner().invoke(cli.headway, ["topics", "list", "-b", NOWHERE, *settings])
        assert result.exit_code == 1
        return result.output

    (tmp_path / "our_tokens.py").write_text("def fetch(config):\n    raise RuntimeError('seven')\n")
    monkeypatch.chdir(tmp_path)
    assert "the setting oauth_cb raised RuntimeError('seven')" in told("-X", "oauth_cb=our_tokens:fetch", *login)
    for wrong in ("our_tokens", "our_tokens:other", "nowhere:fetch", ":", "our_tokens:__name__"):
        assert "function in the form module:function" in told("-X", f"oauth_cb={wrong}", *login).replace(
            "one", "a function"
        )
    assert "used only with sasl.mechanism=OAUTHBEARER" in told("-X", "oauth_cb=our_tokens:fetch")
