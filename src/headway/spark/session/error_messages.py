"""Our errors as Spark shows them: one sentence, without the stack trace of the worker."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from headway.errors import HeadwayError

# The last line of one of our errors, raised in one of Spark's workers, inside Spark's message.
_OURS = re.compile(r"^.*headway\.errors\.\w+: (.+)$", re.MULTILINE)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Make Spark show our errors without the worker's traceback, which would hide the sentence."""
    try:
        yield
    except HeadwayError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def our_sentence() -> Iterator[None]:
    """If an error of Spark's contains one of ours, raise ours instead, for code that shows it to people."""
    try:
        yield
    except PySparkException as error:
        if sentences := _OURS.findall(str(error)):
            raise HeadwayError(sentences[-1]) from error
        raise
