"""The topic in which the results of calls are stored until they expire."""

from headway.kafka.admin import Admin

# Results are spread over few partitions, because each process that makes calls reads one of them completely.
_PARTITIONS = 4
_KEPT_FOR_MS = 24 * 3_600_000
# Each call has one result, so compaction would find nothing to remove.
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": str(_KEPT_FOR_MS)}


def ensure_result_topic(admin: Admin, topic: str) -> int:
    """Create a result topic if it does not exist, and return its number of partitions.

    Raises `KafkaError` if the topic can be neither found nor created.
    """
    return admin.ensure_topic(topic, _PARTITIONS, _SETTINGS)
