from headway.spark.input_row import InputRow
from headway.spark.output_records import Output, outputs
from headway.spark.parallel_stage import parallel_map
from headway.spark.session import local_session
from headway.spark.source import HeadwayDataSource
from headway.spark.workers import ClusterWorkers, run_workers

__all__ = [
    "ClusterWorkers",
    "HeadwayDataSource",
    "InputRow",
    "Output",
    "local_session",
    "outputs",
    "parallel_map",
    "run_workers",
]
