"""`headway levels`: shows how a capacity is shared among levels."""

from typing import Any

import click

from headway.cli.display.json_lines import echo_json, json_option
from headway.cli.display.tables import Column, show_table
from headway.core.levels.capacity import Distributor, distribute, exponential_shares, linear_shares, weighted_shares
from headway.core.levels.naming import MOST_LEVELS

LEVELS = click.IntRange(1, MOST_LEVELS)

_BAR_WIDTH = 40
_NAMED = {"exponential": exponential_shares, "linear": linear_shares}


class DistributorType(click.ParamType[Distributor]):
    """A distributor: `exponential`, `linear`, or `weighted:` with a weight for each level, lowest first."""

    name = "distributor"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "exponential|linear|weighted:1,2,5"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Distributor:
        name, _, weights = str(value).partition(":")
        if name in _NAMED and not weights:
            return _NAMED[name]
        if name == "weighted" and all(weight.strip().isdecimal() for weight in weights.split(",")):
            return weighted_shares(*map(int, weights.split(",")))
        return self.fail(
            f"{value!r} is not a distribution. Choose exponential, linear, or weights such as weighted:1,2,5.",
            param,
            ctx,
        )


@click.command()
@click.option("--levels", "count", type=LEVELS, required=True, help="The number of levels.")
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    required=True,
    help="The capacity to share: the maximum number of records that one poll returns (max.poll.records).",
)
@click.option(
    "--distributor",
    default="exponential",
    show_default=True,
    type=DistributorType(),
    help="How the capacity is shared.",
)
@json_option()
def levels(count: int, capacity: int, distributor: Distributor, as_json: bool) -> None:
    """Show how a capacity is shared among levels.

    With exponential, each level has twice the share of the level below it. With linear, the shares are in the ratio
    1:2:3. With weighted, they are in the ratio of the weights that you give, lowest level first. The remainder of the
    division goes to the highest level.

    \b
      headway levels --levels 3 --capacity 50
      headway levels --levels 3 --capacity 50 --distributor weighted:1,2,5
    """
    shares = distribute(distributor, count, capacity)
    if as_json:
        described = [
            {"level": level, "share": share, "percent": _percent(share, capacity)} for level, share in _top_down(shares)
        ]
        echo_json({"capacity": capacity, "levels": described})
    else:
        _show(shares, capacity)


def _show(shares: list[int], capacity: int) -> None:
    columns = [*(Column(name, justify="right") for name in ("level", "share", "percent")), Column("")]
    rows = [
        (str(level), f"{share:,}", f"{_percent(share, capacity)} %", _bar(share, max(shares)))
        for level, share in _top_down(shares)
    ]
    show_table(columns, rows)


def _top_down(shares: list[int]) -> list[tuple[int, int]]:
    return list(enumerate(shares))[::-1]


def _percent(share: int, capacity: int) -> float:
    return round(100 * share / capacity, 1)


def _bar(share: int, largest: int) -> str:
    return "█" * max(1, round(_BAR_WIDTH * share / largest))
