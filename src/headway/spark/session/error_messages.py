"""Our errors as Spark shows them: sentences, without the stack trace of its worker."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from headway.errors import HeadwayError

# One of our errors that was raised in one of Spark's workers, within Spark's message.
_OURS = re.compile(r"^.*headway\.errors\.\w+: (.+)$", re.MULTILINE)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Let Spark show our errors without the traceback of its worker, which ends with the error."""
    try:
        yield
    except HeadwayError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def our_sentence() -> Iterator[None]:
    """Raise the error of ours inside an error of Spark's, if there is one, for code that shows it to people."""
    try:
        yield
    except PySparkException as error:
        if sentences := _OURS.findall(str(error)):
            raise HeadwayError(sentences[-1]) from error
        raise
