"""The direction of imports: the rule and its documentation."""

import ast
import functools
import gc
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

_BASE = {"records", "errors", "settings", "declarations"}

# What each part may import of Headway, besides itself. A part is a module or a package right below `headway`.
ALLOWED = {
    "records": set[str](),
    "errors": set[str](),
    "runtime": set[str](),
    "metrics": set[str](),
    "probes": {"errors", "metrics", "runtime"},
    "tracing": {"core", "declarations", "errors", "metrics", "records", "runtime"},
    "declarations": {"errors"},
    "settings": {"declarations", "errors"},
    "environment": {"broker", "errors", "settings"},
    "core": {"declarations", "errors", "records"},
    "kafka": {"core", "metrics", "runtime", "tracing"} | _BASE,
    "priority": {"core", "delay", "kafka", "metrics", "runtime", "tracing"} | _BASE,
    "dead_letters": {"core", "errors", "records"},
    "delay": {"core", "dead_letters", "kafka", "metrics", "runtime", "tracing"} | _BASE,
    "execution": {"core", "declarations", "errors", "kafka", "metrics", "records", "runtime", "tracing"},
    "parallel": {"core", "dead_letters", "delay", "execution", "kafka", "metrics", "runtime", "tracing"} | _BASE,
    "workers": {"core", "execution", "kafka", "parallel"} | _BASE,
    "http": {"core", "declarations", "errors", "execution", "records"},
    "broker": {"errors", "kafka", "runtime"},
    "spark": {"broker", "core", "dead_letters", "delay", "execution", "kafka", "metrics", "parallel", "runtime"}
    | {"tracing", "workers"}
    | _BASE,
    "pipelines": {"settings"},
    "calls": {"core", "delay", "errors", "kafka", "priority", "records", "runtime", "settings"},
    "contrib": {"calls", "core", "delay", "kafka", "priority", "runtime"} | _BASE,
    "rules": {"core", "errors", "kafka", "runtime", "settings"},
    "waiting": {"core", "errors", "kafka", "parallel", "records", "rules", "runtime", "settings"},
    "testing": {"broker", "core", "dead_letters", "delay", "execution", "kafka", "parallel", "priority", "runtime"}
    | {"tracing", "workers"}
    | _BASE,
    "dashboard": {"actions", "core", "dead_letters", "delay", "inspection", "kafka", "metrics", "rules", "runtime"}
    | _BASE,
    "actions": {"core", "dead_letters", "delay", "inspection", "kafka", "runtime"} | _BASE,
    "inspection": {"core", "dead_letters", "delay", "kafka", "metrics", "runtime"} | _BASE,
    "experiments": {"core", "errors", "kafka", "parallel", "priority", "records", "runtime"},
    "cli": {"*"},
    "__main__": {"cli"},
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
    "starlette": {"dashboard"},
    "jinja2": {"dashboard"},
    "uvicorn": {"cli"},
    "prometheus_client": {"metrics", "inspection"},
    "opentelemetry": {"metrics", "tracing"},
    "matplotlib": {"experiments"},
    "sqlalchemy": {"contrib"},
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

# Names that stand in several modules, and why.
REPEATED = {
    "Number": "the same type: `records` imports nothing of Headway, not even `core.untrusted`",
    "Time": "the same type: `records` imports nothing of Headway, not even `core.untrusted`",
    "OnRebalance": "the same type: `priority` and `parallel` do not import each other",
    "Topics": "the same type: `pipelines` and `workers` do not import each other",
    "register": "the same call for each system that collects metrics",
    "main": "where a program starts: the command, and the process of one member",
    "parse": "the same for Spark's source and its sink: the options that Spark passes",
}

MODULES = sorted(SOURCE.rglob("*.py"))
NAMES = {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Parse a file while nothing is collected: a traceback logged meanwhile breaks the parser of CPython 3.11.

    https://github.com/python/cpython/issues/106905
    """
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@functools.cache
def imports(path: Path) -> frozenset[str]:
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in NAMES else f"{node.module}" for name in full)


def part_of(path: Path) -> str:
    package, *rest = path.relative_to(SOURCE).with_suffix("").parts
    return rest[0] if package == "headway" else package


def package_of(name: str) -> str:
    """The folder of a module; a module right below `headway` is a package of its own."""
    package, _, _ = name.rpartition(".")
    return name if NAMES[name].name == "__init__.py" or package == "headway" else package


def test_imports_go_in_the_right_direction() -> None:
    assert [f"{path}: {name}" for path in MODULES for name in sorted(imports(path)) if not is_allowed(path, name)] == []


def is_allowed(path: Path, name: str) -> bool:
    part = part_of(path)
    library = name.split(".", maxsplit=1)[0]
    if name.startswith("headway."):
        allowed = ALLOWED.get(part, {"spark"}) | {part}
        return "*" in allowed or name.split(".")[1] in allowed
    return library not in ONLY_IN or part in ONLY_IN[library]


def test_no_packages_import_each_other_in_a_circle() -> None:
    packages: defaultdict[str, set[str]] = defaultdict(set)
    for name, path in NAMES.items():
        used = {package_of(each) for each in imports(path) if each.startswith("headway.") and each in NAMES}
        packages[package_of(name)] |= used - {package_of(name), "headway"}
    try:
        TopologicalSorter(packages).prepare()
    except CycleError as error:
        pytest.fail(f"These import each other in a circle: {error.args[1]}")


def test_the_core_is_pure() -> None:
    core = [path for path in MODULES if path.is_relative_to(SOURCE / "headway" / "core")]
    assert [f"{path}: {name}" for path in core for name in imports(path) if name.partition(".")[0] in IMPURE] == []


def test_a_file_name_stands_once_or_means_the_same_as_the_page_says() -> None:
    """The names of commands are those of what they are about."""
    page = (SOURCE.parent / "docs" / "design" / "README.md").read_text()
    told = set(re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE))
    files = [path for path in MODULES if path.parent.name != "commands" and path.name != "__init__.py"]
    assert {name for name, count in Counter(path.name for path in files).items() if count > 1} <= told


def names_in(path: Path) -> Iterator[str]:
    """Yield a module's classes and type aliases without leading underscores, and its public functions."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
    for statement in parsed(path).body:
        if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Name):
            name = target.id.lstrip("_")
            if name[:1].isupper() and not name.isupper():
                yield name
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and not statement.name.startswith("_"):
            yield statement.name


def test_a_name_is_given_once() -> None:
    """A reader who searches for a name finds one thing. The functions of commands are named like the commands."""
    found = Counter(
        name for path in MODULES for name in set(names_in(path)) if path.parent.name != "commands" or name[:1].isupper()
    )
    assert {name for name, count in found.items() if count > 1} == set(REPEATED)
