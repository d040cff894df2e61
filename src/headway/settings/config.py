"""Settings: the keys that Headway adds to Kafka's, their defaults, and the checks of their values.

A configuration is a mapping with dotted keys, as for Kafka's own clients. This module checks Headway's own keys and
removes them. All other keys are passed to librdkafka unchanged.

| key | client | default | meaning |
|---|---|---|---|
| `levels` | both | required | the number of levels, N ≥ 1; a record's level is from 0, the lowest, to N - 1 |
| `group.id` | consumer | required | the members for level i join the group `<group.id>-i` |
| `group.per.level` | consumer, parallel | true | false: one member of the group `<group.id>` itself reads all levels |
| `max.poll.records` | consumer | 500 | the capacity: the maximum number of records that one poll returns |
| `max.poll.history.window.size` | consumer | 6 | the number of recent polls that the policy capacity_burst considers |
| `min.poll.window.maxout.threshold` | consumer | 4 | in how many of these polls a level must have reached its share
before capacity_burst gives it more |
| `strict.max.wait.ms` | all | 5000 | with the policy strict, a record that has waited longer goes before records of
higher levels; in a parallel consumer, such records get one slot of four |
| `enable.auto.commit` | consumer | true | commit the records that earlier polls returned, during poll and on close |
| `auto.commit.interval.ms` | consumer | 5000 | the time between two automatic commits |
| `queued.max.messages.kbytes` | consumer, parallel | 16384 | the maximum kilobytes of a level's records that are
buffered until the level's turn; see below |
| `receive.message.max.bytes` | consumer, parallel | 536870912 | the largest size of a compressed batch once it is
decompressed |
| `fetch.wait.max.ms` | consumer, parallel | 50 | how long a broker holds a fetch request while it has no records |
| `key.deserializer`, `value.deserializer` | consumer | none | see `headway.kafka.serialization` |
| `key.serializer`, `value.serializer` | producer | none | see `headway.kafka.serialization` |
| `partitioner` | producer | murmur2_random | a librdkafka partitioner, or a function (Kafka topic, key's bytes,
partition count) -> partition |
| `max.block.ms` | producer | 60000 | how long `send` waits for buffer space |
| `buffer.memory` | producer | 67108864 | the maximum bytes of records that wait or are in flight; each level has an
equal share |
| `buffer.reserve.percent` | producer | 20 | the percentage of the free space that a topic, or a partition, leaves to
others |
| `queue.buffering.max.messages` | producer | none | the maximum number of records that wait or are in flight;
divided among the levels as `buffer.memory` is |
| `partition.window.bytes` | producer | 4194304 | the maximum bytes of a partition that are handed to librdkafka
and have no delivery report yet |
| `delivery.timeout.ms` | producer | 300000, awaited 60000 | how long a record can wait, and then how long it can be in
flight; `AsyncProducer` uses the second default |
| `enable.idempotence` | producer | true | no duplicates, and no reordering within a partition; see below |
| `scheduler.name` | producer, parallel | headway-delay | the scheduler of records that are sent with `due` or retried
with `RetryLater` |

`enable.idempotence` is on unless another setting makes it impossible, as in Java's producer (KIP-679): `acks` other
than all, `max.in.flight.requests.per.connection` above 5, no `retries`, or `queuing.strategy=lifo`. Without
idempotence, a batch that is sent again can arrive after later batches. With idempotence, brokers before Kafka 2.8
require the ACL `IdempotentWrite` on the cluster.

While higher levels are flooded, a level's records wait in a buffer. This buffer holds as many records as are returned
in four times `fetch.wait.max.ms`, but at most `queued.max.messages.kbytes`, or half as much again if more than 16
partitions are flooded. In addition, librdkafka has two queues of 4
MB. For each of these queues, one fetch can be in flight, with up to `max.partition.fetch.bytes` for each partition and
`fetch.max.bytes` in total. These limits count bytes as they are stored on disk, so compressed records take more memory
after they have arrived.

A `ParallelConsumer` accepts `group.id`, `auto.commit.interval.ms`, `strict.max.wait.ms` and the deserialisers. Without
`levels`, the consumer uses the names of topics and the group unchanged. With transactions, the default commit interval
is 100 ms. The argument `producer_config` accepts the serialisers.
"""

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from headway.declarations import called, check_reader, runs_nothing_when_called, shown, takes, unusable_character
from headway.errors import ConfigError

OWN_KEYS = (
    "levels",
    "group.per.level",
    "max.poll.records",
    "max.poll.history.window.size",
    "min.poll.window.maxout.threshold",
    "strict.max.wait.ms",
    "max.block.ms",
    "buffer.memory",
    "buffer.reserve.percent",
    "partition.window.bytes",
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
    "scheduler.name",
)

DEFAULT_SCHEDULER = "headway-delay"

Config = Mapping[str, Any]

_SERVERS = ("bootstrap.servers", "metadata.broker.list")
_HIGHEST_PORT = 65_535
# librdkafka accepts these schemes before a broker's address
_SCHEMES = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")

# For each name of a setting, a function that checks whether the setting's value allows idempotence.
_IDEMPOTENT: dict[str, Callable[[str, Any], bool]] = {
    "acks": lambda _, value: str(value) in ("all", "-1"),
    "max.in.flight": lambda key, value: whole_number(key, value) <= 5,
    "retries": lambda key, value: whole_number(key, value) > 0,
    "queuing.strategy": lambda _, value: str(value).lower() == "fifo",
}
_IDEMPOTENT["request.required.acks"] = _IDEMPOTENT["acks"]
_IDEMPOTENT["max.in.flight.requests.per.connection"] = _IDEMPOTENT["max.in.flight"]
_IDEMPOTENT["message.send.max.retries"] = _IDEMPOTENT["retries"]


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The checked settings of a priority consumer. `kafka` is passed to librdkafka and can hold secrets."""

    levels: int
    group: str
    group_per_level: bool
    capacity: int
    window_size: int
    threshold: int
    max_wait: float
    auto_commit_interval: float | None
    key_deserializer: Callable[..., Any] | None
    value_deserializer: Callable[..., Any] | None
    kafka: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, config: Config) -> Self:
        """Parse a configuration. Raises `ConfigError` if a setting is missing or not valid."""
        reader = _Reader(config)
        window_size = reader.integer("max.poll.history.window.size", default=6)
        settings = cls(
            levels=reader.integer("levels"),
            group=reader.text("group.id"),
            group_per_level=reader.boolean("group.per.level", default=True),
            capacity=reader.integer("max.poll.records", default=500),
            window_size=window_size,
            threshold=reader.integer(
                "min.poll.window.maxout.threshold",
                default=min(4, window_size),
                at_most=window_size,
                bound=", the value of max.poll.history.window.size",
            ),
            max_wait=reader.integer("strict.max.wait.ms", default=5000) / 1000,
            auto_commit_interval=reader.auto_commit_interval(),
            key_deserializer=reader.function("key.deserializer"),
            value_deserializer=reader.function("value.deserializer"),
            kafka=reader.rest,
        )
        reader.refuse(
            "enable.auto.offset.store",
            "Headway itself tracks which records were returned. Remove it, and turn automatic commits on or "
            "off with enable.auto.commit",
        )
        reader.refuse("on_commit", "Pass it to commit(asynchronous=True, on_commit=...)")
        return settings


@dataclass(frozen=True, slots=True)
class ParallelSettings:
    """The checked settings of a parallel consumer. `kafka` is passed to librdkafka and can hold secrets."""

    levels: int | None
    group: str
    group_per_level: bool
    scheduler: str
    commit_interval: float | None
    max_wait: float
    key_deserializer: Callable[..., Any] | None
    value_deserializer: Callable[..., Any] | None
    kafka: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, config: Config) -> Self:
        """Parse a configuration. Raises `ConfigError` if a setting is missing or not valid."""
        reader = _Reader(config)
        settings = cls(
            levels=reader.integer("levels") if "levels" in config else None,
            group=reader.text("group.id"),
            group_per_level=reader.boolean("group.per.level", default="levels" in config),
            scheduler=reader.text("scheduler.name", default=DEFAULT_SCHEDULER),
            commit_interval=(
                reader.integer("auto.commit.interval.ms") / 1000 if "auto.commit.interval.ms" in config else None
            ),
            max_wait=reader.integer("strict.max.wait.ms", default=5000) / 1000,
            key_deserializer=reader.function("key.deserializer"),
            value_deserializer=reader.function("value.deserializer"),
            kafka=reader.rest,
        )
        if settings.group_per_level and settings.levels is None:
            raise ConfigError(
                f"The setting group.per.level is true, but the setting levels is missing. Set levels, or remove "
                f"group.per.level. Without levels there is one group, {settings.group}."
            )
        reader.refuse(
            "max.poll.records",
            "A ParallelConsumer is not polled. Remove it, and use max_concurrency to limit the records that are "
            "handled at the same time",
        )
        for key in ("enable.auto.commit", "enable.auto.offset.store", "on_commit"):
            reader.refuse(key, "Records that are done are committed every auto.commit.interval.ms. Remove it")
        return settings


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """The checked settings of the producer that sends handlers' outputs.

    `kafka` is passed to librdkafka and can hold secrets.
    """

    key_serializer: Callable[..., Any] | None
    value_serializer: Callable[..., Any] | None
    kafka: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, config: Config) -> Self:
        """Parse a configuration. Raises `ConfigError` if a setting is not valid."""
        reader = _Reader(config)
        if reader.partitioner() is not None:
            raise ConfigError(
                "The setting partitioner is a function, which only Producer and AsyncProducer accept. Give each output "
                "record its partition, or set partitioner to the name of a partitioner."
            )
        return cls(
            key_serializer=reader.function("key.serializer"),
            value_serializer=reader.function("value.serializer"),
            kafka=reader.rest,
        )


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The checked settings of a producer. `kafka` is passed to librdkafka and can hold secrets."""

    levels: int | None  # None if the names of topics are used unchanged
    max_block: float
    memory: int
    reserve: float
    # each record counts as at least this many bytes, so that `memory` also limits the number of records
    least_size: int
    window: int
    delivery_timeout: float
    max_wait: float
    scheduler: str
    # None if the setting is the name of a partitioner, which stays in `kafka`
    partitioner: Callable[[str, bytes, int], int] | None
    key_serializer: Callable[..., Any] | None
    value_serializer: Callable[..., Any] | None
    kafka: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, config: Config) -> Self:
        """Parse a configuration. Raises `ConfigError` if a setting is missing or not valid."""
        reader = _Reader(config)
        for key in ("delivery.report.only.error", "on_delivery", "dr_cb", "dr_msg_cb"):
            reader.refuse(
                key, "Futures need every delivery report. Remove it, and use the argument on_delivery of send"
            )
        # `queue.buffering.max.kbytes` is librdkafka's setting for the limit that Java's producer calls `buffer.memory`.
        kilobytes = reader.integer("queue.buffering.max.kbytes", default=64 * 1024)
        memory = reader.integer("buffer.memory", default=kilobytes * 1024, at_least=1024)
        return cls(
            levels=reader.integer("levels") if "levels" in config else None,
            max_block=reader.integer("max.block.ms", default=60_000, at_least=0) / 1000,
            memory=memory,
            reserve=reader.integer("buffer.reserve.percent", default=20, at_most=90) / 100,
            least_size=max(1, memory // reader.integer("queue.buffering.max.messages", default=memory)),
            window=reader.integer("partition.window.bytes", default=4 * 1024 * 1024),
            delivery_timeout=reader.delivery_timeout(),
            max_wait=reader.integer("strict.max.wait.ms", default=5000) / 1000,
            scheduler=reader.text("scheduler.name", default=DEFAULT_SCHEDULER),
            partitioner=reader.partitioner(),
            key_serializer=reader.function("key.serializer"),
            value_serializer=reader.function("value.serializer"),
            kafka=idempotent_by_default(reader.rest),
        )


def settings_beside(config: Config) -> dict[str, Any]:
    """Return librdkafka's settings for an additional client of the same owner, without the user's logger."""
    return {key: value for key, value in config.items() if key not in (*OWN_KEYS, "logger")}


def idempotent_by_default(kafka: Config) -> dict[str, Any]:
    """Add `enable.idempotence` to a producer's settings, unless the settings already have this key.

    The value is True if the other settings allow idempotence.
    """
    possible = all(fits(key, kafka[key]) for key, fits in _IDEMPOTENT.items() if key in kafka)
    # A transactional producer needs idempotence. If another setting rules out idempotence, librdkafka raises an error
    # that names that setting.
    return {"enable.idempotence": possible or "transactional.id" in kafka, **kafka}


def check_settings(config: object) -> None:
    """Raise `ConfigError` unless a configuration is a mapping whose keys and values confluent-kafka can handle.

    The error does not show the configuration, because it can hold secrets.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"The configuration is of the type {type(config).__qualname__}; it must be a mapping of settings, such as "
            '{"bootstrap.servers": "localhost:9092"}.'
        )
    for key in config:
        if not isinstance(key, str):
            raise ConfigError(f"The configuration has the key {shown(key)}; the name of a setting must be a string.")
        _check_text(f"The name {shown(key)} of a setting", key)
        if isinstance(value := config[key], str):
            _check_text(f"The setting {key}", value)


def _check_text(what: str, text: str) -> None:
    """Raise `ConfigError` for text that confluent-kafka cannot handle.

    confluent-kafka would cut such text off, end the process, or raise `SystemError`. The error does not show the text,
    because it may be a password.
    """
    if found := unusable_character(text):
        why = "ignores the text after it" if found[0] == "\0" else "needs UTF-8, which cannot encode it"
        raise ConfigError(
            f"{what} has the character U+{ord(found[0]):04X} at position {found.start()}. Kafka's client {why}. Remove "
            "the character."
        )


def check_servers(config: Config) -> None:
    """Raise `ConfigError` if a broker's address is a web address or has a port that is too high.

    This check is needed because librdkafka does not even log an error about a web address. The error does not show the
    address, because a web address can contain a password.
    """
    for key in _SERVERS:
        for address in str(config.get(key) or "").split(","):
            scheme, is_page, _ = address.strip().partition("://")
            _, colon, port = address.strip().rpartition(":")
            # librdkafka would use only the lower 16 bits of a higher number, and connect to a wrong port.
            if colon and port.isdecimal() and int(port) > _HIGHEST_PORT:
                raise ConfigError(
                    f"The setting {key} has the port {shown(int(port))}; a port must be from 1 to {_HIGHEST_PORT}."
                )
            if is_page and scheme.lower() not in _SCHEMES:
                raise ConfigError(
                    f"The setting {key} has an address that begins with {shown(f'{scheme}://')}. Write the addresses "
                    "of Kafka's brokers as host:port, such as localhost:9092."
                )


def no_such_level(level: int, levels: int) -> ConfigError:
    """Return the error for a level that a producer does not have."""
    return ConfigError(
        f"The level {shown(level)} does not exist: with levels={levels} it must be from 0 to {levels - 1}. Nothing was "
        "sent."
    )


def explain_refused(reason: str, config: Config, known: Collection[str]) -> str:
    """Return a sentence that explains why librdkafka refused a configuration.

    For a misspelt setting, the sentence suggests the most similar name among the `known` settings and Headway's own.
    """
    for key in config:
        if f'"{key}"' not in reason:
            continue
        if key in OWN_KEYS:
            return f"The setting {key} is for another kind of client, and this client cannot use it. Remove it."
        if "no such" not in reason.lower():
            continue
        if near := difflib.get_close_matches(key, {*OWN_KEYS, *known}, n=1, cutoff=0.8):
            return f"The setting {key!r} is not known. Did you mean {near[0]!r}?"
        if key.isidentifier():
            return f"{key!r} is not a setting. Pass arguments of the class as keyword arguments, outside the settings."
    return f"Kafka's client refuses the configuration: {reason.rstrip('.')}."


class _Reader:
    """Reads Headway's own keys from a configuration and removes them; the other keys are left in `rest`."""

    def __init__(self, config: Config) -> None:
        check_settings(config)
        self.rest = dict(config)
        self.refuse(
            "max.priority", "It is the Java priority client's name for the number of levels. Set levels instead"
        )

    def text(self, key: str, default: str | None = None) -> str:
        value = self.rest.pop(key, default)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"The setting {key} is {value!r}; it must be a non-empty string.")
        return value

    def integer(
        self,
        key: str,
        default: int | None = None,
        at_least: int = 1,
        at_most: int | None = None,
        bound: str = "",
    ) -> int:
        value = self.rest.pop(key, default)
        if value is None:
            near = difflib.get_close_matches(key, self.rest, n=1, cutoff=0.8)
            hint = f"; {near[0]!r} may be a misspelling of it" if near else ""
            raise ConfigError(f"The setting {key} is missing{hint}. Set {key} to a whole number, at least {at_least}.")
        number = whole_number(key, value)
        if number < at_least:
            raise ConfigError(f"The setting {key} is {number}; it must be at least {at_least}.")
        if at_most is not None and number > at_most:
            raise ConfigError(f"The setting {key} is {number}; it must be at most {at_most}{bound}.")
        return number

    def boolean(self, key: str, default: bool) -> bool:
        value = str(self.rest.pop(key, default)).lower()
        if value not in ("true", "false"):
            raise ConfigError(f"The setting {key} is {value!r}; it must be true or false.")
        return value == "true"

    def function(self, key: str) -> Callable[..., Any] | None:
        value: Any = self.rest.pop(key, None)
        if value is not None and not callable(value):
            raise ConfigError(f"The setting {key} is {value!r}; it must be a function.")
        if value is None or any(base.__module__.startswith("confluent_kafka.") for base in type(value).__mro__):
            # confluent-kafka's serialisers and deserialisers are not checked, because they also take a context.
            return value  # type: ignore[no-any-return]
        if key.endswith(".deserializer"):
            check_reader(key, value, "Give a function that takes the bytes, such as json.loads.")
        elif runs_nothing_when_called(value) or not takes(value, 1):
            raise ConfigError(
                f"{key}={called(value)} is not a plain function of one argument. Give a function that takes an object "
                "and returns its bytes, such as str.encode."
            )
        return value  # type: ignore[no-any-return]

    def partitioner(self) -> Callable[[str, bytes, int], int] | None:
        """Return the partitioner if it is a function, and remove it from `rest`.

        The name of a partitioner stays in `rest`.
        """
        value: Any = self.rest.get("partitioner")
        if not callable(value):
            return None
        if runs_nothing_when_called(value) or not takes(value, 3):
            raise ConfigError(
                f"partitioner={called(value)} is not a plain function of three arguments. Give a function that takes "
                "the topic, the key's bytes and the number of partitions, and returns the partition."
            )
        del self.rest["partitioner"]
        return value  # type: ignore[no-any-return]

    def auto_commit_interval(self) -> float | None:
        interval = self.integer("auto.commit.interval.ms", default=5000) / 1000
        return interval if self.boolean("enable.auto.commit", default=True) else None

    def delivery_timeout(self) -> float:
        """Return the delivery timeout in seconds. As in librdkafka, a setting of 0 means no limit.

        The setting stays in `rest`, because librdkafka also needs it.
        """
        for key in ("delivery.timeout.ms", "message.timeout.ms"):
            if key in self.rest:
                return whole_number(key, self.rest[key]) / 1000 or math.inf
        return 300.0

    def refuse(self, key: str, why: str) -> None:
        if key in self.rest:
            raise ConfigError(f"The setting {key} cannot be used here. {why}.")


def whole_number(key: str, value: Any) -> int:
    """Return a setting's value as a whole number. Raises `ConfigError` if the value is not a whole number."""
    try:
        if isinstance(value, (bool, float)):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f"The setting {key} is {value!r}; it must be a whole number.") from None
