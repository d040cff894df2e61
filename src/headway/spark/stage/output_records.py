"""Makes Kafka records from the outcomes of rows, so that all records of a row are in the same transaction.

A handler that is called a second time for a row may return another result. If the records of the row were divided
among several writes or tasks, some of them could be made from the first result, and others from the second. The row
could then be both among the outputs and among the dead letters, or in neither place. So all records of a row are made
here, in the task of the row, and are written in one transaction.
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
"""The name of a column, an expression, or, if `each` is set, a function that returns an expression for an element."""


@dataclass(frozen=True, slots=True)
class Output:
    """Describes a record that `outputs` makes from each row whose outcome is `ok`.

    Columns are given by name or as expressions. With `each`, a row becomes any number of records: one for each element
    of an array, in the array's order. If `each` is given, the other columns can also be functions of the element, such
    as `value=lambda line: line["text"]`.

    Args:
        topic: The target topic. If a `level` is given, the record goes to the Kafka topic of that level.
        value: The value of the record: binary or a string.
        key: The key of the record: binary or a string. None for no key.
        level: The level of the record, a whole number. None if the target topic has no levels.
        headers: The headers of the record: an array of structs of `key` and `value`.
        due: The time at which a relay delivers the record. Null means that it is delivered at once.
        expires: The time after which the record is no longer handled. Null means that it does not expire.
        where: The condition under which the record is made, as SQL text or as a Spark expression. None means always.
        each: An array, such as `result` if the handler returns a list. One record is made for each of its elements.
            Null counts as an empty array.
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
    """Make Kafka records from the rows of `parallel_map`. Returns them as rows to write with `format("headway")`.

    A row whose outcome is `ok` becomes the given records. If one of these cannot be written, for example because its
    level is null or a header has no name, the row becomes a dead letter instead. So does a row that is `failed` or
    `parked`. A row that is `expired` becomes nothing, or a dead letter with `on_expired="dead_letter"`.

    A row that is `later` becomes a copy of its own record, for the same topic and partition, with the attempts so far
    in a header. A relay (`headway relay`) delivers this record when it is due.

    All records of a row are written by one task, and so in one transaction of the sink. So Kafka gets all of them
    exactly once, whichever processes die, and even if a handler returns another result when it is called again. This
    requires that each run has the same rows in the same tasks, so do not shuffle rows between `parallel_map` and the
    sink.

    The `identity` of a row lets the sink recognise the row when a restarted query calls the handler for it again. The
    identity is a string, binary or a whole number, and is different for each row. By default it is built from the
    source's columns topic, level, partition and offset, if they exist. Without an identity, the sink raises an error if
    a handler returns other results after a restart; the error explains what to do.

    Dead letters have the key, the value and the headers of the row, and the same additional headers as the dead letters
    of a `ParallelConsumer`, so `headway dead` can show them and send them again. Headers that need a column of the
    source are left out if the rows do not have that column.

    Raises `ConfigError` if the rows have no outcome, if rows can be handled again later but lack the columns of their
    records, if a key or value is neither binary nor a string, or if Kafka does not accept the name of a topic.
    """
    check_choice("on_expired", on_expired, ("drop", "dead_letter"))
    for name in _OF_OUTCOMES:
        if name not in outcomes.columns:
            raise ConfigError(
                f"The DataFrame has no `{name}` column, which parallel_map adds. Pass outputs the DataFrame that "
                "parallel_map returned."
            )
    for topic in (dead_letter_topic, *(record.topic for record in records)):
        if not is_topic_name(topic):
            raise ConfigError(
                f"Kafka does not accept the topic name {topic!r}. Use 1 to 249 letters, digits, dots, underscores and "
                "hyphens."
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
    # A row without records is passed on with its identity, because it may have records when it is handled again. The
    # sink compares rows only by their identities, so the metadata contains the target topics: without them, the sink
    # would mistake a write to other topics for a repetition of this write.
    targets = {TARGETS: sorted({dead_letter_topic, *(record.topic for record in records)})}
    identified = known_by.alias("identity", metadata=targets)
    exploded = outcomes.select(identified, sf.explode_outer(each).alias("record"))
    counted = observed_records(exploded, dead_letter_topic)
    return counted.select("record.*", "identity", sf.isnull("record").alias("skip"))


def check_comes_again(df: DataFrame) -> None:
    """Raise `ConfigError` if the rows lack a column of their records, so that they cannot be handled again later."""
    for name in _OF_RECORDS:
        if name not in df.columns:
            how = "Read with includeHeaders=true, and keep" if name == "headers" else "Keep"
            raise ConfigError(
                f"The rows have no `{name}` column. Rows that can be handled again later must keep the columns of the "
                f'source record, as format("headway") returns them ({", ".join(_OF_RECORDS)}). {how} these columns.'
            )


def _again(outcomes: DataFrame, times: Sequence[str]) -> Column:
    """Return the record for a row that is handled again later, as a struct."""
    # A record that expires already has the time in one of its headers, so the column `expires` is null.
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
    """Return the headers of the row's record, or an empty array if there is no column `headers`."""
    none = sf.array().cast(_HEADERS)
    return sf.coalesce(sf.col("headers").cast(_HEADERS), none) if "headers" in outcomes.columns else none


def _identity(outcomes: DataFrame) -> Column | None:
    if not {"topic", "partition", "offset"} <= set(outcomes.columns):
        return None
    return sf.concat_ws("/", *(name for name in ("topic", "level", "partition", "offset") if name in outcomes.columns))


class _OutputRecords:
    """The records that an `Output` makes from a row: a single one, or one for each element of an array."""

    def __init__(self, outcomes: DataFrame, record: Output, times: Sequence[str]) -> None:
        self.outcomes = outcomes
        self.record = record
        self.times = times
        self._elements: Column | None = None
        if record.each is None:
            for name in (field.name for field in fields(record)):
                if callable(given := getattr(record, name)) and not isinstance(given, Column):
                    raise ConfigError(
                        f"The output to {record.topic} has a function as its {name}, but no each=. Set each='result' "
                        "to make a record from each element of the result, or use a column instead of the function."
                    )
            return
        elements = _column(record.each)
        kind = outcomes.select(elements).schema[0].dataType
        if not isinstance(kind, ArrayType):
            raise ConfigError(
                f"The each= of the output to {record.topic} has the type {kind.simpleString()}; it must be an array. "
                "Let the handler return a list, with a schema such as array<string>."
            )
        self._elements = sf.coalesce(elements, sf.array().cast(kind))

    def array(self, make: Callable[["_OutputRecords", Column | None], Column]) -> Column:
        """Return an array with the result of `make` for each element, or with a single result if there is no `each`."""
        if self._elements is None:
            return sf.array(make(self, None))
        return sf.transform(self._elements, lambda element: make(self, element))

    def each_reason(self, make: Callable[["_OutputRecords", Column | None], Sequence[Column]]) -> Sequence[Column]:
        """Return the reasons that `make` returns, or with `each`, the first reason that any element has."""
        if self._elements is None:
            return make(self, None)
        found = sf.transform(self._elements, lambda element: sf.coalesce(_no_text(), *make(self, element)))
        return [sf.try_element_at(sf.filter(found, sf.isnotnull), sf.lit(1))]

    def kind(self, given: Given) -> DataType:
        """Return the Spark type that this column has in the records."""
        kind = self.outcomes.select(self.array(lambda _, element: _given(given, element))).schema[0].dataType
        return kind.elementType  # type: ignore[attr-defined, no-any-return]


def _no_text() -> Column:
    return sf.lit(None).cast("string")


def _struct(part: _OutputRecords, element: Column | None) -> Column:
    """Return the record as a struct, or null if the record's condition is false."""
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
    """Return columns with the reasons why a record cannot be written. A column is null if its reason does not apply."""
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
            taken = f"a header of its output to {record.topic} is named {ours}, which is a name that headway reserves"
            reasons.append(sf.when(_is_among(headers, ours), taken))
    if record.expires is not None:
        reasons += _wrong_expiries(record, element)
    return [_where(record, element, reason) for reason in reasons]


def _wrong_expiries(record: Output, element: Column | None) -> list[Column]:
    """Return columns with the reasons why the sink would reject the expiry time of a record."""
    at = sf.unix_millis(_or_null(record.expires, element).try_cast("timestamp"))
    outside = sf.concat(sf.lit(f"its output to {record.topic} expires "), at.cast("string"), sf.lit(" ms after 1970"))
    reasons = [sf.when(~at.between(0, LATEST), outside)]
    if record.due is not None:
        due = sf.unix_millis(_given(record.due, element).try_cast("timestamp"))
        reasons.append(sf.when(at <= due, f"its output to {record.topic} would expire before it is due"))
    return reasons


def _is_among(headers: Column, name: str) -> Column:
    return sf.exists(headers, lambda header: header["key"] == name)


def _has_no_name(header: Column) -> Column:
    """Return whether a header has no name, or a name with a NUL character, at which Kafka's client would cut it off."""
    return header.isNotNull() & (header["key"].isNull() | header["key"].contains("\0"))


def _bytes(part: _OutputRecords, name: str, given: Given | None, element: Column | None) -> Column:
    if given is None:
        return sf.lit(None).cast("binary")
    kind = part.kind(given)
    if not isinstance(kind, BinaryType | StringType):
        raise ConfigError(
            f"The {name} of the output to {part.record.topic} is {kind.simpleString()}; it must be binary or a string. "
            "Cast it, or convert it to JSON with to_json."
        )
    return _given(given, element).cast("binary")


def _column(column: Column | str) -> Column:
    return sf.col(column) if isinstance(column, str) else column


def _given(given: Given, element: Column | None) -> Column:
    """Return the given column of the row. If `given` is a function, return the function's result for the element."""
    if isinstance(given, Column | str):
        return _column(given)
    assert element is not None  # noqa: S101 - for the type checker: functions are refused without `each`
    return given(element)


def _or_null(given: Given | None, element: Column | None) -> Column:
    return sf.lit(None) if given is None else _given(given, element)


def _dead_letter(outcomes: DataFrame, topic: str, wrong: Column) -> Output:
    """Return the dead letter for a row that is not `ok`, or that is `ok` but whose records cannot be written."""
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
    # The dead letter keeps the origin of its record in a history header that names the dead-letter topic.
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
    """Return the value at a path in the row's history, or null if the row had only one attempt."""
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
