"""`headway pipeline run`: what is refused before Spark is started."""

import pytest
from click.testing import CliRunner

from headway.cli import headway
from headway.errors import ConfigError
from headway.pipelines.discovery import find_pipeline

OWN = "tests.unit.cli.test_pipeline"
NUMBER = 7


def pipeline(run: object) -> None:
    """A pipeline."""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            [f"{OWN}:pipeline", "--notices", "x"],
            "--notices applies to the pipeline flights only. Give options to your own",
        ),
        (["flights", "--set", "a=b"], "--set applies to your own pipelines"),
        (["flights", "--topic", "a=2", "--levels", "3"], "--levels is for topics with levels"),
    ],
)
def test_an_option_of_another_pipeline_is_a_usage_error(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(headway, ["pipeline", "run", *arguments])
    assert (result.exit_code, sentence in " ".join(result.stderr.split())) == (2, True)


def test_a_topic_needs_its_level_where_others_have_one() -> None:
    result = CliRunner().invoke(headway, ["pipeline", "run", "flights", "--topic", "a=2", "--topic", "b"])
    assert "The topic b needs a level from 0 to 999 after its name" in " ".join(
        (result.stderr or str(result.exception)).split()
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("flihgts", "There is no pipeline flihgts. Use flights, or name yours as package.module:pipeline"),
        (f"{OWN}:pipelin", f"has no 'pipelin'. Did you mean {OWN}:pipeline?"),
        (f"{OWN}:NUMBER", "is no function, but int"),
        ("no_such_module:pipeline", "There is no module no_such_module"),
        ("shop/flow.py:pipeline", "name the module, as Python imports it: `headway pipeline run shop.flow`"),
    ],
)
def test_a_pipeline_that_is_not_there_is_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("?", "[?]")):
        find_pipeline(name)


def test_a_pipeline_is_found_by_module_and_name() -> None:
    assert find_pipeline(f"{OWN}:pipeline") is pipeline
