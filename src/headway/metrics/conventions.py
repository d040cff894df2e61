"""The names of attributes in OpenTelemetry's semantic conventions for messaging, in the two versions in use.

All these conventions have the status "Development", and version 1.45 renamed some attributes. So the names stand in one
table, and the user chooses the version with the environment variable that the conventions define for this.
"""

import enum
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"

AttributeValue = str | bool | int | float

_SCHEMAS = "https://opentelemetry.io/schemas/"

# The names of version 1.45 that differ in version 1.44, which has the second name.
_RENAMED: Final = {
    "messaging.system.name": "messaging.system",
    "kafka.message.key": "messaging.kafka.message.key",
    "kafka.message.tombstone": "messaging.kafka.message.tombstone",
    "kafka.offset": "messaging.kafka.offset",
}

ATTRIBUTES_OF_LABELS: Final = MappingProxyType(
    {
        "client": "messaging.client.id",
        "error": "error.type",
        "group": "messaging.consumer.group.name",
        "partition": "messaging.destination.partition.id",
        "topic": "messaging.destination.name",
    }
)
"""The attribute for each label of a metric that the conventions have a name for."""


class Conventions(enum.Enum):
    """The version of the conventions in use. The rest of Headway uses the names of 1.45, and `named` converts them."""

    V1_44 = "1.44.0"
    """The default, because most instrumentations, and the dashboards for them, still use these names."""
    V1_45 = "1.45.0"
    BOTH = "1.44.0 and 1.45.0"
    """Each renamed attribute has both names."""

    @property
    def schema_url(self) -> str:
        """The address of the schema that describes the names. If both names are used, it is that of the later ones."""
        return _SCHEMAS + (self.value if self is not Conventions.BOTH else Conventions.V1_45.value)

    def named(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Convert attributes with the names of 1.45 to this version.

        >>> Conventions.V1_44.named({"messaging.system.name": "kafka", "error.type": "KeyError"})
        {'messaging.system': 'kafka', 'error.type': 'KeyError'}
        """
        if self is Conventions.V1_45:
            return dict(attributes)
        earlier = {_RENAMED.get(name, name): value for name, value in attributes.items()}
        return earlier if self is Conventions.V1_44 else {**attributes, **earlier}


def conventions_in_use() -> Conventions:
    """Return the version that the environment variable `OTEL_SEMCONV_STABILITY_OPT_IN` chooses.

    Its value is a list with commas. `messaging` chooses the new names, and `messaging/dup` both names.
    """
    chosen = {each.strip() for each in os.environ.get(OPT_IN, "").split(",")}
    if "messaging/dup" in chosen:
        return Conventions.BOTH
    return Conventions.V1_45 if "messaging" in chosen else Conventions.V1_44
