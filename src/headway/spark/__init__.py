"""Headway in PySpark: topics by priority as source and sink, and handlers that run in parallel on the cluster.

Its names are imported when they are first asked for, as those of `headway`.
"""

from headway.lazy_names import importer

_MODULES = {
    "ClusterWorkers": "headway.spark.workers",
    "HeadwayDataSource": "headway.spark.source",
    "InputRow": "headway.spark.input_row",
    "Output": "headway.spark.output_records",
    "local_session": "headway.spark.session",
    "outputs": "headway.spark.output_records",
    "parallel_map": "headway.spark.parallel_stage",
    "run_workers": "headway.spark.workers",
}

__all__ = list(_MODULES)

__getattr__ = importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
