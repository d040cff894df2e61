"""Write `docs/design/file-map.md`: each module of Headway with the first line of its docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headway"
PAGE = ROOT / "docs" / "design" / "file-map.md"


def file_map() -> str:
    """Return the page."""
    rooms = sorted({path.parent for path in SOURCE.rglob("*.py")})
    return "# File map\n\n`python docs/design/file_map.py` writes this page.\n" + "".join(map(_room, rooms))


def _room(folder: Path) -> str:
    about = _first_line(folder / "__init__.py")
    return f"\n## `{folder.relative_to(SOURCE.parent)}/`\n\n{about}\n\n| module | |\n|---|---|\n" + "".join(
        _rows(folder)
    )


def _rows(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield f"| `{path.name}` | {_first_line(path)} |\n"


def _first_line(path: Path) -> str:
    if not path.exists():
        return ""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(file_map())
