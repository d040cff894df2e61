"""Makes Spark show only the message of an error of ours, without the stack trace of the Python worker."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from headway.errors import HeadwayError

# Matches one of our errors, raised in a Python worker, in the message of an error of Spark's.
_OURS = re.compile(r"^.*headway\.errors\.\w+: (.+)$", re.MULTILINE)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Make Spark show errors that are raised in this block without the worker's traceback, which hides the message."""
    try:
        yield
    except HeadwayError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def our_sentence() -> Iterator[None]:
    """If Spark raises an error that contains one of our errors, raise our error instead."""
    try:
        yield
    except PySparkException as error:
        if sentences := _OURS.findall(str(error)):
            raise HeadwayError(sentences[-1]) from error
        raise
