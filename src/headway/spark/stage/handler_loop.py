"""The event loop that runs async handlers in a Python worker. All tasks of the worker use the same loop."""

import asyncio
import threading
from functools import cache, partial

from headway.execution.event_loop import run_whatever_is_raised
from headway.runtime.handler_loops import handler_event_loop

LOOP_ANSWERS_WITHIN = 10.0  # the loop has this many seconds to run a callback


@cache
def handler_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this Python worker. The first call starts the loop.

    The loop runs until the worker ends, so connections that a handler opens in one task can be used in the next.
    """
    loop = handler_event_loop()
    serve = partial(run_whatever_is_raised, loop, loop.create_future())
    threading.Thread(target=serve, name="headway-stage-loop", daemon=True).start()
    return loop


def answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop still runs callbacks. Waits for at most 10 seconds for the loop to run one."""
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    return answered.wait(LOOP_ANSWERS_WITHIN)
