from headway.spark.input_row import InputRow
from headway.spark.outcomes import dead_letters
from headway.spark.parallel_stage import parallel_map
from headway.spark.session import local_session
from headway.spark.source import HeadwayDataSource
from headway.spark.workers import ClusterWorkers, run_workers

__all__ = [
    "ClusterWorkers",
    "HeadwayDataSource",
    "InputRow",
    "dead_letters",
    "local_session",
    "parallel_map",
    "run_workers",
]
