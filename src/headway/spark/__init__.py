"""Headway in PySpark: `format("headway")` reads topics by priority."""

from headway.spark.session import local_session
from headway.spark.source import HeadwayDataSource

__all__ = ["HeadwayDataSource", "local_session"]
