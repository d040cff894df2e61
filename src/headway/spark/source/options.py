"""Parses and checks the options of `format("headway")` for reading. Each error explains how to correct the mistake."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

from headway.core.levels.capacity import Distributor, exponential_shares, linear_shares, weighted_shares
from headway.core.levels.naming import MOST_LEVELS
from headway.core.levels.policies import Policy, PolicyName, make_policy
from headway.errors import ConfigError
from headway.kafka.reading.range_reader import OURS, RangeReader
from headway.kafka.reading.topic_naming import TopicNaming
from headway.spark import option_parsing as values
from headway.spark.option_parsing import KAFKA_PREFIX, refuse_unknown
from headway.spark.source import topic_selection
from headway.spark.source.offset_bounds import Bound, parse_bound
from headway.spark.source.range_packing import TaskOptions
from headway.spark.source.topic_selection import Selection, parse_selection

NAMES = (
    *topic_selection.NAMES,
    *("levels", "startingOffsets", "endingOffsets", "maxRecordsPerTrigger", "targetTriggerTime", "policy"),
    *("distributor", "strictMaxWait", "minRecordsPerTrigger", "maxTriggerDelay", "minPartitions"),
    *("maxRecordsPerPartition", "splitPartitions", "failOnDataLoss", "isolation", "group.id", "includeHeaders"),
    "timestampLateness",
)

_ISOLATIONS = ("read_committed", "read_uncommitted")
_OWN_OPTION = {"group.id": "group.id", "isolation.level": "isolation"}
_DISTRIBUTORS: Mapping[str, Distributor] = {"exponential": exponential_shares, "linear": linear_shares}

# The maximum number of tasks. More tasks in a stage would slow Spark itself down, so a higher number is a mistake.
_MOST_TASKS = 100_000

_OFFSET_RESET = "auto.offset.reset"

_MOST_UNDER_TARGET = 10_000_000  # the highest limit that targetTriggerTime can set if maxRecordsPerTrigger is not set
_LEAST_TARGET_S = 0.25  # in seconds: twice the time that an empty micro-batch takes


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options of a read. `None` means that an option was not given. Durations are in seconds."""

    selection: Selection
    naming: TopicNaming
    kafka: Mapping[str, str] = field(repr=False)  # can contain passwords
    isolation: str
    group: str | None
    start: Bound | None
    end: Bound | None
    max_records: int | None
    policy: PolicyName
    distributor: str | None
    strict_max_wait: float
    min_records: int
    max_trigger_delay: float
    target_trigger_time: float | None
    tasks: TaskOptions
    fail_on_data_loss: bool
    include_headers: bool
    timestamp_lateness: float | None

    @property
    def most_records(self) -> int | None:
        """The maximum number of records in a micro-batch, which targetTriggerTime can lower. `None` means no limit."""
        if self.max_records is None and self.target_trigger_time is not None:
            return _MOST_UNDER_TARGET
        return self.max_records

    def make_policy(self) -> Policy | None:
        """Create the policy that divides the limit among the levels. Returns `None` if there is no limit."""
        if (most := self.most_records) is None:
            return None
        distributor = None if self.distributor is None else _distributor(self.distributor)
        _, policy = make_policy(self.policy, distributor, self.naming.level_count, most, max_wait=self.strict_max_wait)
        return policy


def parse(given: Mapping[str, str], *, in_streams: bool = True) -> Options:
    """Parse the options that Spark passes. Case does not matter in names, and all values are text.

    `in_streams` decides the default of `splitPartitions`: false for a streaming read, true for a batch read.

    Raises `ConfigError` for the first option that is unknown, missing or not valid.
    """
    options = {name.lower(): value for name, value in given.items()}
    refuse_unknown("source", NAMES, options)
    selection = parse_selection(options)
    naming = _naming(selection, options)
    parsed = Options(
        selection=selection,
        naming=naming,
        kafka=_kafka(options),
        isolation=values.choice("isolation", options.get("isolation", _ISOLATIONS[0]), _ISOLATIONS),
        group=options.get("group.id"),
        start=_bound("startingOffsets", options, naming),
        end=_bound("endingOffsets", options, naming),
        max_records=_limit("maxRecordsPerTrigger", options),
        policy=cast("PolicyName", values.choice("policy", options.get("policy", "fair"), get_args(PolicyName))),
        distributor=options.get("distributor"),
        strict_max_wait=values.duration("strictMaxWait", options.get("strictmaxwait", "1m")),
        min_records=_limit("minRecordsPerTrigger", options) or 1,
        max_trigger_delay=values.duration("maxTriggerDelay", options.get("maxtriggerdelay", "15m")),
        target_trigger_time=_target(options),
        tasks=_tasks(options, in_streams=in_streams),
        fail_on_data_loss=values.true_or_false("failOnDataLoss", options.get("failondataloss", "true")),
        include_headers=values.true_or_false("includeHeaders", options.get("includeheaders", "false")),
        timestamp_lateness=(
            values.duration("timestampLateness", options["timestamplateness"])
            if "timestamplateness" in options
            else None
        ),
    )
    _check_sharing(parsed, options)
    return parsed


def check_kafka(options: Options) -> None:
    """Raise `ConfigError` if librdkafka does not have the setting of a `kafka.*` option, or rejects its value."""
    RangeReader(options.kafka).close()


def _naming(selection: Selection, options: Mapping[str, str]) -> TopicNaming:
    given = options.get("levels")
    if given is None:
        return TopicNaming(None, selection.priorities or {})
    if selection.priorities is not None:
        raise ConfigError(
            "The option `levels` is for topics that have level topics, but `priorities` gives existing topics a level "
            "each. Remove one of the two."
        )
    return TopicNaming(
        values.bounded_number("levels", given.strip(), 1, "the number of level topics of each topic", most=MOST_LEVELS)
    )


def _limit(name: str, options: Mapping[str, str]) -> int | None:
    value = options.get(name.lower())
    return None if value is None else values.bounded_number(name, value, 1, "the number of records in one micro-batch")


def _target(options: Mapping[str, str]) -> float | None:
    if (value := options.get("targettriggertime")) is None:
        return None
    seconds = values.duration("targetTriggerTime", value)
    if seconds < _LEAST_TARGET_S:
        raise ConfigError(
            f"The option `targetTriggerTime` is {value!r}; it must be at least {_LEAST_TARGET_S:g} s, because even an "
            "empty micro-batch takes about half of that."
        )
    return seconds


def _tasks(options: Mapping[str, str], *, in_streams: bool) -> TaskOptions:
    least, most = options.get("minpartitions"), options.get("maxrecordsperpartition")
    return TaskOptions(
        None if least is None else values.bounded_number("minPartitions", least, 1, "the fewest tasks", _MOST_TASKS),
        None
        if most is None
        else values.bounded_number("maxRecordsPerPartition", most, 1, "the maximum number of records in one task"),
        values.true_or_false("splitPartitions", options.get("splitpartitions", "false" if in_streams else "true")),
    )


def _bound(name: str, options: Mapping[str, str], naming: TopicNaming) -> Bound | None:
    value = options.get(name.lower())
    return None if value is None else parse_bound(name, value, naming)


def _check_sharing(parsed: Options, options: Mapping[str, str]) -> None:
    """Raise `ConfigError` if options for the limit contradict each other, or would give a level no share of it."""
    if parsed.target_trigger_time is not None and parsed.policy == "capacity_burst":
        raise ConfigError(
            "The option `targetTriggerTime` changes the limit, but the policy 'capacity_burst' divides it into fixed "
            "shares. Choose fair or strict."
        )
    if parsed.most_records is None:
        for name in ("policy", "distributor", "strictMaxWait"):
            if name.lower() in options:
                raise ConfigError(
                    f"The option `{name}` decides how the levels share maxRecordsPerTrigger, which is not given, so "
                    "each micro-batch reads all waiting records. Set maxRecordsPerTrigger or targetTriggerTime, or "
                    f"remove {name}."
                )
    if parsed.policy != "strict" and "strictmaxwait" in options:
        raise ConfigError(
            f"The option `strictMaxWait` is for the policy 'strict', not for {parsed.policy!r}. Remove it."
        )
    if "maxtriggerdelay" in options and "minrecordspertrigger" not in options:
        raise ConfigError(
            "The option `maxTriggerDelay` limits how long to wait for minRecordsPerTrigger, which is not given. Set "
            "minRecordsPerTrigger, or remove maxTriggerDelay."
        )
    if parsed.max_records is not None and parsed.min_records > parsed.max_records:
        raise ConfigError(
            f"The option `minRecordsPerTrigger` is {parsed.min_records}, which is above "
            f"maxRecordsPerTrigger={parsed.max_records}. Lower minRecordsPerTrigger."
        )
    if parsed.target_trigger_time is not None and parsed.min_records > 1:
        raise ConfigError(
            "The option `minRecordsPerTrigger` waits for many records, but targetTriggerTime asks for short "
            "micro-batches. Remove one of the two, or use two queries."
        )
    parsed.make_policy()


def _distributor(text: str) -> Distributor:
    if text in _DISTRIBUTORS:
        return _DISTRIBUTORS[text]
    weights = [weight.strip() for weight in text.split(",")]
    if not all(map(str.isdecimal, weights)):
        raise ConfigError(
            f"The option `distributor` is {text!r}. Choose exponential, linear, or a weight for each level, lowest "
            "first, such as 1,1,8."
        )
    return weighted_shares(*map(int, weights))


def _kafka(options: Mapping[str, str]) -> dict[str, str]:
    settings = values.kafka_settings("source", options)
    for name in settings.keys() & _OWN_OPTION.keys():
        raise ConfigError(f"The option `{KAFKA_PREFIX}{name}` cannot be set. Use the option `{_OWN_OPTION[name]}`.")
    for name in settings.keys() & {*OURS, _OFFSET_RESET}:
        raise ConfigError(
            f"The option `{KAFKA_PREFIX}{name}` cannot be set, because Spark's checkpoint decides what is read next. "
            "Remove it, and use startingOffsets to set where a new query starts."
        )
    return settings
