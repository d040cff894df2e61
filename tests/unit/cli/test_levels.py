"""`headway levels`."""

import json

import pytest
from click.testing import CliRunner, Result

from headway.cli.commands.levels import levels
from headway.errors import ConfigError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(levels, arguments)


def shares(*arguments: str) -> dict[int, int]:
    found = json.loads(run("--json", *arguments).stdout)["levels"]
    return {each["level"]: each["share"] for each in found}


def test_the_table_shows_the_highest_level_first_with_share_percent_and_bar() -> None:
    assert run("--levels", "3", "--capacity", "50").stdout.splitlines() == [
        "level  share  percent",
        "    2     29   58.0 %  " + "█" * 40,
        "    1     14   28.0 %  " + "█" * 19,
        "    0      7   14.0 %  " + "█" * 10,
    ]


@pytest.mark.parametrize(
    ("distributor", "expected"),
    [
        ("exponential", {2: 29, 1: 14, 0: 7}),
        ("linear", {2: 26, 1: 16, 0: 8}),
        ("weighted:1,1,8", {2: 40, 1: 5, 0: 5}),
    ],
)
def test_each_distributor_can_be_chosen(distributor: str, expected: dict[int, int]) -> None:
    assert shares("--levels", "3", "--capacity", "50", "--distributor", distributor) == expected


def test_the_percentages_are_of_the_capacity() -> None:
    described = json.loads(run("--json", "--levels", "2", "--capacity", "3").stdout)
    assert described == {
        "capacity": 3,
        "levels": [{"level": 1, "share": 2, "percent": 66.7}, {"level": 0, "share": 1, "percent": 33.3}],
    }


def test_a_capacity_that_is_too_small_is_refused_with_the_smallest_that_works() -> None:
    result = run("--levels", "3", "--capacity", "6")
    assert isinstance(result.exception, ConfigError)
    assert "at least 7" in str(result.exception)
    assert shares("--levels", "3", "--capacity", "7") == {2: 4, 1: 2, 0: 1}


@pytest.mark.parametrize("distributor", ["exponental", "weighted", "weighted:", "weighted:1,x,2", "linear:1"])
def test_a_distributor_that_there_is_not_is_a_usage_error(distributor: str) -> None:
    result = run("--levels", "3", "--capacity", "50", "--distributor", distributor)
    assert result.exit_code == 2
    assert "weighted:1,2,5" in result.stderr
