"""Builds what a release consists of, and tries each file the way a user installs it.

Writes to `dist/`: the source archive, a wheel with the compiled hot path for this machine, a wheel in plain Python for
all others, a CycloneDX bill of materials, and the checksums. Publishes nothing: the workflow `release.yml` does that,
after it has built the wheels for the other platforms.

Usage: `make release`, or `make release ARGS=--rehearse` to try it before the version is ready.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
UV = Path(sys.executable).with_name("uv")

# Pinned here, not in requirements.lock, because only a release needs them.
TWINE, CYCLONEDX, PIP_AUDIT = "twine==7.0.0", "cyclonedx-bom==7.5.0", "pip-audit==2.10.1"

# What every file of a release must be able to do without a Kafka: import, send a record, and receive it again.
SMOKE = """
from headway import PriorityConsumer, Producer
from headway.testing import MockCluster

with MockCluster() as cluster:
    cluster.create(["orders-0", "orders-1"], 1)
    with Producer({**cluster.settings, "levels": 2}) as producer:
        producer.send("orders", b"shipped", level=1).result(30)
    group = {"group.id": "smoke", "auto.offset.reset": "earliest", "levels": 2}
    with PriorityConsumer({**cluster.settings, **group}) as consumer:
        consumer.subscribe("orders")
        record = next(iter(consumer))
        assert (record.level, record.value) == (1, b"shipped"), record
"""


class ReleaseError(Exception):
    """A reason why this checkout cannot be released."""


def main() -> int:
    """Build, check, install and try. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rehearse", action="store_true", help="build although changes are uncommitted, or the changelog is unfinished"
    )
    options = parser.parse_args()
    try:
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        if not options.rehearse:
            require_releasable(version)
        release(version)
    except ReleaseError as error:
        print(f"Nothing was released: {error}", file=sys.stderr)
        return 1
    return 0


def require_releasable(version: str) -> None:
    """Raise `ReleaseError` if there are uncommitted changes, or if the changelog has no section for the version."""
    if run("git", "status", "--porcelain"):
        raise ReleaseError("there are uncommitted changes. Commit them, or pass --rehearse to try the build.")
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        raise ReleaseError(f"CHANGELOG.md has no section `## {version}`. Write one.")


def release(version: str) -> None:
    """Fill `dist/` with the files of a release, and try each of them."""
    shutil.rmtree(DIST, ignore_errors=True)
    build("--sdist", compiled="0")
    build("--wheel", compiled="0")
    build("--wheel", compiled="1")
    files = sorted(DIST.glob("headway-*"))  # uv also writes a .gitignore
    run(UV, "tool", "run", TWINE, "check", "--strict", *files)
    for file in files:
        require_contents(file)
        with tempfile.TemporaryDirectory() as folder:
            python = installed(file, Path(folder))
            run(python, "-c", SMOKE)
            print(f"{file.name}: {run(python, '-m', 'headway', '--version').strip()}; sends and receives")
            if file.name.endswith("none-any.whl"):
                write_bill_of_materials(python, DIST / f"headway-{version}.cdx.json")
                audit(python)
    write_checksums()


def build(kind: str, compiled: str) -> None:
    """Build one file into `dist/`. With `compiled="1"`, the build fails if there is no C compiler."""
    run(UV, "build", "--quiet", kind, "--out-dir", DIST, ".", HEADWAY_COMPILE=compiled)


def require_contents(file: Path) -> None:
    """Raise `ReleaseError` if the archive lacks what is not Python, which a build can lose without an error."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    else:
        with tarfile.open(file) as archive:
            names = archive.getnames()
    for wanted in ("py.typed", "LICENSE", "LICENSES.txt", "htmx", ".css", ".html"):
        if not any(wanted in name for name in names):
            raise ReleaseError(f"{file.name} contains no file named like {wanted!r}. See [tool.hatch.build].")


def installed(file: Path, folder: Path) -> Path:
    """Install a file of the release in a new environment. Returns the path of its Python."""
    python = folder / "env" / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "env")
    # An sdist compiles during the installation if it can, which the wheels have tried already.
    run(UV, "pip", "install", "--quiet", "--python", python, file, HEADWAY_COMPILE="0")
    return python


def write_bill_of_materials(python: Path, target: Path) -> None:
    """Write the packages that an installation without extras has, as CycloneDX."""
    run(UV, "tool", "run", "--from", CYCLONEDX, "cyclonedx-py", "environment", python, "--output-file", target)


def audit(python: Path) -> None:
    """Check the installed packages against the published advisories, if these can be reached."""
    listed = run(UV, "pip", "freeze", "--python", python, "--exclude-editable")
    locked = "\n".join(line for line in listed.splitlines() if not line.startswith("headway"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(locked)
        file.flush()
        command = [str(UV), "tool", "run", PIP_AUDIT, "--no-deps", "--disable-pip", "--requirement", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No known vulnerabilities found" in done.stderr:
        print("pip-audit: no known vulnerabilities")
    elif "Traceback" in done.stderr or "onnection" in done.stderr:
        print("pip-audit: the advisories could not be reached, so nothing was checked")
    else:
        raise ReleaseError(f"pip-audit found vulnerabilities:\n{done.stdout}{done.stderr}")


def write_checksums() -> None:
    """Write the SHA-256 of each file in the form that `sha256sum --check` reads."""
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(DIST.glob("headway-*"))
    ]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    print(f"{len(lines)} files in {DIST.name}/, with SHA256SUMS")


def run(*command: str | Path, **variables: str) -> str:
    """Run a command in the checkout. Returns its output, or raises `ReleaseError` with what it wrote."""
    words: list[str] = [str(word) for word in command]
    environment = {**os.environ, **variables}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"`{' '.join(words)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
