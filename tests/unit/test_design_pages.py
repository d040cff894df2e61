"""The design pages name tests and modules: each of them is there."""

import ast
import re
import runpy
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design"
PAGES = sorted(DESIGN.glob("*.md"))
ALL_PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_test_that_a_design_page_names_is_there(page: Path) -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    assert sorted(name for name in named if f"def {name}(" not in sources) == []


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


def test_the_file_map_has_every_module_with_its_first_sentence() -> None:
    program = runpy.run_path(str(DESIGN / "file_map.py"))
    assert (DESIGN / "file-map.md").read_text() == program["file_map"](), "run: python docs/design/file_map.py"


def test_the_drawing_of_the_rooms_has_each_import_between_rooms_and_no_arrow_without_one() -> None:
    source = ROOT / "src" / "headway"
    base = {"records", "errors", "declarations", "config"}
    rooms = {path.name for path in source.iterdir() if path.is_dir()}
    imports = {
        (path.relative_to(source).parts[0], name if name in rooms else "base")
        for path, module in _modules()
        if source in path.parents and path.relative_to(source).parts[0] in rooms
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headway.")
        for name in [(node.module or "").split(".")[1]]
        if name in rooms | base and name != path.relative_to(source).parts[0]
    }
    lines = re.findall(r"^    ([\w& ]+) --> ([\w& ]+)", (DESIGN / "README.md").read_text(), re.MULTILINE)
    arrows = {(one, other) for left, right in lines for one in left.split(" & ") for other in right.split(" & ")}
    assert sorted(arrows - imports) == []
    reached = set(arrows)
    for _ in rooms:
        reached |= {(one, last) for one, middle in reached for first, last in arrows if middle == first}
    assert sorted(imports - reached) == []


def test_each_thread_has_a_name_that_the_page_on_concurrency_explains() -> None:
    page = (DESIGN / "concurrency.md").read_text()
    names = {
        f"{path.name}:{node.lineno}": re.search(r"'(headway-[a-z-]+)", ast.unparse(node))
        for path, module in _modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"threading.Thread", "ThreadPoolExecutor"}
    }
    assert [place for place, name in names.items() if name is None] == []
    assert sorted({name[1] for name in names.values() if name and f"`{name[1]}`" not in page}) == []
    assert [name for name, owners in Counter(name[1] for name in names.values() if name).items() if owners > 1] == []


def test_the_page_on_concurrency_explains_each_lock_that_there_is() -> None:
    page = (DESIGN / "concurrency.md").read_text()
    rows = page[page.index("## Locks") : page.index("### Order")].splitlines()
    explained = {name for row in rows if row.startswith("| `") for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    assert sorted(explained) == sorted(_locks())


def _locks() -> set[str]:
    """Return the name of each lock of the source, that of an attribute behind the name of its class."""
    made = re.compile(r"\b(threading\.(Lock|RLock|Condition|Semaphore)|asyncio\.Lock|WholeCondition)\(")
    locks = set()
    for _, module in _modules():
        classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
        owners: dict[str, list[Any]] = {"": module.body, **{f"{each.name}.": list(ast.walk(each)) for each in classes}}
        for prefix, nodes in owners.items():
            for node in nodes:
                if isinstance(node, ast.Assign) and made.search(ast.unparse(node.value)):
                    locks |= {prefix + ast.unparse(target).removeprefix("self.") for target in node.targets}
    return locks


@cache
def _modules() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted((ROOT / "src").rglob("*.py"))]
