"""The pictures and the page of an experiment."""

from pathlib import Path

import pytest

from headway.experiments.backends import SimulatedBackend
from headway.experiments.group_experiment import run_group_experiment
from headway.experiments.key_experiment import run_key_experiment
from headway.experiments.level_experiment import LevelExperimentName, run_level_experiment
from headway.experiments.level_setup import all_at_once, in_waves
from headway.experiments.picture_style import write_pictures
from headway.experiments.result import ExperimentResult
from headway.experiments.result_page import experiment_page


def result_of(name: str) -> ExperimentResult:
    if name == "keys":
        return run_key_experiment(100, SimulatedBackend(), lambda *_: None)
    if name == "group":
        return run_group_experiment(100, SimulatedBackend(), lambda *_: None)
    level_name: LevelExperimentName = "wave" if name == "wave" else "priority" if name == "priority" else "no-priority"
    setup = in_waves(300) if name == "wave" else all_at_once(300)
    return run_level_experiment(level_name, setup, "parallel", SimulatedBackend(), lambda *_: None)


@pytest.mark.parametrize("name", ["no-priority", "priority", "wave", "keys", "group"])
def test_each_experiment_has_a_picture_and_a_page_that_need_nothing_else(name: str, tmp_path: Path) -> None:
    result = result_of(name)
    svg = write_pictures(result.draw, tmp_path / name)
    page = experiment_page(result, svg)
    assert svg.rstrip().endswith("</svg>")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert all(cell in page for row in result.rows for cell in row if "&" not in cell)
    assert "<script" not in page
    assert 'src="http' not in page


def test_the_same_run_gives_the_same_picture(tmp_path: Path) -> None:
    first, again = (write_pictures(result_of("priority").draw, tmp_path / name) for name in ("first", "again"))
    assert first == again
