"""The records made of handled rows: the records of one row stay together from the handler to the transaction.

A handler that is called again may answer otherwise. So the records of a row must not be divided over writes, nor over
tasks of a write. Of two transactions one could keep the first answer and the other the second: the row would be in both
receipts and dead letters, or in neither. A row's records are made of its outcome here, in its own task.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType

from headway.core.delay.schedule import HEADER
from headway.core.levels.naming import MOST_LEVELS, is_topic_name
from headway.dead_letters import PREFIX
from headway.errors import ConfigError
from headway.expiry import HEADER as EXPIRES

_HEADERS = "array<struct<key: string, value: binary>>"
_OF_OUTCOMES = ("outcome", "attempts", "error", "done")


@dataclass(frozen=True, slots=True)
class Output:
    """A record made of each row whose outcome is `ok`; columns are given by their names or as expressions.

    Args:
        topic: The target: with a `level` the Kafka topic of that level, else this topic.
        value: Binary or a string.
        key: Binary or a string; None for no key.
        level: A whole number.
        headers: An array of structs of `key` and `value`.
        due: The time at which a relay delivers the record; null is now.
        where: The condition for the record, as an expression in SQL or of Spark's; None for always.
    """

    topic: str
    value: Column | str
    key: Column | str | None = None
    level: Column | str | None = None
    headers: Column | str | None = None
    due: Column | str | None = None
    where: Column | str | None = None


def outputs(
    outcomes: DataFrame, *records: Output, dead_letter_topic: str, identity: Column | str | None = None
) -> DataFrame:
    """Return the records made of the rows of `parallel_map`, as rows for `format("headway")`.

    A row that is `ok` becomes these records, and any other row a dead letter. An `ok` row becomes a dead letter, too,
    if a record cannot be written, as its level is null or a header has no name. All records of one row are in one task,
    and so in one transaction of the sink. So they are there once and as a whole, whatever dies when, and whatever
    handlers answer when they are called again. This needs the same rows in the same tasks again: shuffle nothing from
    `parallel_map` to the sink.

    `identity` tells the sink which row it is when a restart calls its handler again: a string, binary or a whole
    number, different for each row. By default it is made of the source's columns topic, level, partition and offset, if
    they exist. Without an identity, the sink refuses a restart in which a handler answers otherwise, with advice.

    Dead letters have the key, the value and the headers of the row, and the headers of a `ParallelConsumer`'s dead
    letters. So `headway dead` shows them and sends them again. They use the source's columns as far as these exist.

    Raises `ConfigError` for rows without an outcome, for a key or value that is neither binary nor a string, and for a
    topic name that Kafka does not accept.
    """
    for name in _OF_OUTCOMES:
        if name not in outcomes.columns:
            raise ConfigError(f"The rows have no column {name}, which parallel_map adds. Make outputs of its rows.")
    for topic in (dead_letter_topic, *(record.topic for record in records)):
        if not is_topic_name(topic):
            raise ConfigError(
                f"Kafka takes no topic named {topic!r}. Give 1 to 249 letters, digits, dots, underscores and hyphens."
            )
    has_due = any(record.due is not None for record in records)
    reasons = [reason for record in records for reason in _reasons(record)]
    wrong = sf.when(sf.col("outcome") == "ok", sf.coalesce(sf.lit(None).cast("string"), *reasons))
    letter = _struct(outcomes, _dead_letter(outcomes, dead_letter_topic, wrong), has_due=has_due)
    made = sf.array(*(_struct(outcomes, record, has_due=has_due) for record in records)) if records else sf.array()
    each = sf.when((sf.col("outcome") == "ok") & wrong.isNull(), sf.filter(made, sf.isnotnull)).otherwise(
        sf.array(letter)
    )
    known_by = _identity(outcomes) if identity is None else _column(identity)
    if known_by is None:
        return outcomes.select(sf.explode(each).alias("record")).select("record.*")
    # A row without records this time counts, too: next time it may have some.
    exploded = outcomes.select(known_by.alias("identity"), sf.explode_outer(each).alias("record"))
    return exploded.select("record.*", "identity", sf.isnull("record").alias("skip"))


def _identity(outcomes: DataFrame) -> Column | None:
    if not {"topic", "partition", "offset"} <= set(outcomes.columns):
        return None
    return sf.concat_ws("/", *(name for name in ("topic", "level", "partition", "offset") if name in outcomes.columns))


def _struct(outcomes: DataFrame, record: Output, *, has_due: bool) -> Column:
    """Return the record as a struct; null if its condition is false."""
    topic = sf.lit(record.topic)
    if record.level is not None:
        topic = sf.concat(sf.lit(f"{record.topic}-"), _level(record.level).cast("string"))
    fields = [
        topic.alias("topic"),
        _bytes(outcomes, record, "key", record.key).alias("key"),
        _bytes(outcomes, record, "value", record.value).alias("value"),
        _or_null(record.headers).cast(_HEADERS).alias("headers"),
    ]
    if has_due:
        fields.append(_or_null(record.due).try_cast("timestamp").alias("due"))
    return _where(record, sf.struct(*fields))


def _where(record: Output, column: Column) -> Column:
    """Return the column if the record's condition holds, else null."""
    if record.where is None:
        return column
    return sf.when(sf.expr(record.where) if isinstance(record.where, str) else record.where, column)


def _level(level: Column | str) -> Column:
    return _column(level).try_cast("int")


def _reasons(record: Output) -> list[Column]:
    """Return the reasons why a record cannot be written, as texts that are null if it can."""
    reasons = []
    if record.level is not None:
        level = _level(record.level)
        no_level = f"its output to {record.topic} has no level: the column is null or no whole number"
        reasons.append(sf.when(level.isNull(), no_level))
        shown = sf.concat(sf.lit(f"its output to {record.topic} has the level "), level.cast("string"))
        reasons.append(sf.when(~level.between(0, MOST_LEVELS - 1), shown))
    if record.headers is not None:
        headers = _or_null(record.headers).cast(_HEADERS)
        reasons.append(
            sf.when(sf.exists(headers, _has_no_name), f"a header of its output to {record.topic} has no name")
        )
    if record.due is not None:
        due = _column(record.due)
        no_time = f"its output to {record.topic} is due at what is no time"
        reasons.append(sf.when(due.isNotNull() & due.try_cast("timestamp").isNull(), no_time))
    if record.headers is not None and record.due is not None:
        taken = f"a header of its output to {record.topic} is named {HEADER}, which is ours"
        reasons.append(sf.when(sf.exists(headers, lambda header: header["key"] == HEADER), taken))
    return [_where(record, reason) for reason in reasons]


def _has_no_name(header: Column) -> Column:
    """Return whether a header has no name, or one with a NUL character, where Kafka's client would cut it."""
    return header.isNotNull() & (header["key"].isNull() | header["key"].contains("\0"))


def _bytes(outcomes: DataFrame, record: Output, name: str, column: Column | str | None) -> Column:
    if column is None:
        return sf.lit(None).cast("binary")
    kind = outcomes.select(_column(column)).schema[0].dataType
    if not isinstance(kind, BinaryType | StringType):
        raise ConfigError(
            f"The {name} of the output to {record.topic} is {kind.simpleString()}; it must be binary or a string. Cast "
            "it, or make JSON of it with to_json."
        )
    return _column(column).cast("binary")


def _column(column: Column | str) -> Column:
    return sf.col(column) if isinstance(column, str) else column


def _or_null(column: Column | str | None) -> Column:
    return sf.lit(None) if column is None else _column(column)


def _dead_letter(outcomes: DataFrame, topic: str, wrong: Column) -> Output:
    """Return the dead letter of a row that is not `ok`, or whose records cannot be written."""
    columns = set(outcomes.columns)
    story = {
        "exception": sf.coalesce("error.exception", sf.when(wrong.isNotNull(), "headway.errors.DeliveryError")),
        "message": sf.coalesce("error.message", wrong),
        "reason": sf.coalesce("error.reason", sf.when(wrong.isNotNull(), "what came of it cannot be written")),
        "attempts": sf.col("attempts"),
        "last.time": sf.unix_millis("done"),
        **({"topic": _kafka_topic(columns)} if "topic" in columns else {}),
        **{name: sf.col(name) for name in ("partition", "offset") if name in columns},
        **({"timestamp": sf.unix_millis("timestamp")} if "timestamp" in columns else {}),
    }
    told = sf.filter(sf.array(*(_header(name, value) for name, value in story.items())), _is_known)
    own = sf.filter(sf.coalesce("headers", sf.array().cast(_HEADERS)), _is_own) if "headers" in columns else None
    return Output(
        topic,
        value="value" if "value" in columns else sf.lit(None).cast("binary"),
        key="key" if "key" in columns else None,
        headers=told if own is None else sf.concat(own, told),
    )


def _kafka_topic(columns: set[str]) -> Column:
    return sf.concat_ws("-", "topic", "level") if "level" in columns else sf.col("topic")


def _header(name: str, value: Column) -> Column:
    return sf.struct(sf.lit(PREFIX + name).alias("key"), sf.encode(value.cast("string"), "UTF-8").alias("value"))


def _is_known(header: Column) -> Column:
    return header["value"].isNotNull()


def _is_own(header: Column) -> Column:
    return ~header["key"].startswith(PREFIX) & (header["key"] != EXPIRES)
