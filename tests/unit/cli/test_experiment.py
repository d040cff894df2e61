"""`headway experiment`, simulated, and its errors."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headway import cli


def experiment(*arguments: str) -> Result:
    return CliRunner().invoke(cli.headway, ["experiment", *arguments])


def test_a_simulated_experiment_prints_a_table_and_names_its_files(tmp_path: Path) -> None:
    result = experiment("priority", "--simulate", "--records", "300", "--output", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "level 2 done" in result.stdout
    assert [line.split("  ")[0] for line in result.stdout.splitlines() if line.startswith(("no p", "cap", "fair"))] == [
        "no priority",
        "capacity_burst",
        "fair",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["priority.html", "priority.png", "priority.svg"]


def test_with_json_stdout_is_one_object(tmp_path: Path) -> None:
    result = experiment("wave", "--simulate", "--records", "300", "--output", str(tmp_path), "--json")
    found = json.loads(result.stdout)
    assert found["simulated"] is True
    assert found["ways"].keys() == {"no priority", "capacity_burst", "fair"}
    assert all(Path(path).exists() for path in found["files"])


def test_a_speed_makes_no_sense_for_a_simulation(tmp_path: Path) -> None:
    result = experiment("keys", "--simulate", "--speed", "10", "--output", str(tmp_path))
    assert result.exit_code == 2
    assert "--speed is for runs on Kafka. With --simulate, leave it out." in result.stderr


@pytest.mark.parametrize("records", ["99", "1000001", "many"])
def test_a_number_of_records_out_of_bounds_is_refused(records: str) -> None:
    result = experiment("group", "--simulate", "--records", records)
    assert result.exit_code == 2
    assert "--records" in result.stderr


def test_without_matplotlib_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = experiment("keys", "--simulate", "--output", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith("headway: The pictures of experiments need matplotlib: pip install ")
    assert result.stderr.count("\n") == 1


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = experiment("keys", "--simulate", "--output", str(tmp_path / "file" / "below"))
    assert result.exit_code == 1
    assert result.stderr.startswith("headway: ")
    assert "Traceback" not in result.stderr


def test_the_help_of_each_experiment_says_what_its_picture_has() -> None:
    for name in ("no-priority", "priority", "wave", "keys", "group"):
        assert "The picture" in experiment(name, "--help").stdout
