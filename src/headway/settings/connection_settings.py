"""Selects the settings of one client that other clients also need to connect to the same brokers."""

from typing import Any

from headway.settings.config import OWN_KEYS, Config

_CONSUMERS = """
group.id group.instance.id group.protocol group.protocol.type group.remote.assignor partition.assignment.strategy
session.timeout.ms heartbeat.interval.ms coordinator.query.interval.ms max.poll.interval.ms max.poll.records
share.acknowledgement.mode enable.auto.commit auto.commit.enable auto.commit.interval.ms auto.offset.reset
enable.auto.offset.store offset.store.method offset.store.path offset.store.sync.interval.ms
queued.min.messages queued.max.messages.kbytes consume.callback.max.messages
fetch.wait.max.ms fetch.queue.backoff.ms fetch.message.max.bytes max.partition.fetch.bytes fetch.max.bytes
fetch.min.bytes fetch.error.backoff.ms isolation.level enable.partition.eof check.crcs
consume_cb rebalance_cb offset_commit_cb on_commit
"""
CONSUMERS_OWN = frozenset(_CONSUMERS.split())
"""librdkafka's settings that are only for consumers, and confluent-kafka's setting `on_commit`."""

_PRODUCERS = """
transactional.id transaction.timeout.ms enable.idempotence enable.gapless.guarantee acks request.required.acks
request.timeout.ms message.timeout.ms delivery.timeout.ms message.send.max.retries retries queuing.strategy
queue.buffering.max.messages queue.buffering.max.kbytes queue.buffering.max.ms linger.ms
queue.buffering.backpressure.threshold batch.num.messages batch.size sticky.partitioning.linger.ms
compression.codec compression.type compression.level partitioner partitioner_cb msg_order_cmp
delivery.report.only.error produce.offset.report dr_cb dr_msg_cb on_delivery
"""
PRODUCERS_OWN = frozenset(_PRODUCERS.split())
"""librdkafka's settings that are only for producers, and confluent-kafka's setting `on_delivery`."""

# librdkafka accepts these settings for every client, but they affect only sending. Another client must not inherit
# these settings, because Headway's producers rely on their own values.
_OF_SENDING = ("message.max.bytes", "message.copy.max.bytes", "max.in.flight", "max.in.flight.requests.per.connection")
# These settings are for one client only, because their callbacks run on the thread that polls that client.
_OF_ONE_CLIENT = ("error_cb", "throttle_cb", "stats_cb", "statistics.interval.ms", "default.topic.config")

_OF_ONE_KIND = CONSUMERS_OWN | PRODUCERS_OWN | {*_OF_SENDING, *_OF_ONE_CLIENT, *OWN_KEYS}


def connection_of(config: Config) -> dict[str, Any]:
    """Return the settings that any client needs to connect to the same brokers.

    The result has all settings except those that are known to be for one kind of client. So settings that a newer
    librdkafka adds are included.
    """
    return {key: value for key, value in config.items() if key not in _OF_ONE_KIND}
