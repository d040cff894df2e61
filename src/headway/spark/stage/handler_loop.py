"""The event loop that runs the coroutines of a Python worker; it outlives the worker's tasks."""

import asyncio
import threading
from functools import cache, partial

from headway.execution.event_loop import run_whatever_is_raised
from headway.runtime.precise_loop import precise_event_loop

LOOP_ANSWERS_WITHIN = 10.0  # seconds


@cache
def handler_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this Python worker. It outlives tasks, so connections made in it stay usable."""
    loop = precise_event_loop()
    serve = partial(run_whatever_is_raised, loop, loop.create_future())
    threading.Thread(target=serve, name="headway-stage-loop", daemon=True).start()
    return loop


def answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop still runs callbacks; it has 10 seconds to answer."""
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    return answered.wait(LOOP_ANSWERS_WITHIN)
