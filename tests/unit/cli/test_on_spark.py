"""Commands that run on Spark, where there is none, or nothing for it to run on."""

import shutil
from pathlib import Path

import cjdk
import pytest
from click.testing import CliRunner, Result

from headway import cli
from tests.unit.cli import missing_modules


def report(directory: Path) -> Result:
    return CliRunner().invoke(cli.headway, ["report", str(directory)])


def test_without_pyspark_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing_modules.remove(monkeypatch, "pyspark", "headway.spark")
    result = report(tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("headway: This command needs Spark: pip install 'cjdk")
    assert "'pyspark<4.4,>=4.2'" in result.stderr


def test_without_a_java_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_download(**_: object) -> Path:
        raise cjdk.InstallError("the index did not answer")

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(cjdk, "java_home", no_download)
    result = report(tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("headway: No Java 17 or newer was found in JAVA_HOME or on PATH, and none could be")
    assert result.stderr.count("\n") == 1
