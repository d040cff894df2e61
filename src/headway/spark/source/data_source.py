"""`format("headway")`: Kafka by priority, as a data source for Spark."""

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
    """Kafka topics with priority levels, as a source for Spark.

    The columns are those of Spark's Kafka source, plus `level`. These are the options; `kafka.bootstrap.servers` and
    one of the first four are required:

    | option | default | what |
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
    | `maxRecordsPerTrigger` | no limit | the most records in a micro-batch |
    | `targetTriggerTime` | none | how long a micro-batch should take; its limit is adapted to the last ones |
    | `policy` | `fair` | how the levels share a micro-batch: `fair`, `capacity_burst` or `strict` |
    | `distributor` | `exponential` | their shares: `exponential`, `linear`, or weights, lowest first: `1,1,8` |
    | `strictMaxWait` | `1m` | under `strict` a record that the query has seen waiting for longer counts as one of the \
highest level |
    | `minRecordsPerTrigger` | 1 | start no micro-batch before this many wait, |
    | `maxTriggerDelay` | `15m` | or the first of them has waited this long |
    | `minPartitions` | the cluster's cores; in batches 8 | the fewest tasks of a micro-batch, |
    | `maxRecordsPerPartition` | no limit | and the most records of a task, both within the number of partitions; |
    | `splitPartitions` | streams: `false`, batches: `true` | or exactly, if several tasks may read one partition, \
whose records then have no order |
    | `failOnDataLoss` | `true` | whether the query fails if Kafka no longer has offsets; otherwise they are logged and
    skipped |
    | `isolation` | `read_committed` | `read_committed` or `read_uncommitted` |
    | `group.id` | none | also commit the query's progress to the level groups of this group |
    | `includeHeaders` | `false` | add a column `headers` |
    | `timestampLateness` | none | batches: how much older a record can be than one before it in its partition |

    The limits count offsets. The end of each transaction has one, and records removed by compaction keep theirs, so
    there can be fewer records.

    With `.schema(…)`, only the columns that it names are read. In a session with
    `spark.sql.python.filterPushdown.enabled`, batches read no more than filters on topic, level, partition, offset,
    timestamp and key need. To bound the end of a time range, set `timestampLateness`.

    Headway joins no group, and without the option `group.id` it needs no right on a group.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to write in `format(…)`."""
        return "headway"

    def schema(self) -> StructType:
        """Return the columns. Spark calls this first, in `load()`, so all options are checked here."""
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
        except ConfigError as mistake:  # with the user's own schema, options have not been checked before
            return StreamReader(mistake, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for `df.write`: see `headway.spark.sink.writers`."""
        return batch_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer for `df.writeStream`: see `headway.spark.sink.writers`."""
        return stream_writer(schema, self.options)
