"""The table of all metrics. The exporters, the documentation, the Grafana dashboard and tests are made from it.

Rules: names begin with `headway_`, units are base units (seconds, bytes, records), and the names of counters end with
`_total`. The names of other metrics end with their unit, unless they count records or objects.
"""

import enum
from dataclasses import dataclass


class MetricKind(enum.StrEnum):
    """What can happen to the values of a metric."""

    COUNTER = "counter"
    """A total that only grows, until its process restarts."""
    GAUGE = "gauge"
    """A current number, which can rise and fall."""
    HISTOGRAM = "histogram"
    """The distribution of all values since the start, in buckets."""


class Combine(enum.StrEnum):
    """How the values of several processes become one value."""

    SUM = "sum"
    MAX = "max"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, with its names, its unit, its labels, and its meaning.

    Attributes:
        name: The name for Prometheus.
        kind: Counter, gauge or histogram.
        unit: `s`, `By`, `1` for a ratio or a flag, or the counted objects in braces, such as `{record}`, as UCUM writes
            units.
        labels: The names of the labels.
        help: What the metric means, in a sentence or two.
        combine: How the values of several processes become one.
        otel: The name for OpenTelemetry: that of the semantic conventions if they have one, and otherwise our own.
            Histograms always have our own, because the conventions' names are for instruments that record each value.
        bounds: The upper bounds of a histogram's buckets, without the last bucket, which has no bound.
    """

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    help: str
    combine: Combine = Combine.SUM
    otel: str = ""
    bounds: tuple[float, ...] = ()


METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order in which the documentation lists them."""

_HANDLER = ("group", "handler")
_TOPIC = ("group", "topic", "level")
_LEVEL = ("group", "level")
_PARTITION = ("group", "topic", "level", "partition")
_LINE = ("group", "delay_topic")
_CLIENT = ("client",)
_QUERY = ("query",)
_BROKER = ("client", "broker")

# From one millisecond to five minutes: handlers, commits and requests.
_DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# From five milliseconds to a week: records can wait as long as Kafka keeps them.
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 86400, 7 * 86400)


def _add(
    name: str,
    kind: MetricKind,
    unit: str,
    labels: tuple[str, ...],
    help: str,
    combine: Combine = Combine.SUM,
    otel: str = "",
    bounds: tuple[float, ...] = (),
) -> Metric:
    otel = otel or name.removesuffix("_total").removesuffix("_seconds").replace("_", ".", 2)
    metric = METRICS[name] = Metric(name, kind, unit, labels, help, combine, otel, bounds)
    return metric


def _counter(name: str, unit: str, labels: tuple[str, ...], help: str, otel: str = "") -> Metric:
    return _add(name, MetricKind.COUNTER, unit, labels, help, otel=otel)


def _gauge(name: str, unit: str, labels: tuple[str, ...], help: str, combine: Combine = Combine.SUM) -> Metric:
    return _add(name, MetricKind.GAUGE, unit, labels, help, combine)


def _histogram(name: str, unit: str, labels: tuple[str, ...], bounds: tuple[float, ...], help: str) -> Metric:
    return _add(name, MetricKind.HISTOGRAM, unit, labels, help, bounds=bounds)


# Handlers of a parallel consumer

HANDLER_RUNNING = _gauge(
    "headway_handler_running", "{record}", _HANDLER, "Records whose handlers are running, or which hold a slot."
)
HANDLER_READY = _gauge(
    "headway_handler_ready", "{record}", _HANDLER, "Records in memory that could start if a slot were free."
)
HANDLER_WAITING = _gauge(
    "headway_handler_waiting",
    "{record}",
    _HANDLER,
    "Records in memory that are neither done nor running: ready, behind an earlier record, or waiting for a retry.",
)
HANDLER_LANES = _gauge(
    "headway_handler_lanes", "{lane}", _HANDLER, "Keys, or partitions, that have records in memory which are not done."
)
HANDLER_SLOTS = _gauge(
    "headway_handler_slots",
    "{slot}",
    _HANDLER,
    "Slots that can be used now: max_concurrency, or fewer while the adaptive limit or an open circuit lowers it.",
)
HANDLER_DONE = _counter(
    "headway_handler_done_total",
    "{record}",
    _HANDLER,
    "Records that are done, including dead letters, and records that expired or were skipped or dropped.",
    otel="messaging.client.consumed.messages",
)
HANDLER_FAILED = _counter(
    "headway_handler_failed_total",
    "{attempt}",
    (*_HANDLER, "error"),
    "Attempts that failed, by the class of the error. After 20 classes, others are counted as `other`.",
)
HANDLER_RETRIED = _counter(
    "headway_handler_retried_total", "{attempt}", _HANDLER, "Failed attempts whose records are tried again."
)
HANDLER_DEAD = _counter(
    "headway_handler_dead_letters_total",
    "{record}",
    _HANDLER,
    "Dead letters that were stored and, with transactions, committed.",
)
HANDLER_EXPIRED = _counter(
    "headway_handler_expired_total", "{record}", _HANDLER, "Records that expired before they could be started."
)
HANDLER_SKIPPED = _counter(
    "headway_handler_skipped_total",
    "{record}",
    _HANDLER,
    "Records that were skipped for a newer record of their key, because of `latest_only`.",
)
HANDLER_TIMED_OUT = _counter(
    "headway_handler_timed_out_total", "{attempt}", _HANDLER, "Attempts that failed because of the time_limit."
)
HANDLER_ABANDONED = _counter(
    "headway_handler_abandoned_total",
    "{record}",
    _HANDLER,
    "Records that were still running when the run ended. The next run handles them again.",
)
HANDLER_LATE = _counter(
    "headway_handler_late_total",
    "{record}",
    _HANDLER,
    "Records that waited longer than the queue_time_warning before they started.",
)
HANDLER_HELD = _gauge(
    "headway_handler_held", "{record}", _HANDLER, "Records in memory that an operator's rules keep from starting now."
)
HANDLER_HELD_FAILURES = _gauge(
    "headway_handler_held_failures",
    "{record}",
    _HANDLER,
    "Records that failed for good and are held in their place, because of `Retries(then='hold')`.",
)
HANDLER_DROPPED = _counter(
    "headway_handler_dropped_total",
    "{record}",
    _HANDLER,
    "Records that a rule dropped. They are done, and the handler was not called for them.",
)
HANDLER_MOVED = _counter(
    "headway_handler_moved_total",
    "{record}",
    _HANDLER,
    "Records that were moved to other topics. They are done, and the handler was not called for them.",
)
HANDLER_DURATION = _histogram(
    "headway_handler_duration_seconds",
    "s",
    _HANDLER,
    _DURATIONS,
    "How long an attempt held its slot: the handler's time. A batch counts once.",
)
CIRCUIT_OPEN = _gauge(
    "headway_circuit_open",
    "1",
    _HANDLER,
    "1 while the circuit breaker lets only one attempt run at a time, otherwise 0.",
    Combine.MAX,
)

# Rules

RULE_HELD = _gauge(
    "headway_rule_held",
    "{record}",
    ("group", "rule"),
    "Records in memory that this rule keeps from starting now. Each rule in force has a value, which can be 0.",
)

# Tenants

TENANT_TIME = _counter(
    "headway_tenant_handler_seconds_total",
    "s",
    ("group", "tenant"),
    "Handler time that a tenant has used. Only the 20 tenants that used the most are listed.",
)
TENANT_WAITING = _gauge(
    "headway_tenant_waiting", "{record}", ("group", "tenant"), "Records of a listed tenant that are ready to run."
)

# Levels of a consumer

LEVEL_NOT_DONE = _gauge(
    "headway_level_not_done",
    "{record}",
    _TOPIC,
    "Records that are not done, in memory and in Kafka, by the offset maps and not by the commit. Kafka's part is "
    "counted in offsets, as of the last fetch.",
)
LEVEL_OLDEST = _gauge(
    "headway_level_oldest_seconds",
    "s",
    _TOPIC,
    "Age of the oldest record in memory that is not done; 0 if there is none. Only every 64th timestamp is read, so it "
    "can be the age of a record up to 63 offsets earlier.",
    Combine.MAX,
)
LEVEL_WORK = _gauge(
    "headway_level_work_seconds",
    "s",
    _TOPIC,
    "Seconds of work that wait: records not done, times the mean handler time, divided by the slots of this process. "
    "The sum over processes, divided by a number of processes, is the time in which these would be done.",
    Combine.MEAN,
)
LEVEL_QUEUE_TIME = _histogram(
    "headway_level_queue_seconds",
    "s",
    _LEVEL,
    _WAITS,
    "How long records waited in the queue: from a record's timestamp to the start of its first attempt.",
)
LEVEL_DONE = _counter("headway_level_done_total", "{record}", _LEVEL, "Records of the level that are done.")
LEVEL_READY = _gauge(
    "headway_level_ready", "{record}", _LEVEL, "Records of the level that are in memory and could start or be returned."
)
LEVEL_RUNNING = _gauge("headway_level_running", "{slot}", _LEVEL, "Slots that records of the level hold.")
LEVEL_SHARE = _gauge(
    "headway_level_share_ratio",
    "1",
    _LEVEL,
    "The level's share of the slots, or of each poll, from 0 to 1, while all levels have records. Missing with the "
    "policy strict.",
    Combine.MEAN,
)
LEVEL_LENT = _gauge(
    "headway_level_lent_slots", "{slot}", _LEVEL, "Slots of the level's share that other levels use now."
)
LEVEL_BORROWED = _gauge(
    "headway_level_borrowed_slots", "{slot}", _LEVEL, "Slots that the level uses beyond its share now."
)
LEVEL_BUFFER = _gauge(
    "headway_level_buffer_bytes", "By", _LEVEL, "Memory for records and uncommitted outputs that the level holds."
)
LEVEL_RETURNED = _counter(
    "headway_level_returned_total", "{record}", _LEVEL, "Records that a PriorityConsumer has returned to its caller."
)
LEVEL_PARTITIONS = _gauge("headway_level_partitions", "{partition}", _LEVEL, "Partitions that are assigned.")
LEVEL_DELETED_UNREAD = _counter(
    "headway_level_deleted_unread_total",
    "{offset}",
    _LEVEL,
    "Offsets that were deleted, by retention or by a user, before this consumer read them.",
)

# Partitions of a consumer

PARTITION_NOT_DONE = _gauge(
    "headway_partition_not_done", "{record}", _PARTITION, "Records that are not done, as in headway_level_not_done."
)
PARTITION_INCOMPLETE = _gauge(
    "headway_partition_incomplete", "{record}", _PARTITION, "Records that were received and are not done."
)
PARTITION_COMMITTED = _gauge(
    "headway_partition_committed_offset",
    "{offset}",
    _PARTITION,
    "The offset of the last successful commit.",
    Combine.MAX,
)
PARTITION_COMMITTABLE = _gauge(
    "headway_partition_committable_offset", "{offset}", _PARTITION, "The lowest offset that is not done.", Combine.MAX
)
PARTITION_HIGHEST_DONE = _gauge(
    "headway_partition_highest_done_offset", "{offset}", _PARTITION, "The highest offset that is done.", Combine.MAX
)
PARTITION_POSITION = _gauge(
    "headway_partition_position_offset", "{offset}", _PARTITION, "The next offset to receive.", Combine.MAX
)
PARTITION_END = _gauge(
    "headway_partition_end_offset",
    "{offset}",
    _PARTITION,
    "The end of the log, as of the last fetch.",
    Combine.MAX,
)
PARTITION_MAP = _gauge(
    "headway_partition_map_characters",
    "{character}",
    _PARTITION,
    "Size of the offset map in the last commit. Kafka takes 4,096 characters; near that, fetching pauses.",
    Combine.MAX,
)
PARTITION_PAUSED = _gauge(
    "headway_partition_paused",
    "1",
    (*_PARTITION, "reason"),
    "1 while nothing is fetched from the partition. The reason is `user`, `buffer` (memory is full), `map` (the offset "
    "map is near its limit), `callback` (on_assign is running) or `seek`.",
    Combine.MAX,
)
PARTITION_FAILED = _counter(
    "headway_partition_failed_total",
    "{attempt}",
    _PARTITION,
    "Attempts that failed, for records of the partition.",
)
PARTITION_EPOCH = _gauge(
    "headway_partition_epoch",
    "1",
    _PARTITION,
    "Number of the assignment within this process; it grows when the partition is assigned again, or after a seek.",
    Combine.MAX,
)
PARTITION_STUCK = _gauge(
    "headway_partition_stuck_seconds",
    "s",
    _PARTITION,
    "How long the lowest record that is not done has been in memory while later records of its partition are done; "
    "otherwise 0.",
    Combine.MAX,
)

# Consumers as members of their groups

CONSUMER_STATE = _gauge(
    "headway_consumer_state",
    "1",
    ("group", "state"),
    "1 for the present state of a process: `starting`, `running`, `paused`, `stopping` or `closed`. Over several "
    "processes, how many are in each state.",
)
CONSUMER_COMMITS = _counter("headway_consumer_commits_total", "{commit}", ("group",), "Acknowledged commits.")
CONSUMER_COMMIT_FAILURES = _counter(
    "headway_consumer_commit_failures_total",
    "{commit}",
    ("group",),
    "Commits that failed or got no answer in time.",
)
CONSUMER_COMMIT_TIME = _histogram(
    "headway_consumer_commit_seconds",
    "s",
    ("group",),
    _DURATIONS,
    "How long Kafka took to acknowledge a commit.",
)
CONSUMER_MAP_TIME = _histogram(
    "headway_consumer_map_encoding_seconds",
    "s",
    ("group",),
    _DURATIONS,
    "How long the offset maps of a commit took to encode. No record can start or end during this time.",
)
CONSUMER_REBALANCES = _counter(
    "headway_consumer_rebalances_total", "{rebalance}", ("group",), "How often partitions were assigned or revoked."
)
CONSUMER_REFUSED = _gauge(
    "headway_consumer_refused",
    "1",
    ("group",),
    "1 while a permission is missing that the consumer needs, otherwise 0.",
    Combine.MAX,
)

# Processes of `headway worker`

WORKER_PROCESSES = _gauge("headway_worker_processes", "{process}", ("handler",), "Processes of the worker that run.")
WORKER_DEATHS = _counter(
    "headway_worker_process_deaths_total", "{process}", ("handler",), "Processes of the worker that died unasked."
)

# Producers

PRODUCER_BUFFERED = _gauge(
    "headway_producer_buffered",
    "{record}",
    ("client", "topic", "level"),
    "Records that were sent and have no delivery report yet. The level is empty if the producer has no levels.",
)
PRODUCER_BUFFERED_BYTES = _gauge(
    "headway_producer_buffered_bytes", "By", _CLIENT, "Size of the records that have no delivery report yet."
)
PRODUCER_BUFFER_LIMIT = _gauge(
    "headway_producer_buffer_limit_bytes", "By", _CLIENT, "The setting buffer.memory, at which send waits or refuses."
)
PRODUCER_SENT = _counter(
    "headway_producer_sent_total",
    "{record}",
    ("client", "topic", "level"),
    "Records that send has accepted.",
    otel="messaging.client.sent.messages",
)
PRODUCER_DELIVERED = _counter(
    "headway_producer_delivered_total", "{record}", ("client", "topic", "level"), "Records that Kafka has stored."
)
PRODUCER_FAILED = _counter(
    "headway_producer_failed_total",
    "{record}",
    ("client", "topic", "level", "error"),
    "Records that were not delivered, by the class of the error. After 20 classes, others are counted as `other`.",
)
PRODUCER_REFUSED = _counter(
    "headway_producer_refused_total",
    "{record}",
    _CLIENT,
    "Records for which the buffer was full: send raised an error, or waited for max.block.ms without success.",
)
PRODUCER_EXPIRED = _counter(
    "headway_producer_expired_total",
    "{record}",
    ("client", "topic", "level"),
    "Records that were not delivered within delivery.timeout.ms.",
)
PRODUCER_DELIVERY_TIME = _histogram(
    "headway_producer_delivery_seconds",
    "s",
    ("client", "level"),
    _DURATIONS,
    "How long a record took to its delivery report, from the time at which send accepted it. Some records are sampled, "
    "and the others count with the time of the record before them.",
)
PRODUCER_SEND_WAIT = _histogram(
    "headway_producer_send_wait_seconds",
    "s",
    _CLIENT,
    _DURATIONS,
    "How long calls of send waited for buffer space. Calls that did not wait are not counted.",
)

# Relays

RELAY_PENDING = _gauge(
    "headway_relay_pending",
    "{record}",
    _LINE,
    "Records of a delay topic that are not delivered or moved yet, in memory and in Kafka. Kafka's part is counted in "
    "offsets, as of the last fetch, so it includes the markers of transactions.",
)
RELAY_HELD = _gauge("headway_relay_held_bytes", "By", ("group",), "Size of the records in the relay's memory.")
RELAY_PARTITIONS = _gauge(
    "headway_relay_partitions", "{partition}", _LINE, "Partitions of a delay topic that this relay serves."
)
RELAY_LATENESS = _histogram(
    "headway_relay_lateness_seconds",
    "s",
    ("group",),
    _WAITS,
    "How long after its due time a record was written to its topic. With exactly-once delivery, consumers can read it "
    "some milliseconds later.",
)
RELAY_OVERDUE = _gauge(
    "headway_relay_overdue_seconds",
    "s",
    ("group",),
    "How long the record that is overdue the most has been due; 0 if none is overdue.",
    Combine.MAX,
)
RELAY_DELIVERED = _counter("headway_relay_delivered_total", "{record}", ("group",), "Records that were delivered.")
RELAY_MOVED = _counter(
    "headway_relay_moved_total", "{record}", _LINE, "Records moved from this delay topic to another delay topic."
)
RELAY_CANCELLED = _counter(
    "headway_relay_cancelled_total", "{record}", ("group",), "Records that were cancelled or replaced before delivery."
)
RELAY_FAILED = _counter(
    "headway_relay_failed_total", "{record}", ("group",), "Records that could not be delivered and became dead letters."
)
RELAY_TRANSACTIONS = _counter(
    "headway_relay_transactions_total", "{transaction}", ("group",), "Transactions that were committed."
)
RELAY_ABORTS = _counter(
    "headway_relay_aborts_total",
    "{transaction}",
    ("group",),
    "Transactions that were aborted or could not be committed.",
)
RELAY_TAKEOVERS = _counter(
    "headway_relay_takeovers_total",
    "{partition}",
    ("group",),
    "Partitions that this relay has taken over from another relay, or from its own earlier run.",
)
RELAY_REFUSED = _gauge(
    "headway_relay_refused",
    "1",
    ("group",),
    "1 while a permission is missing that the relay needs, otherwise 0.",
    Combine.MAX,
)

# Spark's streaming queries

SPARK_RUNNING = _gauge("headway_spark_query_running", "1", _QUERY, "1 while the query runs, otherwise 0.", Combine.MAX)
SPARK_FAILURES = _counter(
    "headway_spark_query_failures_total", "{failure}", _QUERY, "How often the query has ended with an error."
)
SPARK_ROWS = _counter(
    "headway_spark_rows_total", "{row}", _QUERY, "Rows that the query has read, as Spark counts them."
)
SPARK_BATCH_TIME = _histogram(
    "headway_spark_batch_seconds", "s", _QUERY, _DURATIONS, "How long a micro-batch with rows took."
)
SPARK_READ = _counter(
    "headway_spark_read_offsets_total",
    "{offset}",
    (*_QUERY, "level"),
    "Offsets that the query has read from its Headway sources.",
)
SPARK_WAITING = _gauge(
    "headway_spark_waiting_offsets",
    "{offset}",
    (*_QUERY, "level"),
    "Offsets that the query had not read after its last micro-batch.",
)
SPARK_OLDEST = _gauge(
    "headway_spark_oldest_seconds",
    "s",
    (*_QUERY, "level"),
    "How long ago the query first saw the oldest offset that waits, after its last micro-batch; 0 if none waits.",
    Combine.MAX,
)
SPARK_OUTCOMES = _counter(
    "headway_spark_outcomes_total",
    "{row}",
    (*_QUERY, "stage", "outcome"),
    "Rows of a stage of parallel_map by their outcome, with `retried` for rows of more than one attempt; or records of "
    "outputs, and of these the dead letters.",
)

# librdkafka's own statistics, if the setting `statistics.interval.ms` is above 0

KAFKA_BROKER_UP = _gauge(
    "headway_librdkafka_broker_up",
    "1",
    _BROKER,
    "1 while the client is connected to the broker, otherwise 0.",
    Combine.MAX,
)
KAFKA_REQUESTS = _counter("headway_librdkafka_requests_total", "{request}", _BROKER, "Requests sent to the broker.")
KAFKA_REQUEST_ERRORS = _counter(
    "headway_librdkafka_request_errors_total", "{request}", _BROKER, "Requests that could not be sent."
)
KAFKA_REQUEST_TIMEOUTS = _counter(
    "headway_librdkafka_request_timeouts_total", "{request}", _BROKER, "Requests that were not answered in time."
)
KAFKA_SENT_BYTES = _counter("headway_librdkafka_sent_bytes_total", "By", _BROKER, "Bytes sent to the broker.")
KAFKA_RECEIVED_BYTES = _counter(
    "headway_librdkafka_received_bytes_total", "By", _BROKER, "Bytes received from the broker."
)
KAFKA_ROUND_TRIP = _gauge(
    "headway_librdkafka_round_trip_seconds",
    "s",
    _BROKER,
    "Mean time from a request to its answer, in the last interval of the statistics.",
    Combine.MAX,
)
KAFKA_THROTTLE = _gauge(
    "headway_librdkafka_throttle_seconds",
    "s",
    _BROKER,
    "Mean time for which the broker throttled the client, in the last interval of the statistics.",
    Combine.MAX,
)
KAFKA_FETCH_QUEUE = _gauge(
    "headway_librdkafka_fetch_queue_records", "{record}", _CLIENT, "Records that librdkafka has fetched ahead."
)
KAFKA_FETCH_QUEUE_BYTES = _gauge(
    "headway_librdkafka_fetch_queue_bytes", "By", _CLIENT, "Size of the records that librdkafka has fetched ahead."
)
KAFKA_BATCH = _gauge(
    "headway_librdkafka_batch_records",
    "{record}",
    ("client", "kafka_topic"),
    "Mean number of records in the batches that a producer sent to the topic, in the last interval of the statistics.",
    Combine.MEAN,
)
KAFKA_BATCH_BYTES = _gauge(
    "headway_librdkafka_batch_bytes",
    "By",
    ("client", "kafka_topic"),
    "Mean size of the batches that a producer sent to the topic, in the last interval of the statistics.",
    Combine.MEAN,
)
KAFKA_QUEUED = _gauge(
    "headway_librdkafka_queued_records", "{record}", _CLIENT, "Records of a producer that librdkafka has not delivered."
)
KAFKA_QUEUED_BYTES = _gauge(
    "headway_librdkafka_queued_bytes", "By", _CLIENT, "Size of a producer's records in librdkafka."
)
KAFKA_REBALANCES = _counter(
    "headway_librdkafka_rebalances_total", "{rebalance}", _CLIENT, "Rebalances of the group that the client has seen."
)
