"""Serialisers and deserialisers: plain functions, or confluent-kafka's own.

`key.serializer` and `value.serializer` take the object and return bytes; `key.deserializer` and `value.deserializer`
take the bytes and return the object. confluent-kafka's own ones (JSON, Avro, Protobuf with a schema registry) also get
their `SerializationContext`, and work unchanged. Without a serialiser or deserialiser, bytes and strings pass
unchanged.
"""

from collections.abc import Callable
from typing import Any

from confluent_kafka import Message
from confluent_kafka.serialization import Deserializer, MessageField, SerializationContext, Serializer

from headway.errors import DeserializationError, SerializationError
from headway.records.record_types import Header, headers_of

Headers = list[Header]
Serialise = Callable[..., Any]
"""The user's function, or one of confluent-kafka's, which also gets the context."""

Read = Callable[[Any], Any]
"""A function from a message to its key or value; only the user's deserialiser knows the type of the result."""

FieldWriter = Callable[[object, str, Headers], Any]
"""A function (object, Kafka topic, headers) -> bytes; that of a schema registry can append to the headers."""


def key_writer(serializer: Serialise | None) -> FieldWriter | None:
    """Return the function that turns a key into bytes and raises `SerializationError`."""
    return _writer(serializer, MessageField.KEY)


def value_writer(serializer: Serialise | None) -> FieldWriter | None:
    """Return the function that turns a value into bytes and raises `SerializationError`."""
    return _writer(serializer, MessageField.VALUE)


def key_reader(deserializer: Serialise | None, raw: Read = Message.key) -> Read:
    """Return the function that reads a message's key from the bytes of `raw`, and raises `DeserializationError`."""
    return _reader(deserializer, MessageField.KEY, raw)


def value_reader(deserializer: Serialise | None, raw: Read = Message.value) -> Read:
    """Return the function that reads a message's value from the bytes of `raw`, and raises `DeserializationError`."""
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
                f"could not be read: {error!r}. Its bytes are in raw_{field}."
            ) from error

    return read
