"""A program finds Kafka where the command does."""

from pathlib import Path

import pytest

from headway import settings_from_environment
from headway.cli.options.kafka_options import connect
from headway.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("HEADWAY_CONFIG_FILE", raising=False)
    for module in ("headway.environment", "headway.cli.options.kafka_options"):
        monkeypatch.setattr(f"{module}.local_broker", lambda: None)


@pytest.mark.parametrize("in_file", [None, "bootstrap.servers=file\nsasl.username=me", "metadata.broker.list=file"])
@pytest.mark.parametrize("variable", [None, "variable"])
@pytest.mark.parametrize("local", [None, "local"])
def test_the_settings_are_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: str | None, variable: str | None, local: str | None
) -> None:
    file = tmp_path / "client.properties"
    if in_file:
        file.write_text(in_file)
        monkeypatch.setenv("HEADWAY_CONFIG_FILE", str(file))
    if variable:
        monkeypatch.setenv("HEADWAY_BOOTSTRAP_SERVERS", variable)
    for module in ("headway.environment", "headway.cli.options.kafka_options"):
        monkeypatch.setattr(f"{module}.local_broker", lambda: local)
    found = settings_from_environment()
    assert found == connect(None, [], file if in_file else None).config
    assert found["bootstrap.servers"] == ("file" if in_file else variable or local or "localhost:9092")


def test_a_file_that_is_given_wins_over_the_one_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "given").write_text("client.id=given")
    (tmp_path / "named").write_text("client.id=named")
    monkeypatch.setenv("HEADWAY_CONFIG_FILE", str(tmp_path / "named"))
    assert settings_from_environment()["client.id"] == "named"
    assert settings_from_environment(tmp_path / "given")["client.id"] == "given"


def test_a_file_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_CONFIG_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere cannot be read: No such file"):
        settings_from_environment()
