"""The declaration of a handler: the function, the sizes of its batches, and what happens with its return values."""

from dataclasses import dataclass
from typing import Any

from headway.declarations import called, check_kind, is_coroutine_function, is_generator_function
from headway.errors import ConfigError
from headway.execution.handler_calls import ResultReceiver
from headway.execution.handlers import BatchHandler, Handler, WithContext, collecting, with_context
from headway.parallel.batches import Batches
from headway.parallel.callbacks import check_callback
from headway.parallel.outputs import OnOutput


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A handler in the form that the user declared.

    Args:
        handler: The handler, with or without a second parameter for the context.
        batches: The sizes of batches, if the handler takes batches.
        sends: True if records that the handler returns or yields must be sent.
        on_output: A function that is called for each stored output.
        receiver: Receives the handler's return values if they are not sent to Kafka.
    """

    handler: Handler | BatchHandler
    batches: Batches | None = None
    sends: bool = False
    on_output: OnOutput | None = None
    receiver: ResultReceiver | None = None

    def checked(self, executor: str | None) -> WithContext:
        """Return the handler in the form that executors call.

        The resulting function takes a record and its context, or for batches a list of each. If the handler yields
        outputs, the function returns them as a list. Raises `ConfigError` if the handler or `on_output` cannot be
        called with the arguments that it would get, or if the executor cannot run the handler.
        """
        if self.batches is None:
            handle = with_context(self.handler)
        else:
            check_kind("batches", self.batches, Batches, "Batches, such as Batches(100)")
            handle = with_context(self.handler, "records", "contexts")
        if self.sends:
            check_callback("on_output", self.on_output, ("input", "output", "metadata"))
            handle = collecting(handle)
        _check_runs(handle, executor)
        return handle


def _check_runs(handler: Any, executor: str | None) -> None:
    if is_generator_function(handler):
        raise ConfigError(
            f"The handler {called(handler)} is a generator function, because it yields. Only run_and_produce, or a "
            "@worker with produces=, can run a generator function; here, a call would run none of its code. Write the "
            "handler without yield."
        )
    is_async = is_coroutine_function(handler)
    if executor not in (None, *(("async",) if is_async else ("thread", "process"))):
        kind = "an async def" if is_async else "a plain function"
        raise ConfigError(f"executor={executor!r} cannot run {kind}. Leave out executor, or choose another executor.")
