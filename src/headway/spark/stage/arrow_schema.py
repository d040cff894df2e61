"""Checks that Spark can pass the columns of a frame to Python as Arrow data.

Arrow does not have all of Spark's types, and its structs cannot have two fields with the same name.
"""

from collections.abc import Iterator, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headway.errors import ConfigError


def check_comes_as_arrow(df: DataFrame) -> None:
    """Raise `ConfigError` if Arrow cannot represent a column, or if two columns or fields have the same name."""
    if twice := _twice(df.columns):
        raise ConfigError(
            f"The DataFrame has two columns named {twice}, for example because of a join, but the columns of a row "
            "must have different names. Rename or drop one of the two before the join."
        )
    for column in df.schema:
        for kind in _within(column.dataType):
            if isinstance(kind, StructType) and (twice := _twice(kind.names)):
                raise ConfigError(
                    f"The column `{column.name}` has two fields named {twice}. Rows are passed to Python as Arrow "
                    "data, in which names of fields must be different. Rename one of the fields."
                )
        try:
            to_arrow_type(column.dataType, timezone="UTC")
        except PySparkException as error:
            raise ConfigError(
                f"The column `{column.name}` is {column.dataType.simpleString()}. Rows are passed to Python as Arrow "
                "data, which has no such type. Drop the column, or cast it to a string: "
                f"F.col({column.name!r}).cast('string')."
            ) from error


def check_fields(schema: DataType) -> None:
    """Raise `ConfigError` if the schema of a handler's results has two fields with the same name."""
    for kind in _within(schema):
        if isinstance(kind, StructType) and (twice := _twice(kind.names)):
            raise ConfigError(f"The schema has two fields named {twice}. Rename one of them.")


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _within(kind: DataType) -> Iterator[DataType]:
    """Yield a type and all types that it contains."""
    yield kind
    if isinstance(kind, ArrayType):
        yield from _within(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _within(kind.keyType)
        yield from _within(kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind:
            yield from _within(field.dataType)
