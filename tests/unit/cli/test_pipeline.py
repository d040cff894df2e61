"""`headway pipeline run`: what is refused before Spark is started."""

import pytest
from click.testing import CliRunner

from headway.cli import headway
from headway.cli.commands.pipeline import find_pipeline
from headway.errors import ConfigError

OWN = "tests.unit.cli.test_pipeline"
NUMBER = 7


def pipeline(run: object) -> None:
    """A pipeline."""


def test_a_number_of_levels_for_topics_that_name_theirs_is_a_usage_error() -> None:
    result = CliRunner().invoke(headway, ["pipeline", "run", f"{OWN}:pipeline", "--topic", "a=2", "--levels", "3"])
    assert (result.exit_code, "--levels is for topics with levels" in result.stderr) == (2, True)


def test_a_topic_needs_its_level_where_others_have_one() -> None:
    result = CliRunner().invoke(headway, ["pipeline", "run", f"{OWN}:pipeline", "--topic", "a=2", "--topic", "b"])
    assert "The topic b needs a level from 0 to 999 after its name" in " ".join(
        (result.stderr or str(result.exception)).split()
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("flihgts", "There is no pipeline flihgts. Name yours as package.module:pipeline"),
        (f"{OWN}:pipelin", f"has no 'pipelin'. Did you mean {OWN}:pipeline?"),
        (f"{OWN}:NUMBER", "is of type int, not a function"),
        ("no_such_module:pipeline", "There is no module no_such_module"),
        ("shop/flow.py:pipeline", "the name of the module, as Python imports it: `headway pipeline run shop.flow`"),
    ],
)
def test_a_pipeline_that_is_not_there_is_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("?", "[?]")):
        find_pipeline(name)


def test_a_pipeline_is_found_by_module_and_name() -> None:
    assert find_pipeline(f"{OWN}:pipeline") is pipeline
