"""What an experiment has found, in a form that the table, the JSON, the pictures and the page share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.experiments.run_log import OnProgress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ReportProgress = Callable[[str, int, int], None]
"""Called with what is running, the number of its records that are done, and the number of all its records."""


def progress_of(doing: str, total: int, progress: ReportProgress) -> OnProgress:
    """Return the function that reports the progress of one run of an experiment."""
    return lambda done: progress(doing, done, total)


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The findings of one experiment.

    Args:
        name: The name of the experiment.
        title: What was found, in one sentence.
        caption: The set-up, and how the runs were made.
        columns: The titles of the table.
        rows: The table: one row for each way, and the ideal.
        explanation: What each column means, in whole sentences.
        figures: The same for programs.
        draw: A function that draws the picture. It needs matplotlib.
    """

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    explanation: str
    figures: dict[str, Any]
    draw: "Callable[[], Figure]"
