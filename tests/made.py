"""The objects behind a client, for tests that have to look at one of them."""

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def made_by(name: str) -> Iterator[list[Any]]:
    """The objects made within the block under a name, such as `headway.parallel.consumer.Dispatch`, in order."""
    made, make = list[Any](), pkgutil.resolve_name(name)

    def note(*args: Any, **options: Any) -> Any:
        made.append(make(*args, **options))
        return made[-1]

    with patch(name, note):
        yield made
