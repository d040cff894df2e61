"""The handlers that users declare: as functions or coroutine functions, with or without a context, and with `yield`."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self, get_args

from headway.declarations import called, is_async_generator_function, is_coroutine_function, shown, takes
from headway.errors import ConfigError
from headway.execution.context import Context
from headway.records.record_types import ConsumerRecord

WithContext = Callable[[Any, Any], Any]
"""A handler as executors call it: `handler(record, context)`, or `handler(records, contexts)` for batches."""

Handler = Callable[[ConsumerRecord, Context], Any] | Callable[[ConsumerRecord], Any]
"""A handler as the user declares it, with or without a second parameter for the context."""

BatchHandler = Callable[[Sequence[ConsumerRecord], Sequence[Context]], Any] | Callable[[Sequence[ConsumerRecord]], Any]
_NAMES_OF_CONTEXTS = ("context", "contexts")


class WithoutContext(partial[Any]):
    """Wraps a handler that takes only the record, so that executors can call it with a record and a context.

    The class is a `partial`, so that `inspect` recognises the wrapper of an async handler as async.
    """

    # The wrapped handler; `func` can be an inner function, because Python flattens nested partials.
    alone: Callable[[Any], Any]

    def __new__(cls, handler: Callable[[Any], Any]) -> Self:
        made = super().__new__(cls, handler)
        made.alone = handler
        return made

    def __call__(self, record: Any, context: Any) -> Any:
        return self.alone(record)


def with_context(handler: Callable[..., Any], first: str = "record", second: str = "context") -> WithContext:
    """Return a handler that can be called with two arguments, even if the given handler takes only the record.

    A handler that can take two arguments gets both. However, if the second parameter has a default and neither its name
    nor its annotation shows that it is the context, it keeps its default. Raises `ConfigError` if the handler can be
    called neither with one nor with two arguments.
    """
    if isinstance(handler, WithoutContext):
        return handler
    if not callable(handler):
        raise ConfigError(
            f"The handler is {shown(handler)}; it must be a function ({first}), or ({first}, {second}) to get the "
            f"{second} too."
        )
    takes_one, takes_two = takes(handler, 1), takes(handler, 2)
    if not takes_one and not takes_two:
        raise ConfigError(
            f"The handler {called(handler)} can be called neither with ({first}) nor with ({first}, {second}). Declare "
            "one or two parameters, and bind all others beforehand, for example with functools.partial."
        )
    if takes_one and takes_two:  # a decorator that accepts `*args` might wrap a function that takes only the record
        takes_two = takes(handler, 2, as_promised=True) or not takes(handler, 1, as_promised=True)
        takes_two = takes_two and not _keeps_its_default(handler)
    return handler if takes_two else WithoutContext(handler)


def _keeps_its_default(handler: Callable[..., Any]) -> bool:
    """Return whether the second parameter has a default and is not for the context, as in `lambda row, factor=2: …`."""
    try:
        given = inspect.signature(handler).parameters.values()
    except Exception:  # a builtin can lack a signature, and a `__signature__` that the user wrote can raise
        return False
    positional = [each for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 or positional[1].default is inspect.Parameter.empty:
        return False
    return positional[1].name not in _NAMES_OF_CONTEXTS and not _is_context(positional[1].annotation)


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return re.search(r"\bContext\b", annotation) is not None
    return annotation is Context or any(map(_is_context, get_args(annotation)))


def needs_no_context(handler: WithContext) -> bool:
    """Return whether a handler takes only the record."""
    return isinstance(handler, WithoutContext)


def collecting(handler: WithContext) -> WithContext:
    """Wrap a handler that yields, so that its whole body runs during the call. The outputs are returned as a list."""
    if is_async_generator_function(handler):

        async def collect(record: ConsumerRecord, context: Context) -> list[Any]:
            return [output async for output in handler(record, context)]

        return collect
    return handler if is_coroutine_function(handler) else partial(_collect, handler)


def _collect(handler: WithContext, record: ConsumerRecord, context: Context) -> Any:
    returned = handler(record, context)
    return list(returned) if isinstance(returned, Iterator) else returned
