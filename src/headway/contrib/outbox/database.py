"""Opens the database of an outbox for a command."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from headway.errors import ConfigError, HeadwayError


@contextmanager
def outbox_database(url: str) -> Iterator[Engine]:
    """Connect to a database, and turn its errors into sentences without the URL, which can have a password.

    Raises `ConfigError` if the URL is not valid or its driver is missing, and `HeadwayError` if the database fails.
    """
    try:
        engine = create_engine(url)
    except (ArgumentError, ImportError) as error:
        wrong = f"the module {error.name} is missing" if isinstance(error, ImportError) else "the URL is not valid"
        raise ConfigError(
            f"The database cannot be used: {wrong}. Examples of URLs: postgresql+psycopg://user@host/name, "
            "sqlite:///shop.db."
        ) from None
    try:
        yield engine
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().rstrip(".")
        raise HeadwayError(f"The database failed: {reason}.") from error
    finally:
        engine.dispose()
