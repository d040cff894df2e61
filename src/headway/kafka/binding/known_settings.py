"""Lists librdkafka's settings.

The list is used to check a configuration without creating a client, and to suggest similar names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, create_string_buffer
from functools import cache

from headway.errors import ConfigError
from headway.kafka.binding.librdkafka import lib
from headway.settings.config import Config, explain_refused

_MAX_REASON = 512

# librdkafka's own list lacks alternative names, and settings that have no default.
_NOT_LISTED = (
    *("acks", "compression.type", "delivery.timeout.ms", "linger.ms", "max.in.flight", "retries", "sasl.mechanism"),
    *("bootstrap.servers", "metadata.broker.list", "client.rack", "group.id", "group.instance.id", "transactional.id"),
    *("sasl.username", "sasl.password", "sasl.oauthbearer.config", "sasl.oauthbearer.token.endpoint.url"),
    *("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location"),
    *("ssl.key.pem", "ssl.key.password", "ssl.keystore.location", "ssl.keystore.password", "ssl.crl.location"),
)


@cache
def known_settings() -> frozenset[str]:
    """Return the names of all settings for clients and for topics."""
    return frozenset((*_NOT_LISTED, *_with_default("rd_kafka_conf"), *_with_default("rd_kafka_topic_conf")))


def check_taken(config: Config) -> None:
    """Raise `ConfigError` if librdkafka does not know a setting, or does not accept its value."""
    reason = create_string_buffer(_MAX_REASON)
    with _settings("rd_kafka_conf") as conf:
        for key, value in config.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            # The binding itself handles functions and None, and does not pass them on to librdkafka.
            if value is None or callable(value) or not isinstance(value, str | int | float):
                continue
            if lib.rd_kafka_conf_set(conf, key.encode(), text.encode(), reason, _MAX_REASON):
                raise ConfigError(explain_refused(reason.value.decode(), config, known_settings()))


def _with_default(kind: str) -> Iterator[str]:
    count = c_size_t()
    with _settings(kind) as conf:
        pairs = getattr(lib, f"{kind}_dump")(conf, byref(count))
        try:
            # The list alternates between names and values.
            yield from (pairs[index].decode() for index in range(0, count.value, 2))
        finally:
            lib.rd_kafka_conf_dump_free(pairs, count)


@contextmanager
def _settings(kind: str) -> Iterator[int]:
    conf = getattr(lib, f"{kind}_new")()
    try:
        yield conf
    finally:
        getattr(lib, f"{kind}_destroy")(conf)
