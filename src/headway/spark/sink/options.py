"""Parses the options of the headway sink and checks its columns. Each error explains how to correct the mistake."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Literal, cast, get_args

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from headway.delay.topic_names import DEFAULT_NAME
from headway.errors import ConfigError
from headway.spark.option_parsing import (
    KAFKA_PREFIX,
    bounded_number,
    choice,
    kafka_settings,
    refuse_unknown,
    topic_priorities,
)

Delivery = Literal["exactly_once", "at_least_once"]

_TRANSACTION = "transaction.timeout.ms"
NAMES = ("topic", "priorities", "delivery", "txnAppId", "txnVersion", "keepVersion", "markerTopic", "schedulerName")
# Spark's own options, which it also passes to the sink. It passes queryName only in declarative pipelines.
_OF_SPARK = ("checkpointlocation", "queryname")
MARKER_TOPIC = "headway-markers"
TARGETS = "headway.topics"
"""The key in the metadata of the column `identity` under which `outputs` lists the topics of its records."""

_VERSION = "a number that grows with each write"

# Settings of librdkafka that users cannot set, because the option `delivery` determines them.
_OWN = ("transactional.id", "enable.idempotence", "allow.auto.create.topics", "delivery.report.only.error")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a write. `None` means that an option was not given."""

    kafka: Mapping[str, str] = field(repr=False)
    topic: str | None = None
    priorities: Mapping[str, int] | None = None
    delivery: Delivery = "exactly_once"
    app_id: str | None = None
    version: int | None = None
    keep_version: int | None = None
    marker_topic: str = MARKER_TOPIC
    scheduler_name: str = DEFAULT_NAME


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options that Spark passes. Case does not matter in names, and all values are text.

    Raises `ConfigError` for the first option that is unknown, missing or not valid.
    """
    options = {name.lower(): value for name, value in given.items()}
    for name in _OF_SPARK:
        options.pop(name, None)
    if path := options.pop("path", ""):
        raise ConfigError(
            f"The headway sink does not write to a path, but {path!r} was given. Name a topic with the `topic` option."
        )
    refuse_unknown("sink", NAMES, options)
    app_id, version = options.get("txnappid"), options.get("txnversion")
    if (app_id is None) != (version is None):
        raise ConfigError(
            "The options txnAppId and txnVersion belong together: the name of a job, and a number that grows with each "
            "of its writes. Give both of them, or leave both out."
        )
    if app_id is not None and not app_id.strip():
        raise ConfigError(
            "The option `txnAppId` is empty. Give the name of the job, which stays the same when it runs again."
        )
    delivery = cast("Delivery", choice("delivery", options.get("delivery", "exactly_once"), get_args(Delivery)))
    keep_version = options.get("keepversion")
    for name in ("keepVersion", "markerTopic"):
        if name.lower() in options and delivery == "at_least_once":
            raise ConfigError(f"The option `{name}` applies to delivery=exactly_once only. Remove it.")
    if app_id is not None and delivery == "at_least_once":
        raise ConfigError(
            "With txnAppId and txnVersion, a repeated write skips rows that are already in Kafka, but "
            "delivery=at_least_once never skips rows. Remove the two options, or choose exactly_once."
        )
    return SinkOptions(
        kafka=_kafka(options),
        topic=options.get("topic"),
        priorities=topic_priorities(options["priorities"]) if "priorities" in options else None,
        delivery=delivery,
        app_id=app_id,
        version=None if version is None else bounded_number("txnVersion", version, 0, _VERSION),
        keep_version=None if keep_version is None else bounded_number("keepVersion", keep_version, 0, _VERSION),
        marker_topic=options.get("markertopic", MARKER_TOPIC),
        scheduler_name=options.get("schedulername", DEFAULT_NAME),
    )


def for_stream(options: SinkOptions) -> SinkOptions:
    """Return the options if they are valid for `writeStream`. Otherwise raises `ConfigError`."""
    if options.app_id is not None:
        raise ConfigError(
            "The options txnAppId and txnVersion are for df.write; a stream uses the query's id and the number of the "
            "micro-batch instead. Remove them."
        )
    return options


def for_batch(options: SinkOptions) -> SinkOptions:
    """Return the options if they are valid for `df.write`. Otherwise raises `ConfigError`."""
    if options.keep_version is not None and options.app_id is None:
        raise ConfigError(
            "The option `keepVersion` is for a write with txnAppId and txnVersion; any other write is never repeated. "
            "Remove it."
        )
    return options


def _kafka(options: Mapping[str, str]) -> dict[str, str]:
    settings = kafka_settings("sink", options)
    if (timeout := settings.get(_TRANSACTION)) is not None:
        bounded_number(f"{KAFKA_PREFIX}{_TRANSACTION}", timeout, 1, "milliseconds, such as 300000 for five minutes")
    for name in filter(settings.__contains__, _OWN):
        raise ConfigError(
            f"The option `{KAFKA_PREFIX}{name}` cannot be set, because the option `delivery` determines it. Remove it."
        )
    return settings


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def _is_whole(kind: DataType) -> bool:
    return isinstance(kind, ByteType | ShortType | IntegerType | LongType)


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [each.name for each in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and _is_bytes(fields[1].dataType)
    )


_COLUMNS: Final[Mapping[str, tuple[Callable[[DataType], bool], str]]] = {
    "topic": (lambda kind: isinstance(kind, StringType), "a string"),
    "level": (_is_whole, "a whole number"),
    "key": (_is_bytes, "binary or a string"),
    "value": (_is_bytes, "binary or a string"),
    "headers": (_are_headers, "array<struct<key: string, value: binary>>"),
    "partition": (_is_whole, "a whole number"),
    "due": (lambda kind: isinstance(kind, TimestampType), "a timestamp"),
    "expires": (lambda kind: isinstance(kind, TimestampType), "a timestamp"),
    "skip": (lambda kind: isinstance(kind, BooleanType), "a boolean"),
    "identity": (lambda kind: _is_bytes(kind) or _is_whole(kind), "a string, binary or a whole number"),
}


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise `ConfigError` if a column is unknown or has the wrong type, or if rows have no topic."""
    names = schema.fieldNames()
    for column in schema:
        _check_column(column.name, column.dataType, names)
    if "value" not in names:
        raise ConfigError(
            f"The headway sink needs a `value` column, but the columns are {_listed(names)}. Rename one of them to "
            "value."
        )
    if options.priorities is not None:
        _check_priorities(options.priorities, names, options)
    elif "topic" not in names and options.topic is None:
        raise ConfigError("The headway sink needs a `topic` column, or the `topic` option for all rows.")
    if "topic" in names and options.topic is not None:
        raise ConfigError(
            "The headway sink has both a `topic` column and the `topic` option. Drop the column, or remove the option."
        )


def topics_of(schema: StructType, options: SinkOptions) -> tuple[str, ...]:
    """Return those topics that rows can be written to and that are known before the first row.

    `outputs` lists its topics in the metadata of the column `identity`. If the user made the column `topic`, its topics
    are not known beforehand, so they are not returned.
    """
    named = {TARGETS: [options.topic] if options.topic else list(options.priorities or ())}
    if "identity" in schema.fieldNames() and not named[TARGETS]:
        named = schema["identity"].metadata or {}
    return tuple(sorted(map(str, named.get(TARGETS, ()))))


def _check_priorities(priorities: Mapping[str, int], names: Collection[str], options: SinkOptions) -> None:
    """Raise `ConfigError` if the option `priorities` and the columns do not determine the topic of each row."""
    if options.topic is not None:
        raise ConfigError(
            "The option `topic` sends all rows to one topic, but `priorities` gives each level its own topic. Remove "
            "one of the two options."
        )
    if "topic" in names:
        return
    if "level" not in names:
        raise ConfigError(
            "With the option `priorities`, the headway sink needs a `level` column or a `topic` column. Add one of "
            "them."
        )
    topics: dict[int, str] = {}
    for topic, level in priorities.items():
        if (other := topics.setdefault(level, topic)) != topic:
            raise ConfigError(
                f"The option `priorities` gives both {other} and {topic} the level {level}, so the level of a row does "
                "not determine its topic. Add a `topic` column, or give the two topics different levels."
            )


def _check_column(name: str, kind: DataType, names: Collection[str]) -> None:
    if name not in _COLUMNS:
        near = get_close_matches(name, [known for known in _COLUMNS if known not in names], n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Drop it, or move its content to one of {_listed(_COLUMNS)}."
        raise ConfigError(f"The headway sink has no `{name}` column. {hint}")
    suits, wanted = _COLUMNS[name]
    if not suits(kind):
        raise ConfigError(f"The column `{name}` is {kind.simpleString()}; the headway sink needs {wanted}. Cast it.")


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "none"
