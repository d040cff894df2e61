"""Checks that the columns of a frame can come to Python as Arrow, whose structs cannot have two fields of one name."""

from collections.abc import Iterator, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headway.errors import ConfigError


def check_comes_as_arrow(df: DataFrame) -> None:
    """Raise `ConfigError` for a column that Arrow cannot represent, and for two columns or fields of one name."""
    if twice := _twice(df.columns):
        raise ConfigError(
            f"The DataFrame has two columns named {twice}, as a join can leave behind, so rows cannot tell them apart. "
            "Rename or drop one of them before the join."
        )
    for column in df.schema:
        for kind in _within(column.dataType):
            if isinstance(kind, StructType) and (twice := _twice(kind.names)):
                raise ConfigError(
                    f"The column {column.name} has two fields named {twice}. Rows come to Python as Arrow, which "
                    "cannot have that. Rename one of the fields."
                )
        try:
            to_arrow_type(column.dataType, timezone="UTC")
        except PySparkException as error:
            raise ConfigError(
                f"The column {column.name} is {column.dataType.simpleString()}. Rows come to Python as Arrow, which "
                f"has no such type. Drop it, or cast it to a string: F.col({column.name!r}).cast('string')."
            ) from error


def check_fields(schema: DataType) -> None:
    """Raise `ConfigError` if the type of a result has two fields of one name."""
    for kind in _within(schema):
        if isinstance(kind, StructType) and (twice := _twice(kind.names)):
            raise ConfigError(f"The schema has two fields named {twice}. Rename one of them.")


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _within(kind: DataType) -> Iterator[DataType]:
    """Yield a type and all types inside it."""
    yield kind
    if isinstance(kind, ArrayType):
        yield from _within(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _within(kind.keyType)
        yield from _within(kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind:
            yield from _within(field.dataType)
