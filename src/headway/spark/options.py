"""The options of `format("headway")`, checked once, with a sentence for each mistake."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, cast

from headway.core.capacity import exponential
from headway.errors import ConfigError
from headway.kafka.ranges import OURS, RangeReader

StartingOffsets = Literal["earliest", "latest"]

NAMES = ("subscribe", "levels", "maxRecordsPerTrigger", "startingOffsets", "includeHeaders")
KAFKA_PREFIX = "kafka."
SERVERS = f"{KAFKA_PREFIX}bootstrap.servers"


@dataclass(frozen=True, slots=True)
class Options:
    """What to read and how; `None` where an option was not given."""

    topics: tuple[str, ...]
    levels: int
    kafka: Mapping[str, str]
    max_records: int | None
    starting_offsets: StartingOffsets | None
    include_headers: bool

    @property
    def shares(self) -> list[int] | None:
        """How many records of a micro-batch each level is promised, 0 lowest; `None` without a limit."""
        return None if self.max_records is None else exponential(self.levels, self.max_records)


def parse(given: Mapping[str, str]) -> Options:
    """The options as Spark hands them over: names in any case, values as text.

    Raises `ConfigError` for the first that is unknown, missing or out of bounds.
    """
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    levels = _whole_number("levels", _required("levels", options), 1, "the number of level topics of each topic")
    return Options(
        topics=_topics(_required("subscribe", options)),
        levels=levels,
        kafka=_kafka(options),
        max_records=_max_records(options, levels),
        starting_offsets=_starting_offsets(options),
        include_headers=_include_headers(options),
    )


def check_kafka(options: Options) -> None:
    """Raises `ConfigError` for a `kafka.*` option that librdkafka does not know or take."""
    RangeReader(options.kafka).close()


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for name in options:
        if name not in known and not name.startswith(KAFKA_PREFIX):
            near = get_close_matches(name, [*known, SERVERS], n=1)
            hint = f"Did you mean {known.get(near[0], near[0])}?" if near else f"It has {', '.join(NAMES)} and kafka.*."
            raise ConfigError(f"The headway source has no option {name}. {hint}")


def _required(name: str, options: Mapping[str, str]) -> str:
    value = options.get(name, "").strip()
    if not value:
        raise ConfigError(f'The headway source needs the option {name}, as in .option("{name}", …).')
    return value


def _topics(subscribe: str) -> tuple[str, ...]:
    topics = dict.fromkeys(topic for topic in map(str.strip, subscribe.split(",")) if topic)
    if not topics:
        raise ConfigError(f"The option subscribe is {subscribe!r}. Name one topic or more, with commas between them.")
    return tuple(topics)


def _whole_number(name: str, value: str, least: int, meaning: str) -> int:
    if not value.isdecimal() or int(value) < least:
        raise ConfigError(f"The option {name} is {value!r}; it must be a whole number of at least {least}: {meaning}.")
    return int(value)


def _max_records(options: Mapping[str, str], levels: int) -> int | None:
    name = "maxRecordsPerTrigger"
    if name.lower() not in options:
        return None
    least = 2**levels - 1
    return _whole_number(
        name, options[name.lower()], least, f"with less the lowest of {levels} levels would get nothing"
    )


def _starting_offsets(options: Mapping[str, str]) -> StartingOffsets | None:
    value = options.get("startingoffsets")
    if value is not None and value.lower() not in ("earliest", "latest"):
        raise ConfigError(f"The option startingOffsets is {value!r}. Choose earliest or latest.")
    return cast("StartingOffsets | None", value and value.lower())


def _include_headers(options: Mapping[str, str]) -> bool:
    value = options.get("includeheaders", "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"The option includeHeaders is {value!r}. Choose true or false.")
    return value == "true"


def _kafka(options: Mapping[str, str]) -> dict[str, str]:
    _required(SERVERS, options)
    settings = {
        name.removeprefix(KAFKA_PREFIX): value for name, value in options.items() if name.startswith(KAFKA_PREFIX)
    }
    for name in settings.keys() & OURS.keys():
        raise ConfigError(
            f"The option {KAFKA_PREFIX}{name} cannot be set: Spark's checkpoint says what is read next. Remove it, and "
            "use startingOffsets for where a new query starts."
        )
    return settings
