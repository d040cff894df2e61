"""The benchmark of growth runs, quickly, and draws its plot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.conftest import Cluster

GROWTH = Path(__file__).parents[2] / "benchmarks" / "growth.py"


def run_quickly(folder: Path, *options: str) -> dict[str, float]:
    """Return the figures by case."""
    plot, figures = folder / "growth.svg", folder / "growth.json"
    command = [sys.executable, str(GROWTH), "--quick", "--plot", str(plot), "--json", str(figures), *options]
    subprocess.run(command, check=True, timeout=300)
    assert "</svg>" in plot.read_text()
    return {each["case"]: each["value"] for each in json.loads(figures.read_text())["results"]}


def test_the_growth_of_the_core_is_measured_without_kafka(tmp_path: Path) -> None:
    found = run_quickly(tmp_path, "--only", "fair, levels")
    assert found.keys() == {f"{case}, fair: {count} levels" for case in ("engine", "polls") for count in (1, 5, 10)}
    assert found["engine, fair: 1 levels"] > 0


@pytest.mark.slow
def test_the_growth_of_a_member_is_measured_beside_the_plain_client(kafka_cluster: Cluster, tmp_path: Path) -> None:
    found = run_quickly(tmp_path, "--only", "member", "--bootstrap-servers", kafka_cluster.bootstrap_servers)
    assert found.keys() == {f"member, {kind}: {count} partitions" for kind in ("plain", "loop") for count in (1, 100)}
    assert all(found.values())
