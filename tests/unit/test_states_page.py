"""The drawings of docs/design/states.md are the tables that the code and the tests go by."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from headway.core.engine.partition_states import PARTITION_TRANSITIONS
from headway.core.levels.assigned_partitions import ASSIGNMENT_TRANSITIONS
from tests.models.attempt_life import ATTEMPT_TRANSITIONS
from tests.models.schedule_life import SCHEDULE_TRANSITIONS
from tests.models.transaction_life import TRANSACTION_TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "design" / "states.md"

TABLES: dict[str, Mapping[Any, StrEnum]] = {
    "The life of an attempt": ATTEMPT_TRANSITIONS,
    "The life of a partition at a member of a group": ASSIGNMENT_TRANSITIONS,
    "The life of a partition at a consumer": PARTITION_TRANSITIONS,
    "The life of a schedule": SCHEDULE_TRANSITIONS,
    "The life of a transaction": TRANSACTION_TRANSITIONS,
}


def drawn(section: str) -> dict[tuple[str, str], str]:
    """The arrows of a section's drawing."""
    [part] = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [drawing] = re.findall(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    lines = [line for line in drawing.splitlines() if not re.fullmatch(r" {4}\[\*\] --> \w+", line)]  # where it begins
    arrows = [re.fullmatch(r" {4}(\S+) --> (\S+): (.+)", line) for line in lines]
    found = [arrow.groups() for arrow in arrows if arrow]
    assert len(found) == len(arrows)
    assert len({(state, event) for state, _, event in found}) == len(found)
    return {("new" if state == "[*]" else state, event): to for state, to, event in found}


@pytest.mark.parametrize("section", TABLES)
def test_a_drawing_has_the_arrows_of_its_table(section: str) -> None:
    table = {(state.value, event.value): to.value for (state, event), to in TABLES[section].items()}
    assert drawn(section) == table


def test_each_section_is_held() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) == list(TABLES)
