"""Stages and workers on Spark that cannot work are refused where they are declared, before anything runs."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import pytest
from pyspark.resource import ResourceProfileBuilder
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from headway.errors import ConfigError
from headway.spark import parallel_map, run_workers


class Frame(NamedTuple):
    """As much of a DataFrame as a declaration looks at."""

    schema: StructType = StructType([StructField("key", StringType())])

    @property
    def columns(self) -> list[str]:
        return self.schema.names


def handle(row: Any) -> int:
    return 1


def no_arguments() -> int:
    return 1


def yields(row: Any) -> Iterator[int]:
    yield 1


@contextmanager
def of_settings(settings: dict[str, Any]) -> Iterator[None]:
    yield


@asynccontextmanager
async def awaited() -> AsyncIterator[None]:
    yield


def declare(
    handler: Any = handle,
    schema: Any = IntegerType(),  # noqa: B008
    key: Any = "key",
    frame: Frame | None = None,
    **options: Any,
) -> Any:
    key = key if frame is None else None
    return parallel_map(frame or Frame(), handler, schema, key=key, **options)  # type: ignore[arg-type]


def columns(*names: str) -> Frame:
    return Frame(StructType([StructField(name, StringType()) for name in names]))


def of_kind(kind: DataType) -> Frame:
    return Frame(StructType([StructField("x", kind)]))


MONTHS = YearMonthIntervalType(1)
TWICE = StructType([StructField("n", IntegerType()), StructField("n", StringType())])


def workers(handler: Any = "billing:bill", n: Any = 2, **options: Any) -> Any:
    return run_workers(None, handler, n, {}, **options)  # type: ignore[arg-type]


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: declare("handle"), "The handler is 'handle'; it must be a function (row), or (row, context) to get the"),
    (lambda: declare(no_arguments), "The handler no_arguments can be called neither with (row) nor with (row, con"),
    (lambda: declare(yields), "The handler yields is a generator, but must return one result for each row"),
    (lambda: declare(schema=5), "The schema is 5; it must be a Spark type or a text"),
    (lambda: declare(key=5), "The key is 5; it must be the name of a column, a list of names, or None"),
    (lambda: declare(park_behind_failed="no"), "park_behind_failed is 'no'; it must be True or False"),
    (lambda: declare(key=None, park_behind_failed=True), "park_behind_failed is True, but key is None, so there"),
    (
        lambda: declare(frame=columns("a", "b", "a")),
        "The DataFrame has two columns named a, for example because of a join",
    ),
    (lambda: declare(frame=columns("Result")), "The DataFrame already has a column `Result`, but parallel_map"),
    (
        lambda: declare(frame=of_kind(MONTHS)),
        "The column `x` is interval month. Rows are passed to Python as Arrow data, which has no",
    ),
    (
        lambda: declare(frame=of_kind(CalendarIntervalType())),
        "The column `x` is interval. Rows are passed to Python as Arrow",
    ),
    (
        lambda: declare(frame=of_kind(ArrayType(TWICE))),
        "The column `x` has two fields named n. Rows are passed to Python as Arrow",
    ),
    (lambda: declare(schema=TWICE), "The schema has two fields named n. Rename one of them"),
    (lambda: declare(max_concurrency="100"), "max_concurrency is '100'; it must be a whole number, at least 1"),
    (lambda: declare(max_concurrency=2.5), "max_concurrency is 2.5; it must be a whole number, at least 1"),
    (lambda: declare(time_limit="1m"), "time_limit is '1m'; it must be above 0 and finite, or left out"),
    (lambda: declare(retries=3), "retries is 3; it must be a Retries, such as Retries(max_attempts=5)"),
    (lambda: declare(retries=None), "retries is None; it must be a Retries"),
    (lambda: declare(rate_limit=0), "rate_limit is 0; it must be above 0 and finite, or left out"),
    (lambda: declare(expires_after=-1), "expires_after is -1; it must be above 0 and finite, or left out"),
    (lambda: declare(expires_after=60), "the DataFrame has no column timestamp with times"),
    (lambda: declare(priority=5), "The priority is 5; it must be the name of a column, or None"),
    (lambda: declare(priority="kye"), "The DataFrame has no column `kye` for the priority. Did you mean key?"),
    (lambda: declare(priority="key"), "The column `key` is string, but a priority must be a number. Cast"),
    (lambda: declare(lifespan=5), "lifespan is 5; it must be a function that makes a context manager"),
    (
        lambda: declare(lifespan=of_settings),
        "of_settings, which cannot be called with (). Declare it without a parameter",
    ),
    (lambda: declare(lifespan=awaited), "The lifespan awaited is async, and the handler handle is a plain function"),
    (
        lambda: declare(profile=5),
        "profile is 5; it must be a ResourceProfile of Spark's, such as ResourceProfileBuilder()",
    ),
    (lambda: declare(profile=ResourceProfileBuilder()), "profile is <pyspark.resource.profile.ResourceProfileBuilder"),
    (lambda: workers(handle), "name it as module:handler"),
    (lambda: workers(n=0), "n is 0; it must be at least 1"),
    (lambda: workers(n="2"), "n is '2'; it must be a whole number, at least 1"),
    (lambda: workers(max_concurrency=0), "max_concurrency is 0; it must be at least 1"),
    (lambda: workers(drain_timeout="30s"), "drain_timeout is '30s'; it must be a number, at least 0"),
]


@pytest.mark.parametrize(("declaration", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_work_is_refused_when_it_is_declared(declaration: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        declaration()
    assert words in str(refused.value)
