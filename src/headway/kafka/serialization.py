"""Serialisers and deserialisers: plain functions, or confluent-kafka's own.

`key.serializer` and `value.serializer` take the object and return bytes; `key.deserializer` and `value.deserializer`
take the bytes and return the object. confluent-kafka's (JSON, Avro, Protobuf with a schema registry) get their
`SerializationContext` as well, and work unchanged. Without a serialiser or deserialiser, bytes and strings pass as they
are.
"""

from collections.abc import Callable
from typing import Any

from confluent_kafka import Message
from confluent_kafka.serialization import Deserializer, MessageField, SerializationContext, Serializer

from headway.errors import DeserializationError, SerializationError
from headway.records import headers_of

Headers = list[tuple[str, str | bytes | None]]
Write = Callable[[Any, str, Headers], Any]
"""A function (object, Kafka topic, headers) -> bytes; a schema registry's may append to the headers."""


def key_writer(serializer: Callable[..., Any] | None) -> Write | None:
    """Return the function that turns a key into bytes and raises `SerializationError`."""
    return _writer(serializer, MessageField.KEY)


def value_writer(serializer: Callable[..., Any] | None) -> Write | None:
    """Return the function that turns a value into bytes and raises `SerializationError`."""
    return _writer(serializer, MessageField.VALUE)


def key_reader(
    deserializer: Callable[..., Any] | None, raw: Callable[[Any], Any] = Message.key
) -> Callable[[Any], Any]:
    """Return the function that reads a message's key from the bytes of `raw`, and raises `DeserializationError`."""
    return _reader(deserializer, MessageField.KEY, raw)


def value_reader(
    deserializer: Callable[..., Any] | None, raw: Callable[[Any], Any] = Message.value
) -> Callable[[Any], Any]:
    """Return the function that reads a message's value from the bytes of `raw`, and raises `DeserializationError`."""
    return _reader(deserializer, MessageField.VALUE, raw)


def _writer(serializer: Callable[..., Any] | None, field: MessageField) -> Write | None:
    if serializer is None:
        return None
    with_context = isinstance(serializer, Serializer)

    def write(value: Any, topic: str, headers: Headers) -> Any:
        try:
            return serializer(value, SerializationContext(topic, field, headers)) if with_context else serializer(value)
        except Exception as error:
            raise SerializationError(
                f"The {field} of a record for {topic} could not be serialised: {error!r}"
            ) from error

    return write


def _reader(
    deserializer: Callable[..., Any] | None, field: MessageField, raw: Callable[[Any], Any]
) -> Callable[[Any], Any]:
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
