"""The design pages name tests: each of them is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "DESIGN.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_test_that_a_design_page_names_is_there(page: Path) -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    assert sorted(name for name in named if f"def {name}(" not in sources) == []
