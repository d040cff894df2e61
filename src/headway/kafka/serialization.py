"""Calls the user's serialisers and deserialisers, which are plain functions or confluent-kafka's serialiser classes.

`key.serializer` and `value.serializer` get an object and return bytes; `key.deserializer` and `value.deserializer` get
bytes and return an object. The serialisers of confluent-kafka (JSON, Avro and Protobuf with a schema registry) also get
the `SerializationContext` that they expect. Without a serialiser or deserialiser, bytes and strings are passed on
unchanged.
"""

from collections.abc import Callable
from typing import Any

from confluent_kafka import Message
from confluent_kafka.serialization import Deserializer, MessageField, SerializationContext, Serializer

from headway.errors import DeserializationError, SerializationError
from headway.kafka.binding.messages import FetchedMessage
from headway.records.record_types import Header, headers_of

Headers = list[Header]
Serialise = Callable[..., Any]
"""The user's function, or a serialiser or deserialiser of confluent-kafka, which also gets a `SerializationContext`."""

Read = Callable[[Any], Any]
"""A function from a message to its key or value. Only the user's deserialiser determines the type of the result."""

FieldWriter = Callable[[object, str, Headers], Any]
"""A function (object, Kafka topic, headers) -> bytes. Serialisers for a schema registry can append to the headers."""


def key_writer(serializer: Serialise | None) -> FieldWriter | None:
    """Return a function that turns a key into bytes and raises `SerializationError` if the serialiser fails.

    Without a serialiser, this returns None.
    """
    return _writer(serializer, MessageField.KEY)


def value_writer(serializer: Serialise | None) -> FieldWriter | None:
    """Return a function that turns a value into bytes and raises `SerializationError` if the serialiser fails.

    Without a serialiser, this returns None.
    """
    return _writer(serializer, MessageField.VALUE)


def key_reader(deserializer: Serialise | None, raw: Read = FetchedMessage.key) -> Read:
    """Return a function that deserialises a message's key, and raises `DeserializationError` if that fails.

    `raw` returns the bytes of the key.
    """
    return _reader(deserializer, MessageField.KEY, raw)


def value_reader(deserializer: Serialise | None, raw: Read = FetchedMessage.value) -> Read:
    """Return a function that deserialises a message's value, and raises `DeserializationError` if that fails.

    `raw` returns the bytes of the value.
    """
    return _reader(deserializer, MessageField.VALUE, raw)


def _writer(serializer: Serialise | None, field: MessageField) -> FieldWriter | None:
    if serializer is None:
        return None
    with_context = isinstance(serializer, Serializer)

    def write(value: object, topic: str, headers: Headers) -> Any:
        try:
            return serializer(value, SerializationContext(topic, field, headers)) if with_context else serializer(value)
        except Exception as error:
            raise SerializationError(
                f"The {field} of a record for {topic} could not be serialised: {error!r}"
            ) from error

    return write


def _reader(deserializer: Serialise | None, field: MessageField, raw: Read) -> Read:
    if deserializer is None:
        return raw
    with_context = isinstance(deserializer, Deserializer)

    def read(message: Message) -> Any:
        try:
            if with_context:
                context = SerializationContext(message.topic() or "", field, list(headers_of(message)) or None)
                return deserializer(raw(message), context)
            return deserializer(raw(message))
        except Exception as error:
            raise DeserializationError(
                f"The {field} at offset {message.offset()} of {message.topic()}, partition {message.partition()}, "
                f"could not be deserialised: {error!r}. Its bytes are in raw_{field}."
            ) from error

    return read
