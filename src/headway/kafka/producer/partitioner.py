"""Chooses the partition for a key: as Java's producer does (murmur2), unless the setting `partitioner` overrides this.

librdkafka's own functions are called without releasing the GIL, and take half the time of the same code in Python. A
`partitioner` can also be a function of the user.
"""

import ctypes
from collections.abc import Callable
from operator import index

from confluent_kafka import cimpl

from headway.declarations import called, shown
from headway.errors import ConfigError, DeliveryError, SerializationError
from headway.settings.config import Config

_library = ctypes.PyDLL(cimpl.__file__)

PARTITIONER = "partitioner"
DEFAULT = "murmur2_random"
# For each supported partitioner, the function that chooses the partition for a key. Records without a key can go to any
# partition. librdkafka's other partitioners are not supported, because they send all records without a key to one
# partition, or a key to a random partition.
_OF_KEYS = {DEFAULT: "murmur2", "consistent_random": "consistent", "fnv1a_random": "fnv1a"}

PartitionFunction = Callable[[str, bytes, int], int]
"""A function of the user: (Kafka topic, key, number of partitions) -> the partition for the key."""


class KeyPartitioner:
    """Calls the function of librdkafka that the setting `partitioner` names.

    Raises `ConfigError` if the partitioner is not supported.

    >>> partitioner = KeyPartitioner({})
    >>> partitioner.partition_of("21", 1000), partitioner.partition_of(b"foobar", 1000)
    (340, 166)
    """

    def __init__(self, config: Config) -> None:
        name = config.get(PARTITIONER, DEFAULT)
        if name not in _OF_KEYS:
            raise ConfigError(
                f"The partitioner is {name!r}; it must be {DEFAULT!r} (the default, as in Java's producer), "
                "'consistent_random' (librdkafka's default), 'fnv1a_random', or a function (topic, key, partition "
                "count) -> partition. Records with the same key go to the same partition, and records without a key "
                "to any."
            )
        self._function = getattr(_library, f"rd_kafka_msg_partitioner_{_OF_KEYS[name]}")
        self._function.restype = ctypes.c_int32
        self._function.argtypes = (
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_int32,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )

    def partition_of(self, key: str | bytes, partition_count: int) -> int:
        """Return the partition for a key."""
        try:
            raw = key.encode() if isinstance(key, str) else key
            return self._function(None, raw, len(raw), partition_count, None, None)  # type: ignore[no-any-return]
        except (TypeError, ctypes.ArgumentError):
            return 0  # the key has a wrong type; `produce` will raise the error


def partition_by(place: PartitionFunction, topic: str, key: object, partition_count: int) -> int:
    """Return the partition that a user's function chooses for a key.

    Raises `DeliveryError` if the function raises an error, or returns a value that is not a partition of the topic.
    """
    raw = key.encode() if isinstance(key, str) else key
    if not isinstance(raw, bytes):
        raise SerializationError(
            f"A record for {topic} has a key that is {type(key).__name__}, not bytes or a string. Convert it, or set "
            "key.serializer."
        )
    try:
        returned = place(topic, raw, partition_count)
    # Even after a SystemExit, only this record fails, because the thread belongs to the producer.
    except BaseException as error:
        raise DeliveryError(
            f"A record for {topic} was not delivered: its partitioner {called(place)} raised {error!r}."
        ) from error
    try:
        partition = index(returned)
    except TypeError:
        partition = -1
    if not 0 <= partition < partition_count:
        raise DeliveryError(
            f"A record for {topic} was not delivered: its partitioner {called(place)} returned {shown(returned)}; it "
            f"must return a number from 0 to {partition_count - 1}."
        )
    return partition
