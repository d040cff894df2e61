"""Makes records of handled rows: the records of one row stay together from the handler to the transaction.

A handler that is called again may answer differently. So the records of a row must not be divided over writes, nor
over tasks of a write: of two transactions, one could keep the first answer and the other the second, and the row would
be in both receipts and dead letters, or in neither. Therefore a row's records are made from its outcome here, in its
own task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType

from headway.core.delay.schedule import HEADER
from headway.core.levels.naming import MOST_LEVELS, is_topic_name
from headway.core.untrusted import LATEST
from headway.dead_letters import PREFIX
from headway.declarations import check_choice
from headway.errors import ConfigError
from headway.parallel.options import OnExpired
from headway.records.expiry import HEADER as EXPIRES
from headway.records.history import HEADER as HISTORY
from headway.spark.sink.options import TARGETS
from headway.spark.source.schema import has_level_topics
from headway.spark.stage.outcomes import AGAIN_AT, observed_records

_HEADERS = "array<struct<key: string, value: binary>>"
_OF_OUTCOMES = ("outcome", "attempts", "error", "done", "history")
_OF_RECORDS = ("topic", "partition", "key", "value", "headers")


Given = Column | str | Callable[[Column], Column]
"""A column by its name, an expression, or with `each` a function from an element to an expression."""


@dataclass(frozen=True, slots=True)
class Output:
    """A record to make of each row whose outcome is `ok`; columns are given by name or as expressions.

    With `each`, a row gives any number of records: one for each element of an array, in the array's order. Then the
    other columns can be functions of the element, such as `value=lambda line: line["text"]`.

    Args:
        topic: The target topic: with a `level`, the Kafka topic of that level.
        value: Binary or a string.
        key: Binary or a string; None for no key.
        level: A whole number.
        headers: An array of structs of `key` and `value`.
        due: The time at which a relay delivers the record; null means now.
        expires: The time after which the record is no longer handled; null means never.
        where: The condition for making the record, as SQL text or as a Spark expression; None means always.
        each: An array, with one record for each of its elements, such as `result` if the handler returns a list. Null
            counts as an empty array.
    """

    topic: str
    value: Given
    key: Given | None = None
    level: Given | None = None
    headers: Given | None = None
    due: Given | None = None
    expires: Given | None = None
    where: Given | None = None
    each: Column | str | None = None


def outputs(
    outcomes: DataFrame,
    *records: Output,
    dead_letter_topic: str,
    identity: Column | str | None = None,
    on_expired: OnExpired = "drop",
) -> DataFrame:
    """Return the records made of the rows of `parallel_map`, as rows for `format("headway")`.

    A row that is `ok` becomes these records, and any other row becomes a dead letter. An `ok` row also becomes a dead
    letter if one of its records cannot be written, for example because its level is null or a header has no name. All
    records of one row are in one task, and so in one transaction of the sink. So they arrive once and complete,
    whatever dies when, and whatever handlers answer when they are called again. This needs the same rows in the same
    tasks on every run, so shuffle nothing between `parallel_map` and the sink.

    A row that is `later` becomes its own record again, for its own topic and partition. A relay (`headway relay`)
    delivers that when it is due, with the attempts so far in a header. A row that is `expired` becomes nothing, or a
    dead letter with `on_expired="dead_letter"`.

    By its `identity`, the sink recognises a row when a restart calls its handler again. It is a string, binary or a
    whole number, and different for each row. By default it is made of the source's columns topic, level, partition and
    offset, if they exist. Without an identity, the sink refuses a restart in which a handler answers differently, and
    its error says what to do.

    Dead letters have the key, the value and the headers of the row, and the headers of a `ParallelConsumer`'s dead
    letters, so `headway dead` shows them and sends them again. They use whichever of the source's columns exist.

    Raises `ConfigError` if the rows have no outcome, or can come back later but lack the columns of their records; if
    a key or value is neither binary nor a string; and for a topic name that Kafka does not accept.
    """
    check_choice("on_expired", on_expired, ("drop", "dead_letter"))
    for name in _OF_OUTCOMES:
        if name not in outcomes.columns:
            raise ConfigError(f"The rows have no column {name}, which parallel_map adds. Make outputs of its rows.")
    for topic in (dead_letter_topic, *(record.topic for record in records)):
        if not is_topic_name(topic):
            raise ConfigError(
                f"Kafka accepts no topic named {topic!r}. Give 1 to 249 letters, digits, dots, underscores and hyphens."
            )
    comes_again = AGAIN_AT in outcomes.columns
    if comes_again:
        check_comes_again(outcomes)
    times = [
        name
        for name in ("due", "expires")
        if any(getattr(record, name) is not None for record in records) or (name == "due" and comes_again)
    ]
    parts = [_OutputRecords(outcomes, record, times) for record in records]
    reasons = [reason for part in parts for reason in part.each_reason(_reasons)]
    wrong = sf.when(sf.col("outcome") == "ok", sf.coalesce(sf.lit(None).cast("string"), *reasons))
    letter = _struct(_OutputRecords(outcomes, _dead_letter(outcomes, dead_letter_topic, wrong), times), None)
    made = sf.concat(*(part.array(_struct) for part in parts)) if parts else sf.array()
    each = sf.when((sf.col("outcome") == "ok") & wrong.isNull(), sf.filter(made, sf.isnotnull))
    if comes_again:
        is_later = (sf.col("outcome") == "later") & sf.col("history").isNotNull()
        each = each.when(is_later, sf.array(_again(outcomes, times)))
    if on_expired == "drop":
        each = each.when(sf.col("outcome") == "expired", sf.filter(sf.array(letter), lambda _: sf.lit(False)))
    each = each.otherwise(sf.array(letter))
    known_by = _identity(outcomes) if identity is None else _column(identity)
    if known_by is None:
        exploded = outcomes.select(sf.explode(each).alias("record"))
        return observed_records(exploded, dead_letter_topic).select("record.*")
    # A row without records counts, too, because it may have some when it is handled again. The sink also compares the
    # topics of writes, since it only sees the identities of rows.
    targets = {TARGETS: sorted({dead_letter_topic, *(record.topic for record in records)})}
    identified = known_by.alias("identity", metadata=targets)
    exploded = outcomes.select(identified, sf.explode_outer(each).alias("record"))
    counted = observed_records(exploded, dead_letter_topic)
    return counted.select("record.*", "identity", sf.isnull("record").alias("skip"))


def check_comes_again(df: DataFrame) -> None:
    """Raise `ConfigError` if the rows lack the columns of their record, and so cannot come back later."""
    for name in _OF_RECORDS:
        if name not in df.columns:
            how = "read with includeHeaders=true, and keep" if name == "headers" else "keep"
            raise ConfigError(
                f"The rows have no column {name}, but can come back later, for which they need the columns of their "
                f'record, {", ".join(_OF_RECORDS)}, as format("headway") gives them. So {how} these.'
            )


def _again(outcomes: DataFrame, times: Sequence[str]) -> Column:
    """Return the record of a row that comes back later, as a struct."""
    # If the record expires, one of its own headers has the time, so the column stays null.
    at = {"due": sf.col(AGAIN_AT), "expires": sf.lit(None).cast("timestamp")}
    own = sf.filter(_headers(outcomes), lambda header: header["key"] != HISTORY)
    history = sf.struct(sf.lit(HISTORY).alias("key"), sf.encode("history", "UTF-8").alias("value"))
    return sf.struct(
        _kafka_topic(outcomes).alias("topic"),
        sf.col("key").cast("binary").alias("key"),
        sf.col("value").cast("binary").alias("value"),
        sf.concat(own, sf.array(history)).cast(_HEADERS).alias("headers"),
        *(at[name].alias(name) for name in times),
        sf.col("partition").cast("int").alias("partition"),
    )


def _headers(outcomes: DataFrame) -> Column:
    """Return the headers of the row's record; an empty array if there is no column `headers`."""
    none = sf.array().cast(_HEADERS)
    return sf.coalesce(sf.col("headers").cast(_HEADERS), none) if "headers" in outcomes.columns else none


def _identity(outcomes: DataFrame) -> Column | None:
    if not {"topic", "partition", "offset"} <= set(outcomes.columns):
        return None
    return sf.concat_ws("/", *(name for name in ("topic", "level", "partition", "offset") if name in outcomes.columns))


class _OutputRecords:
    """The records that an `Output` makes of a row: one, or one for each element of an array."""

    def __init__(self, outcomes: DataFrame, record: Output, times: Sequence[str]) -> None:
        self.outcomes = outcomes
        self.record = record
        self.times = times
        self._elements: Column | None = None
        if record.each is None:
            for name in (field.name for field in fields(record)):
                if callable(given := getattr(record, name)) and not isinstance(given, Column):
                    raise ConfigError(
                        f"The {name} of the output to {record.topic} is a function, but there are no elements. Say "
                        "each='result' to make a record of each element of the result, or give a column."
                    )
            return
        elements = _column(record.each)
        kind = outcomes.select(elements).schema[0].dataType
        if not isinstance(kind, ArrayType):
            raise ConfigError(
                f"The each of the output to {record.topic} is {kind.simpleString()}; it must be an array. Let the "
                "handler return a list, with a schema such as array<string>."
            )
        self._elements = sf.coalesce(elements, sf.array().cast(kind))

    def array(self, make: Callable[["_OutputRecords", Column | None], Column]) -> Column:
        """Return the results of `make` as an array: one for each element, or a single one without `each`."""
        if self._elements is None:
            return sf.array(make(self, None))
        return sf.transform(self._elements, lambda element: make(self, element))

    def each_reason(self, make: Callable[["_OutputRecords", Column | None], Sequence[Column]]) -> Sequence[Column]:
        """Return the reasons that `make` gives; with `each`, the first one of any element."""
        if self._elements is None:
            return make(self, None)
        found = sf.transform(self._elements, lambda element: sf.coalesce(_no_text(), *make(self, element)))
        return [sf.try_element_at(sf.filter(found, sf.isnotnull), sf.lit(1))]

    def kind(self, given: Given) -> DataType:
        """Return the Spark type of a column of the output."""
        kind = self.outcomes.select(self.array(lambda _, element: _given(given, element))).schema[0].dataType
        return kind.elementType  # type: ignore[attr-defined, no-any-return]


def _no_text() -> Column:
    return sf.lit(None).cast("string")


def _struct(part: _OutputRecords, element: Column | None) -> Column:
    """Return the record as a struct, or null if its condition is false."""
    record = part.record
    topic = sf.lit(record.topic)
    if record.level is not None:
        topic = sf.concat(sf.lit(f"{record.topic}-"), _level(record.level, element).cast("string"))
    made = [
        topic.alias("topic"),
        _bytes(part, "key", record.key, element).alias("key"),
        _bytes(part, "value", record.value, element).alias("value"),
        _or_null(record.headers, element).cast(_HEADERS).alias("headers"),
    ]
    made += [_or_null(getattr(record, name), element).try_cast("timestamp").alias(name) for name in part.times]
    if AGAIN_AT in part.outcomes.columns:
        made.append(sf.lit(None).cast("int").alias("partition"))
    return _where(record, element, sf.struct(*made))


def _where(record: Output, element: Column | None, column: Column) -> Column:
    """Return the column, or null where the record's condition is false."""
    if record.where is None:
        return column
    where = sf.expr(record.where) if isinstance(record.where, str) else _given(record.where, element)
    return sf.when(where, column)


def _level(level: Given, element: Column | None) -> Column:
    return _given(level, element).try_cast("int")


def _reasons(part: _OutputRecords, element: Column | None) -> list[Column]:
    """Return the reasons why a record cannot be written, as texts that are null if it can."""
    record = part.record
    reasons = []
    if record.level is not None:
        level = _level(record.level, element)
        no_level = f"its output to {record.topic} has no level: the column is null or not a whole number"
        reasons.append(sf.when(level.isNull(), no_level))
        shown = sf.concat(sf.lit(f"its output to {record.topic} has the level "), level.cast("string"))
        reasons.append(sf.when(~level.between(0, MOST_LEVELS - 1), shown))
    if record.headers is not None:
        headers = _or_null(record.headers, element).cast(_HEADERS)
        reasons.append(
            sf.when(sf.exists(headers, _has_no_name), f"a header of its output to {record.topic} has no name")
        )
    for given, what, ours in ((record.due, "is due", HEADER), (record.expires, "expires", EXPIRES)):
        if given is None:
            continue
        time = _given(given, element)
        no_time = f"its output to {record.topic} {what} at a value that is not a time"
        reasons.append(sf.when(time.isNotNull() & time.try_cast("timestamp").isNull(), no_time))
        if record.headers is not None:
            taken = f"a header of its output to {record.topic} is named {ours}, a name reserved for headway"
            reasons.append(sf.when(_is_among(headers, ours), taken))
    if record.expires is not None:
        reasons += _wrong_expiries(record, element)
    return [_where(record, element, reason) for reason in reasons]


def _wrong_expiries(record: Output, element: Column | None) -> list[Column]:
    """Return the reasons why the sink would refuse the time at which a record expires."""
    at = sf.unix_millis(_or_null(record.expires, element).try_cast("timestamp"))
    outside = sf.concat(sf.lit(f"its output to {record.topic} expires "), at.cast("string"), sf.lit(" ms after 1970"))
    reasons = [sf.when(~at.between(0, LATEST), outside)]
    if record.due is not None:
        due = sf.unix_millis(_given(record.due, element).try_cast("timestamp"))
        reasons.append(sf.when(at <= due, f"its output to {record.topic} would have expired when it is due"))
    return reasons


def _is_among(headers: Column, name: str) -> Column:
    return sf.exists(headers, lambda header: header["key"] == name)


def _has_no_name(header: Column) -> Column:
    """Return whether a header has no name, or a NUL character in it, where Kafka's client would cut the name off."""
    return header.isNotNull() & (header["key"].isNull() | header["key"].contains("\0"))


def _bytes(part: _OutputRecords, name: str, given: Given | None, element: Column | None) -> Column:
    if given is None:
        return sf.lit(None).cast("binary")
    kind = part.kind(given)
    if not isinstance(kind, BinaryType | StringType):
        raise ConfigError(
            f"The {name} of the output to {part.record.topic} is {kind.simpleString()}; it must be binary or a string. "
            "Cast it, or make JSON of it with to_json."
        )
    return _given(given, element).cast("binary")


def _column(column: Column | str) -> Column:
    return sf.col(column) if isinstance(column, str) else column


def _given(given: Given, element: Column | None) -> Column:
    """Return a column of the row or, for a function, its result for the element."""
    if isinstance(given, Column | str):
        return _column(given)
    assert element is not None  # noqa: S101 - for the type checker: it is checked beforehand
    return given(element)


def _or_null(given: Given | None, element: Column | None) -> Column:
    return sf.lit(None) if given is None else _given(given, element)


def _dead_letter(outcomes: DataFrame, topic: str, wrong: Column) -> Output:
    """Return the dead letter of a row that is not `ok`, or of one whose records cannot be written."""
    columns = set(outcomes.columns)
    story = {
        "exception": sf.coalesce("error.exception", sf.when(wrong.isNotNull(), "headway.errors.DeliveryError")),
        "message": sf.coalesce("error.message", wrong),
        "reason": sf.coalesce("error.reason", sf.when(wrong.isNotNull(), "its output cannot be written")),
        "attempts": sf.col("attempts"),
        "first.time": sf.get_json_object("history", "$.first.at"),
        "last.time": sf.unix_millis("done"),
        "first.exception": _if_tried_before("$.first.exception"),
        "first.message": _if_tried_before("$.first.message"),
        **({"expires": _expiry(outcomes)} if "headers" in columns else {}),
        **({"topic": _kafka_topic(outcomes)} if "topic" in columns else {}),
        **{name: sf.col(name) for name in ("partition", "offset") if name in columns},
        **({"timestamp": sf.unix_millis("timestamp")} if "timestamp" in columns else {}),
    }
    # The letter keeps the origin of its record, as a history that names the dead letter topic.
    begin, end = sf.lit(f'{{"topic":"{topic}","origin":'), sf.lit("}")
    history = sf.concat(begin, sf.get_json_object("history", "$.origin"), end)
    headers = [*(_header(PREFIX + name, value) for name, value in story.items()), _header(HISTORY, history)]
    told = sf.filter(sf.array(*headers), _is_known)
    own = sf.filter(_headers(outcomes), _is_own)
    return Output(
        topic,
        value="value" if "value" in columns else sf.lit(None).cast("binary"),
        key="key" if "key" in columns else None,
        headers=sf.concat(own, told),
    )


def _kafka_topic(outcomes: DataFrame) -> Column:
    return sf.concat_ws("-", "topic", "level") if has_level_topics(outcomes) else sf.col("topic")


def _if_tried_before(path: str) -> Column:
    """Return the value at a path of a row's history if the row failed before its last attempt, otherwise null."""
    attempts = sf.get_json_object("history", "$.attempts").cast("int")
    return sf.when(attempts > 1, sf.get_json_object("history", path))


def _expiry(outcomes: DataFrame) -> Column:
    return sf.try_element_at(sf.filter(_headers(outcomes), lambda header: header["key"] == EXPIRES), sf.lit(-1))[
        "value"
    ]


def _header(name: str, value: Column) -> Column:
    return sf.struct(sf.lit(name).alias("key"), sf.encode(value.cast("string"), "UTF-8").alias("value"))


def _is_known(header: Column) -> Column:
    return header["value"].isNotNull()


def _is_own(header: Column) -> Column:
    return ~header["key"].startswith(PREFIX) & ~header["key"].isin(EXPIRES, HISTORY)
