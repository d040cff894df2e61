"""Our errors as Spark shows them: sentences, without the stack trace of its worker."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headway.errors import HeadwayError


@contextmanager
def one_sentence() -> Iterator[None]:
    """Lets Spark show our errors without the traceback of its worker, which ends with the error."""
    try:
        yield
    except HeadwayError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
