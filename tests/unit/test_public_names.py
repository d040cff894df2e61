"""What is public is one list, docs/names.md: modules have these names, and pages and examples import nothing else."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| `(headway[\w.]*)` \|.*\| (.*) \|$", (ROOT / "docs" / "names.md").read_text(), re.MULTILINE)
LISTED = {module: re.findall(r"`(\w+)`", names) for module, names in ROWS}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("module", LISTED)
def test_a_public_module_has_the_names_that_are_listed(module: str) -> None:
    public = import_module(module)
    assert LISTED[module] == sorted(public.__all__)
    assert all(hasattr(public, name) for name in public.__all__)


def imported(source: str) -> Iterator[str]:
    """Yield what a program imports of Headway, as dotted names."""
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.ImportFrom) and each.module and each.module.split(".")[0] == "headway":
            yield from (f"{each.module}.{name.name}" for name in each.names)
        elif isinstance(each, ast.Import):
            yield from (name.name for name in each.names if name.name.split(".")[0] == "headway")


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS], ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_and_examples_import_only_what_is_public(path: Path) -> None:
    text = path.read_text()
    programs = [text] if path.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    public = {*LISTED, *(f"{module}.{name}" for module, names in LISTED.items() for name in names)}
    assert {name for program in programs for name in imported(program)} <= public


def test_the_list_has_what_the_first_page_needs() -> None:
    assert {"Producer", "PriorityConsumer", "Scheduler", "worker"} <= set(LISTED["headway"])
