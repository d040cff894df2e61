"""Making confluent_kafka's clients."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import confluent_kafka as ck

from headway.config import explain_refused
from headway.errors import ConfigError
from headway.kafka.ctrl_c import ctrl_c_waits

T = TypeVar("T")


def make_client(kind: Callable[[dict[str, Any]], T], config: Mapping[str, Any]) -> T:
    """A client of this kind; raises `ConfigError` for a setting that librdkafka does not know or take."""
    try:
        with ctrl_c_waits():  # it would be lost: the binding takes it for a setting without a name
            return kind(dict(config))
    except ck.KafkaException as error:
        raise ConfigError(explain_refused(error.args[0].str(), config)) from error
