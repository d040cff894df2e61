"""The direction of imports: the rule and its documentation."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# What each part may import of Headway, besides itself. A part is a module or a package right below `headway`.
ALLOWED = {
    "records": set[str](),
    "errors": set[str](),
    "config": {"errors"},
    "core": {"errors", "records"},
    "kafka": {"core", "config", "errors", "records"},
    "delivery": {"core", "errors", "records"},
    "producer": {"core", "config", "delay", "delivery", "errors", "kafka", "records", "consumer"},
    "consumer": {"core", "config", "errors", "kafka", "records"},
    "aio": {"core", "config", "consumer", "delay", "delivery", "errors", "kafka", "producer", "records"},
    "connection": {"config"},
    "parallel": {"core", "config", "connection", "delay", "errors", "kafka", "letters", "records"},
    "letters": {"core", "records"},
    "delay": {"core", "config", "connection", "delivery", "errors", "kafka", "letters", "records"},
    "workers": {"config", "core", "errors", "parallel", "records"},
    "finding": {"errors", "workers"},
    "http": {"core", "errors", "parallel", "records"},
    "broker": {"errors", "kafka"},
    "spark": {"broker", "core", "config", "connection", "delay", "errors", "finding", "kafka", "lazy_names", "letters"}
    | {"parallel", "records", "workers"},
    "pipelines": {"connection", "core", "delay", "errors", "kafka", "letters", "parallel", "spark"},
    "testing": {"broker"},
    "cli": {"*"},
    "__init__": {"*"},
}

# Where a library may be imported from.
ONLY_IN = {
    "confluent_kafka": {"kafka"},
    "pyspark": {"spark", "pipelines", "pyspark_headway"},
    "click": {"cli"},
    "aiohttp": {"http"},
    "cronsim": {"core"},
    "jgo": {"broker"},
}

IMPURE = {
    "asyncio",
    "concurrent",
    "confluent_kafka",
    "logging",
    "multiprocessing",
    "os",
    "pyspark",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
}

MODULES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}"


def part_of(path: Path) -> str:
    package, *rest = path.relative_to(SOURCE).with_suffix("").parts
    return rest[0] if package == "headway" else package


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_in_the_right_direction(path: Path) -> None:
    part = part_of(path)
    used = {name.split(".")[1] for name in imports(path) if name.startswith("headway.")}
    allowed = ALLOWED.get(part, {"spark"}) | {part}
    assert "*" in allowed or used <= allowed
    for library, places in ONLY_IN.items():
        assert part in places or not any(name.split(".")[0] == library for name in imports(path))


@pytest.mark.parametrize("path", sorted((SOURCE / "headway" / "core").glob("*.py")), ids=lambda path: path.stem)
def test_the_core_is_pure(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & IMPURE
