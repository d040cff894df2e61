"""What tests may touch, and what they leave behind."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

NOT_OURS = {
    "_replace": "part of the interface of named tuples",
    "_asdict": "part of the interface of named tuples",
    "_exit": "`os._exit`, by which a process dies without a word",
    "_gateway": "PySpark's, which has no public way to end its Java",
    "_thread": "the standard library's, which alone sends a signal without a call in between",
    "_jvm": "PySpark's, which has no public way to end its Java",
    "_pytest": "pytest's, which tells nobody else where its tracebacks go",
    "_popen": "the standard library's, in which a process's end is noted too late",
}
PATCHES = {"setattr", "delattr", "getattr", "hasattr", "patch", "object", "made_by"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The private names of others that a module uses, and the lines: what it imports, asks for, or patches."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=ast.Name("KafkaError") | ast.Attribute(ast.Name("ck"), "KafkaError")):
                pass  # the errors of librdkafka itself begin so
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                module = getattr(node, "module", None) or ""
                parts = [part for each in names for part in each.name.split(".")]
                yield from ((node.lineno, name) for name in [*module.split("."), *parts])
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args) if called in PATCHES:
                texts = [each.value for each in args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
                yield from ((node.lineno, name) for text in texts for name in text.split("."))


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in TESTS.rglob("*.py")}


def test_tests_touch_nothing_private_of_ours(modules: dict[Path, ast.Module]) -> None:
    found = {
        f"{file.relative_to(TESTS)}:{line}: {name}"
        for file, tree in modules.items()
        for line, name in private_names(tree)
        if is_private(name) and name not in NOT_OURS
    }
    assert not found, "give what these prove a public seam (see docs/design/tests.md): " + ", ".join(sorted(found))


RAW = {"AdminClient", "Consumer", "Producer"}


def raw_clients(tree: ast.Module) -> Iterator[ast.Call]:
    """The places where a module makes a client of confluent_kafka."""
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    raw = {f"ck.{name}" for name in RAW} | {
        name.asname or name.name
        for each in imports
        if (each.module or "").startswith("confluent_kafka")
        for name in each.names
        if name.name in RAW
    }
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    return (each for each in calls if isinstance(each.func, ast.Name | ast.Attribute) and _dotted(each.func) in raw)


def _dotted(node: ast.expr) -> str:
    """Return a name such as `ck.Producer` as it is written. It takes a tenth of the time of `ast.unparse`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{_dotted(owner)}.{name}"
        case _:
            return "?"


def test_plain_clients_write_nothing_to_stderr_after_their_broker_is_gone(modules: dict[Path, ast.Module]) -> None:
    found = {
        f"{file.relative_to(TESTS)}:{call.lineno}"
        for file, tree in modules.items()
        for call in raw_clients(tree)
        if not any(quiet in ast.unparse(call) for quiet in ("'log_level'", "quiet("))
    }
    assert not found, 'give these clients "log_level": 0: ' + ", ".join(sorted(found))
