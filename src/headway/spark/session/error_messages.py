"""Makes Spark show only the message of a Headway error, without the stack trace of the Python worker."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from headway.errors import HeadwayError

# Finds the message of a Headway error, which was raised in a Python worker, within the message of a Spark error.
_OURS = re.compile(r"^.*headway\.errors\.\w+: (.+)$", re.MULTILINE)


@contextmanager
def one_sentence() -> Iterator[None]:
    """If this block raises a Headway error, hide the worker's traceback, so that users see the message."""
    try:
        yield
    except HeadwayError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def our_sentence() -> Iterator[None]:
    """If Spark raises an error that contains a Headway error, raise the Headway error instead."""
    try:
        yield
    except PySparkException as error:
        if sentences := _OURS.findall(str(error)):
            raise HeadwayError(sentences[-1]) from error
        raise
