"""The experiments of the Java priority client: no-priority, priority and wave."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

from headway.experiments.backends import Backend
from headway.experiments.ideal_levels import ideal_drained, ideal_phases
from headway.experiments.level_figures import LevelOutcome, level_figures
from headway.experiments.level_setup import LEVELS, WAYS, ConsumerName, LevelSetup
from headway.experiments.result import ExperimentResult, ReportProgress, progress_of

LevelExperimentName = Literal["no-priority", "priority", "wave"]

_COLUMNS = (
    "way",
    *(f"level {level} done" for level in reversed(range(LEVELS))),
    "slots used",
    "share error",
    "reaction",
    "overshoot",
)
_EXPLANATION = (
    "Done: when the last record of the level was done. Slots used: the fraction of all slots in use while records "
    "waited. Share error: the fraction of the used slots that another level should have had, where each level has "
    "twice the weight of the level below it. Reaction: the longest time from a change (records come, or a level has no "
    "more) until the highest waiting level had 90 % of its slots and 90 % of all slots were in use. Overshoot: by how "
    "many records the consumers exceeded what they may handle at a time."
)


def run_level_experiment(
    name: LevelExperimentName, setup: LevelSetup, consumer: ConsumerName, backend: Backend, progress: ReportProgress
) -> ExperimentResult:
    """Consume the same load in each way, and return the findings."""
    outcomes = []
    for way in WAYS:
        log = backend.run_levels(setup, way, consumer, progress_of(way.name, setup.total, progress))
        outcomes.append(LevelOutcome(way, log, level_figures(log, setup, setup.limit(consumer))))
    caption = f"{_describe(setup, consumer)}; {backend.description}."
    title = _title(name, outcomes)
    ideal = ideal_drained(ideal_phases(setup))
    return ExperimentResult(
        name,
        title,
        caption,
        _COLUMNS,
        [*(_row(each) for each in outcomes), ("ideal", *map(_seconds, reversed(ideal)), "100 %", "0 %", "0 s", "0")],
        _EXPLANATION,
        _for_programs(name, setup, consumer, outcomes, ideal),
        partial(_draw, name, title, caption, setup, outcomes),
    )


def _describe(setup: LevelSetup, consumer: ConsumerName) -> str:
    counts = f"{setup.records:,} records at each of {LEVELS} levels"
    waves = "" if len(setup.waves) == 1 else f", in {len(setup.waves)} waves"
    slots = f"{setup.members} consumers with {setup.slots} slots each"
    polls = "" if consumer == "parallel" else f", which wait for all of the {setup.poll_records} records of a poll"
    return f"{counts}{waves}; {slots}{polls}; {setup.seconds:g} s a record"


def _title(name: LevelExperimentName, outcomes: Sequence[LevelOutcome]) -> str:
    none, burst, fair = (outcome.figures for outcome in outcomes)
    if name == "wave":
        return (
            f"In each wave the urgent records go first: the last are done after {_seconds(fair.drained[-1])} with "
            f"fair, and after {_seconds(none.drained[-1])} without priority"
        )
    sooner = 1 - min(burst.drained[-1], fair.drained[-1]) / none.drained[-1]
    if name == "no-priority":
        return (
            f"In one topic all levels wait alike; with levels, the urgent records are done {_percent(sooner, 0)} sooner"
        )
    return f"With levels, the urgent records are done {_percent(sooner, 0)} sooner than in one topic"


def _seconds(value: float | None) -> str:
    """Format a time.

    >>> _seconds(1091.4), _seconds(1.25), _seconds(None)
    ('1,091 s', '1.2 s', 'never')
    """
    if value is None:
        return "never"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.1f} s"


def _percent(fraction: float, digits: int = 1) -> str:
    return f"{100 * fraction:.{digits}f} %"


def _row(outcome: LevelOutcome) -> tuple[str, ...]:
    figures = outcome.figures
    return (
        outcome.way.name,
        *map(_seconds, reversed(figures.drained)),
        _percent(figures.used),
        _percent(figures.share_error),
        _seconds(figures.reaction),
        f"{figures.overshoot}",
    )


def _for_programs(
    name: str, setup: LevelSetup, consumer: ConsumerName, outcomes: Sequence[LevelOutcome], ideal: Sequence[float]
) -> dict[str, Any]:
    return {
        "experiment": name,
        "consumer": consumer,
        "records_per_level": setup.records,
        "ways": {outcome.way.name: asdict(outcome.figures) for outcome in outcomes},
        "ideal": {"drained": list(ideal)},
    }


def _draw(
    name: LevelExperimentName, title: str, caption: str, setup: LevelSetup, outcomes: Sequence[LevelOutcome]
) -> Any:
    from headway.experiments import level_pictures  # noqa: PLC0415 - imports matplotlib, which is slow and optional

    draw = level_pictures.draw_no_priority if name == "no-priority" else level_pictures.draw_priority
    return draw(title, caption, setup, outcomes)
