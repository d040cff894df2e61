"""The entry for `format("headway")`: Spark looks for modules named `pyspark_*` with a `DefaultSource`."""

from headway.spark.source.data_source import HeadwayDataSource as DefaultSource

__all__ = ["DefaultSource"]
