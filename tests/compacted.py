"""Reading a compacted topic once."""

from collections.abc import Collection

from headway.kafka.reading.compacted import TopicReader
from headway.settings.config import Config


def read_compacted(
    config: Config, topic: str, partitions: Collection[int], within: float
) -> dict[int, dict[str, bytes]]:
    """Return the latest value of each key of each partition, as `TopicReader.compacted` does."""
    with TopicReader(config) as reader:
        return reader.compacted(topic, partitions, within)
