"""Which Java is taken."""

import shutil
from pathlib import Path

import cjdk
import pytest

from headway.broker.java import find_java, java_version
from headway.errors import LocalBrokerError


def make_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def no_download(**_: object) -> Path:
    raise cjdk.InstallError("the index did not answer")


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(cjdk, "java_home", no_download)


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_home = make_java(tmp_path / "home", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    on_path = make_java(tmp_path / "path", "21.0.1")
    monkeypatch.setattr(shutil, "which", lambda _: str(on_path))
    assert find_java() == of_home


def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path / "old", "1.8.0_442")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    on_path = make_java(tmp_path / "path", "21.0.1")
    monkeypatch.setattr(shutil, "which", lambda _: str(on_path))
    assert find_java() == on_path


def test_the_release_file_saves_running_java(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    (tmp_path / "release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="21.0.4"\n')
    assert java_version(java) == 21


def test_what_is_not_a_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "bin" / "java") is None


def test_without_a_java_one_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def fetch(**arguments: object) -> Path:
        asked.update(arguments)
        return tmp_path

    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    monkeypatch.setattr(cjdk, "java_home", fetch)
    assert find_java(21) == tmp_path / "bin" / "java"
    assert asked == {"version": "21", "cache_dir": tmp_path / "java"}


def test_without_a_java_and_a_network_one_sentence_says_what_to_install() -> None:
    with pytest.raises(LocalBrokerError, match=r"No Java 17 or newer .*the index did not answer.*Install one"):
        find_java()
