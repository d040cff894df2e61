"""librdkafka's own statistics, joined with Headway's metrics.

librdkafka makes them only if the setting `statistics.interval.ms` is above 0, which it reads when a client is created.
For a client with many partitions, they are large and cost CPU time, so Headway leaves this to the user.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from headway.metrics import table
from headway.metrics.samples import Sample, merge
from headway.settings.config import Config

log = logging.getLogger(__name__)

_MICROSECONDS = 1e6
_MILLISECONDS = 1e3


class _AverageOf(msgspec.Struct):
    avg: float = 0


class _BrokerStatistics(msgspec.Struct):
    nodename: str = ""
    nodeid: int = -1
    state: str = ""
    tx: int = 0
    txbytes: int = 0
    txerrs: int = 0
    rxbytes: int = 0
    req_timeouts: int = 0
    rtt: _AverageOf = msgspec.field(default_factory=_AverageOf)
    throttle: _AverageOf = msgspec.field(default_factory=_AverageOf)


class _PartitionStatistics(msgspec.Struct):
    fetchq_cnt: int = 0
    fetchq_size: int = 0


class _TopicStatistics(msgspec.Struct):
    topic: str = ""
    batchcnt: _AverageOf = msgspec.field(default_factory=_AverageOf)
    batchsize: _AverageOf = msgspec.field(default_factory=_AverageOf)
    partitions: dict[str, _PartitionStatistics] = {}


class _GroupStatistics(msgspec.Struct):
    rebalance_cnt: int = 0


class _ClientStatistics(msgspec.Struct):
    msg_cnt: int = 0
    msg_size: int = 0
    brokers: dict[str, _BrokerStatistics] = {}
    topics: dict[str, _TopicStatistics] = {}
    cgrp: _GroupStatistics | None = None


class Statistics:
    """Keeps the last statistics of one client. They are parsed only when samples are made of them."""

    def __init__(self, config: Config) -> None:
        self._on_statistics: Callable[[str], Any] | None = config.get("stats_cb")
        self._is_on = str(config.get("statistics.interval.ms") or "0") != "0"
        self._last: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which the client must be created, besides those of the user."""
        return {"stats_cb": self._take} if self._is_on else {}

    def _take(self, text: str) -> None:
        self._last = text
        if self._on_statistics:
            self._on_statistics(text)

    def samples(self, client: str) -> list[Sample]:
        """Return the samples of the last statistics, or none if there are no statistics. Any thread can call this.

        `client` is the value of the label `client`. It must not be the `client.id` of a consumer, which is different in
        each process and after each restart.
        """
        if self._last is None:
            return []
        try:
            found = msgspec.json.decode(self._last, type=_ClientStatistics)
        except msgspec.DecodeError:
            log.debug("librdkafka's statistics have another form than expected.", exc_info=True)
            return []
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        of_client = {
            table.KAFKA_FETCH_QUEUE: sum(each.fetchq_cnt for each in partitions),
            table.KAFKA_FETCH_QUEUE_BYTES: sum(each.fetchq_size for each in partitions),
            table.KAFKA_QUEUED: found.msg_cnt,
            table.KAFKA_QUEUED_BYTES: found.msg_size,
            table.KAFKA_REBALANCES: found.cgrp.rebalance_cnt if found.cgrp else 0,
        }
        samples = [Sample.of(metric, value, client) for metric, value in of_client.items()]
        for topic in found.topics.values():
            if topic.batchcnt.avg:  # otherwise no batch was sent in the last interval
                samples.append(Sample.of(table.KAFKA_BATCH, topic.batchcnt.avg, client, topic.topic))
                samples.append(Sample.of(table.KAFKA_BATCH_BYTES, topic.batchsize.avg, client, topic.topic))
        # A broker occurs more than once, because the group's coordinator has a connection of its own.
        return samples + merge(_of_broker(client, each) for each in found.brokers.values() if each.nodeid >= 0)


def _of_broker(client: str, broker: _BrokerStatistics) -> list[Sample]:
    of_metrics = {
        table.KAFKA_BROKER_UP: int(broker.state == "UP"),
        table.KAFKA_REQUESTS: broker.tx,
        table.KAFKA_REQUEST_ERRORS: broker.txerrs,
        table.KAFKA_REQUEST_TIMEOUTS: broker.req_timeouts,
        table.KAFKA_SENT_BYTES: broker.txbytes,
        table.KAFKA_RECEIVED_BYTES: broker.rxbytes,
        table.KAFKA_ROUND_TRIP: broker.rtt.avg / _MICROSECONDS,
        table.KAFKA_THROTTLE: broker.throttle.avg / _MILLISECONDS,
    }
    return [Sample.of(metric, value, client, broker.nodename) for metric, value in of_metrics.items()]
