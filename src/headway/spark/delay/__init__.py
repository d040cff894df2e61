"""Functions for many schedules: read them as a DataFrame, cancel them by a predicate, count them, and audit them.

To schedule the rows of a DataFrame, write them with a column `due` (`headway.spark.sink.writers`).
"""

from headway.spark.delay.auditing import audit, summary
from headway.spark.delay.cancelling import cancel_where
from headway.spark.delay.counting import delays, hot_seconds, occupancy
from headway.spark.delay.page import write_occupancy
from headway.spark.delay.reading import pending

__all__ = ["audit", "cancel_where", "delays", "hot_seconds", "occupancy", "pending", "summary", "write_occupancy"]
