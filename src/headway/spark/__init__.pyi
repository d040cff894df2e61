from headway.spark.report.level_progress import LevelProgress, ProgressListener, level_progress
from headway.spark.report.query_metrics import QueryMetrics
from headway.spark.report.timestamps import stamped
from headway.spark.session.parallelism import follow_cluster
from headway.spark.session.session import local_session
from headway.spark.source.data_source import HeadwayDataSource
from headway.spark.stage.input_row import InputRow
from headway.spark.stage.key_order import repartition_by_key
from headway.spark.stage.output_records import Output, outputs
from headway.spark.stage.parallel_map import parallel_map
from headway.spark.workers import ClusterWorkers, run_workers

__all__ = [
    "ClusterWorkers",
    "HeadwayDataSource",
    "InputRow",
    "LevelProgress",
    "Output",
    "ProgressListener",
    "QueryMetrics",
    "follow_cluster",
    "level_progress",
    "local_session",
    "outputs",
    "parallel_map",
    "repartition_by_key",
    "run_workers",
    "stamped",
]
