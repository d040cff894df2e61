"""What a run calls: a handler, whether it takes batches, and what becomes of the values that it returns."""

from dataclasses import dataclass
from typing import Any

from headway.declarations import called, check_kind, is_coroutine_function, is_generator_function
from headway.errors import ConfigError
from headway.execution.handlers import BatchHandler, Handler, TakeResult, WithContext, collecting, with_context
from headway.parallel.batches import Batches
from headway.parallel.callbacks import check_callback
from headway.parallel.outputs import OnOutput


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A handler with what belongs to it.

    Args:
        handler: The handler as the user wrote it, with or without a context.
        batches: The sizes of batches, for a handler of batches.
        sends: True if what it returns or yields is sent, in outputs.
        on_output: The function called for each stored output.
        take_result: The function that takes what the handler returns, in place of a sender of outputs.
    """

    handler: Handler | BatchHandler
    batches: Batches | None = None
    sends: bool = False
    on_output: OnOutput | None = None
    take_result: TakeResult | None = None

    def checked(self, executor: str | None) -> WithContext:
        """Return the handler as executors call it: with its contexts, and with what it yields as a list.

        Raises `ConfigError` for a handler that cannot be called, that a call would not run, or that the executor does
        not run; and for an `on_output` that cannot be called.
        """
        if self.batches is None:
            handle = with_context(self.handler)
        else:
            check_kind("batches", self.batches, Batches, "Batches, as Batches(100)")
            handle = with_context(self.handler, "records", "contexts")
        if self.sends:
            check_callback("on_output", self.on_output, ("input", "output", "metadata"))
            handle = collecting(handle)
        _check_runs(handle, executor)
        return handle


def _check_runs(handler: Any, executor: str | None) -> None:
    if is_generator_function(handler):
        raise ConfigError(
            f"The handler {called(handler)} yields, and only run_and_produce takes that, or a @worker with produces=: "
            "elsewhere nothing of it would run. Write it without yield."
        )
    is_async = is_coroutine_function(handler)
    if executor not in (None, *(("async",) if is_async else ("thread", "process"))):
        kind = "an async def" if is_async else "a plain function"
        raise ConfigError(f"executor={executor!r} does not run {kind}. Leave it out, or choose another.")
