"""Tries Headway on each Python that this machine has, and with the oldest and the newest dependencies it accepts.

`make test` uses one Python and the versions of the lock. These sessions print the versions that they have. They leave
out the tests with a Spark session, because PySpark supports fewer versions. `make versions` runs all of them.
"""

import nox

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
TESTS = ["tests/unit", "tests/property", "tests/contract"]
PROJECT = nox.project.load_toml("pyproject.toml")
EVERYTHING = f".[{','.join(PROJECT['project']['optional-dependencies'])}]"


@nox.session(python=PYTHONS)
@nox.parametrize("compiled", ["0", "1"])
def python(session: nox.Session, compiled: str) -> None:
    """Run the tests on one Python, in plain Python and compiled, with the versions of the lock."""
    _install(session, compiled, "--constraint", "requirements.lock")
    _test(session)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the tests with the oldest dependencies that pyproject.toml allows."""
    _install(session, "0", "--resolution", "lowest-direct")
    _test(session)


@nox.session(python=PYTHONS[-2])
def newest(session: nox.Session) -> None:
    """Run the tests with the newest dependencies that pyproject.toml allows."""
    _install(session, "0", "--upgrade")
    _test(session)


def _install(session: nox.Session, compiled: str, *options: str) -> None:
    groups = nox.project.dependency_groups(PROJECT, "dev", "demo")
    session.install(*options, EVERYTHING, *groups, env={"HEADWAY_COMPILE": compiled})


def _test(session: nox.Session) -> None:
    session.run("headway", "--version")
    session.run("uv", "pip", "list", external=True)
    selected = "not slow and not interrupts and not spark"
    session.run("pytest", "-m", selected, "--numprocesses", "3", *(session.posargs or TESTS))
