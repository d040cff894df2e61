"""Headway for PySpark: Kafka topics by priority as a source and sink, and handlers that run in parallel on a cluster.

As in the package `headway`, the module that defines a public name is imported when the name is first used.
"""

from headway.runtime.lazy_import import importer

_MODULES = {
    "ClusterWorkers": "headway.spark.workers",
    "HeadwayDataSource": "headway.spark.source.data_source",
    "InputRow": "headway.spark.stage.input_row",
    "LevelProgress": "headway.spark.report.level_progress",
    "Output": "headway.spark.stage.output_records",
    "ProgressListener": "headway.spark.report.level_progress",
    "QueryMetrics": "headway.spark.report.query_metrics",
    "follow_cluster": "headway.spark.session.parallelism",
    "level_progress": "headway.spark.report.level_progress",
    "local_session": "headway.spark.session.session",
    "outputs": "headway.spark.stage.output_records",
    "parallel_map": "headway.spark.stage.parallel_map",
    "repartition_by_key": "headway.spark.stage.key_order",
    "run_workers": "headway.spark.workers",
    "stamped": "headway.spark.report.timestamps",
}

__all__ = list(_MODULES)

__getattr__ = importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
