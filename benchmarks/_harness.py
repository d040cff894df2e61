"""What all benchmarks share: options, a broker, a table for people and JSON for machines."""

import argparse
import contextlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headway.broker import LocalBroker


@dataclass(frozen=True, slots=True)
class Result:
    """One figure: what was done, by which system, how it came out."""

    case: str
    system: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure that we want, and whether it was reached."""

    name: str
    aim: str
    measured: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure beside a peer's: the medians of turns, and the median of the turns' ratios. Not each has an aim."""

    work: str
    peer: str
    unit: str
    theirs: float
    ours: float
    ratio: float
    aim: str
    holds: bool | None


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent of the values are not above; nan of none, which no aim accepts.

    >>> percentile([3.0, 1.0, 2.0], 50), percentile([], 99)
    (2.0, nan)
    """
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))] if ranked else math.nan


def ratio(value: float, to: float) -> float:
    """How many times as much it is; nan where there is nothing to compare with.

    >>> ratio(3.0, 2.0), ratio(1.0, 0.0), ratio(1.0, math.inf)
    (1.5, nan, nan)
    """
    return value / to if to and math.isfinite(to) else math.nan


def _in_full(value: float) -> str:
    """
    >>> _in_full(62345.6), _in_full(0.25)
    ('62,346', '0.25')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@dataclass(slots=True)
class Report:
    """The answer to a benchmark's question. A figure that could not be measured on this machine is nan, and said so."""

    question: str
    results: list[Result] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)

    def add(self, case: str, system: str, value: float, unit: str) -> float:
        """Note a figure, and give it back."""
        self.results.append(Result(case, system, value, unit))
        return value

    def at_least(self, name: str, measured: float, bound: float) -> None:
        """An aim with a lower bound."""
        self.aims.append(Aim(name, f">= {bound:g}", measured, measured >= bound))

    def at_most(self, name: str, measured: float, bound: float) -> None:
        """An aim with an upper bound."""
        self.aims.append(Aim(name, f"<= {bound:g}", measured, measured <= bound))

    def compare(
        self,
        work: str,
        peer: str,
        unit: str,
        theirs: Sequence[float],
        ours: Sequence[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Note figures of both, in the order of the turns. The bounds are of ours as a multiple of the peer's."""
        times = statistics.median(ratio(one, other) for one, other in zip(ours, theirs, strict=True))
        aim, holds = "", None
        if at_least is not None:
            aim, holds = f">= {at_least:g}", times >= at_least
        elif at_most is not None:
            aim, holds = f"<= {at_most:g}", times <= at_most
        medians = statistics.median(theirs), statistics.median(ours)
        self.comparisons.append(Comparison(work, peer, unit, *medians, times, aim, holds))

    def show(self, console: Console) -> None:
        """The tables for people."""
        if self.results:
            self._show_results(console)
        if self.comparisons:
            self._show_comparisons(console)

    def _show_comparisons(self, console: Console) -> None:
        table = Table(title=self.question, title_justify="left")
        for name in ("work", "peer", "unit", "peer's", "ours", "ratio", "aim", ""):
            table.add_column(name, no_wrap=True)
        verdicts = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}
        for each in self.comparisons:
            if math.isnan(each.ratio):
                table.add_row(each.work, each.peer, each.unit, "", "", "", each.aim, "not measured")
                continue
            figures = (_in_full(each.theirs), _in_full(each.ours), f"{each.ratio:.2f}")
            table.add_row(each.work, each.peer, each.unit, *figures, each.aim, verdicts[each.holds])
        console.print(table)

    def _show_results(self, console: Console) -> None:
        table = Table("case", "system", "value", "unit", title=self.question, title_justify="left")
        for result in self.results:
            value = "not measured" if math.isnan(result.value) else f"{result.value:,.4g}"
            table.add_row(result.case, result.system, value, result.unit)
        console.print(table)
        for aim in self.aims:
            if math.isnan(aim.measured):
                console.print(f"not shown  {aim.name}: this run had nothing to measure it with (aim {aim.aim})")
                continue
            verdict = "[green]holds[/]" if aim.holds else "[red]missed[/]"
            console.print(f"{verdict}  {aim.name}: {aim.measured:,.4g} (aim {aim.aim})")


@dataclass(frozen=True, slots=True)
class Options:
    """How a benchmark was called."""

    quick: bool
    bootstrap_servers: str | None
    only: str = ""
    plot: Path | None = None

    @contextlib.contextmanager
    def broker(self) -> Iterator[str]:
        """The bootstrap servers of the broker given, or of a fresh local one."""
        if self.bootstrap_servers:
            yield self.bootstrap_servers
            return
        with LocalBroker(ephemeral=True) as broker:
            yield broker.bootstrap_servers


def main(
    question: str, measure: Callable[[Report, Options], None], *, selects: bool = False, plots: bool = False
) -> None:
    """Parse the options, measure, show, and write the JSON.

    With `selects`, the benchmark has rows to choose from. With `plots`, it draws a plot.
    """
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--quick", action="store_true", help="a smaller run, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON")
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT", help="a broker to use, instead of a fresh local one"
    )
    if selects:
        parser.add_argument("--only", default="", metavar="WORDS", help="measure only rows whose names contain this")
    if plots:
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the plot here (.svg or .png)")
    arguments = parser.parse_args()
    chosen = Options(
        arguments.quick,
        arguments.bootstrap_servers,
        only=arguments.only if selects else "",
        plot=arguments.plot if plots else None,
    )
    report = Report(question)
    try:
        measure(report, chosen)
    finally:  # what was measured before an error may have taken an hour
        report.show(Console())
        if arguments.json:
            arguments.json.write_text(json.dumps(_without_nan(asdict(report)), indent=2) + "\n")


def _without_nan(value: Any) -> Any:
    """The same with null for nan, which JSON has no word for."""
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
