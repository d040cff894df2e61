"""Pipelines on Spark to run as they are, or to take apart: their stages are functions of DataFrames."""

from headway.runtime.lazy_import import importer

_MODULES = {"PipelineRun": "headway.pipelines.pipeline_run"}

__all__ = list(_MODULES)

__getattr__ = importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
