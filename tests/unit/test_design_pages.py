"""The design pages name tests and modules: each of them is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design"
PAGES = sorted(DESIGN.glob("*.md"))
ALL_PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_each_test_that_a_design_page_names_is_there() -> None:
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    named = {(page.name, name) for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert sorted(each for each in named if each[1] not in tests) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_module_that_a_design_page_names_is_there(page: Path) -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py|\w+\.py(?=:))(?::([\w.]+))?`", page.read_text()))
    missing = []
    for path, name in sorted(named):
        source = next((root / path for root in (ROOT, ROOT / "src" / "headway") if (root / path).exists()), None)
        defined = source is not None and all(
            re.search(rf"^\s*(?:async )?(?:def|class) {part}\b", source.read_text(), re.MULTILINE)
            for part in filter(None, name.split("."))
        )
        if not defined:
            missing.append(f"{path}:{name}")
    assert missing == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_of_a_page_leads_to_a_page_and_a_heading_that_are_there(page: Path) -> None:
    lost = []
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        there = page.parent / target if target else page
        if not there.exists() or (anchor and anchor not in _anchors(there.read_text())):
            lost.append(f"{target}#{anchor}")
    assert lost == []


def _anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_longer_than_120_characters(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.S | re.M)
    assert [line for line in text.splitlines() if len(line) > 120 and _could_be_wrapped(line)] == []


def _could_be_wrapped(line: str) -> bool:
    """Return whether a line is prose with a space at which it can end before column 120, outside a code span."""
    is_prose = not line.lstrip().startswith(("|", "#", "[!", "<"))
    words = re.sub(r"`[^`]*`", lambda span: "_" * len(span[0]), line.strip())
    return is_prose and " " in re.sub(r"^([-*+>]|\d+\.) +", "", words)
