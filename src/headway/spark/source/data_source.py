"""The data source `format("headway")`, with which Spark reads and writes Kafka topics with priority levels."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headway.errors import ConfigError
from headway.spark.session.error_messages import one_sentence
from headway.spark.sink.writers import batch_writer, stream_writer
from headway.spark.source import schema as columns
from headway.spark.source.batch_reader import BatchReader
from headway.spark.source.options import check_kafka, parse
from headway.spark.source.stream_reader import StreamReader


class HeadwayDataSource(DataSource):
    """Reads Kafka topics with priority levels as a source of Spark, and writes rows to Kafka as a sink.

    The source has the columns of Spark's Kafka source, and a column `level`. The source has the options below;
    `kafka.bootstrap.servers` and one of the first four are required. For the options of the sink, see
    `headway.spark.sink.writers`.

    | option | default | meaning |
    |---|---|---|
    | `subscribe` | | topics, separated by commas |
    | `subscribePattern` | | a regular expression for the whole name of a topic, without its level |
    | `assign` | | some partitions of every level, as JSON: `{"orders": [0, 1]}` |
    | `priorities` | | existing topics, each with its level: `{"payments": 2, "clicks": 0}` |
    | `levels` | none | the number of level topics of each topic; without it, topics are read by their own names |
    | `kafka.*` | | any setting of librdkafka, such as `kafka.bootstrap.servers` |
    | `startingOffsets` | streams: `latest`, batches: `earliest` | where a new query starts: one of \
these, a time with its zone, or JSON by topic, level (if there are levels) and partition, with offsets or times |
    | `endingOffsets` | `latest` | where a batch ends, in the same forms |
    | `maxRecordsPerTrigger` | no limit | the maximum number of records in a micro-batch |
    | `targetTriggerTime` | none | how long a micro-batch should take; the limit is adapted to how long the last \
micro-batches took |
    | `policy` | `fair` | how the levels share a micro-batch: `fair`, `capacity_burst` or `strict` |
    | `distributor` | `exponential` | the shares of the levels: `exponential`, `linear`, or weights, lowest level \
first: `1,1,8` |
    | `strictMaxWait` | `1m` | with `strict`, a record that the query has seen waiting longer than \
this counts as a record of the highest level |
    | `minRecordsPerTrigger` | 1 | the number of waiting records at which a micro-batch starts |
    | `maxTriggerDelay` | `15m` | the time after which a micro-batch starts even with fewer waiting records |
    | `minPartitions` | the cluster's cores; in batches 8 | the minimum number of tasks in a micro-batch. Without \
`splitPartitions`, there cannot be more tasks than partitions |
    | `maxRecordsPerPartition` | no limit | the maximum number of records in a task. Without `splitPartitions`, a task \
reads at least one whole partition |
    | `splitPartitions` | streams: `false`, batches: `true` | whether several tasks can read one partition, whose \
records then have no order |
    | `failOnDataLoss` | `true` | whether the query fails if Kafka no longer has some offsets; otherwise they are \
logged and skipped |
    | `isolation` | `read_committed` | `read_committed` or `read_uncommitted` |
    | `group.id` | none | a consumer group, to whose level groups the query also commits its progress |
    | `includeHeaders` | `false` | whether to add a column `headers` |
    | `timestampLateness` | none | batches: how much older the timestamp of a record can be than that of an earlier \
record in its partition |

    The limits count offsets. There can be fewer records than offsets, because the end of each transaction also has an
    offset, and so does each record that compaction has removed.

    With `.schema(…)`, only the columns that the schema names are read. If `spark.sql.python.filterPushdown.enabled` is
    set in the session, batches do not read records that filters on topic, level, partition, offset, timestamp and key
    exclude. The end of a time range is used only if `timestampLateness` is set.

    Headway does not join a consumer group. Without the option `group.id`, it does not need permission for any group.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source, which users pass to `format(…)`."""
        return "headway"

    def schema(self) -> StructType:
        """Return the columns of the source. Spark calls this first, in `load()`, so all options are checked here."""
        with one_sentence():
            options = parse(self.options)
            check_kafka(options)
            return columns.schema(options.include_headers, level_topics=options.naming.levels is not None)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`."""
        with one_sentence():
            options = parse(self.options, in_streams=False)
            return BatchReader(options, columns.projection(schema, options.include_headers))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader for `spark.readStream`."""
        try:
            options = parse(self.options)
            return StreamReader(options, columns.projection(schema, options.include_headers))
        except ConfigError as mistake:  # if the user gave a schema, Spark has not called `schema`, which checks options
            return StreamReader(mistake, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for `df.write`, which `headway.spark.sink.writers` describes."""
        return batch_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return the writer for `df.writeStream`, which `headway.spark.sink.writers` describes."""
        return stream_writer(schema, self.options)
