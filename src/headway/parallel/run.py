"""Runs a parallel consumer: starts its parts, runs the rounds of the control thread, and makes the last commit."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from headway.core.levels.naming import LevelSubscription
from headway.errors import ClosedError, ConfigError, HeadwayError
from headway.execution.dispatch import Dispatch
from headway.kafka.consumer.level_consumers import END_WITHIN, LevelConsumers
from headway.parallel.control_loop import ControlLoop
from headway.parallel.handler_spec import HandlerSpec
from headway.parallel.requests_follower import RequestsFollower
from headway.parallel.rules_follower import RulesFollower
from headway.parallel.run_parts import ClosablePart, RunParts
from headway.parallel.stream import Owner
from headway.parallel.tenancy import Tenancy
from headway.runtime.call_stacks import is_on_stack
from headway.runtime.end_steps import EndSteps, Step
from headway.runtime.flag import Flag
from headway.runtime.sigterm import on_terminate
from headway.runtime.wakeup import Wakeup

DRAIN_WITHIN: Final = 30.0
"""How long running handlers have to end when the consumer drains, in seconds, unless the user sets a timeout."""

# The minimum time for the last commits and for leaving the groups, even if the handlers have used up the drain timeout,
# in seconds.
_LEAST_FOR_END = 1.0
_CHECK_THAT_IT_RUNS_EVERY = 1.0  # how often `close` checks whether `run` is still running, in seconds


class Run:
    """The only run of a consumer, in the thread that calls `run`. Any thread, handler or signal handler can stop it.

    `subscribe` joins the groups, unless there is a lifespan. With a lifespan, the groups are joined after its start-up,
    because a member that takes no part in rebalances during the start-up would delay all other members.
    """

    def __init__(
        self,
        parts: RunParts,
        control: ControlLoop,
        dispatch: Dispatch,
        levels: LevelConsumers,
        wake: Wakeup,
        tenancy: Tenancy | None,
        rules: RulesFollower | None,
        requests: RequestsFollower | None,
        *,
        joins_late: bool,
    ) -> None:
        self._parts = parts
        self._control = control
        self._dispatch = dispatch
        self._levels = levels
        self._wake = wake
        self._tenancy = tenancy
        self._rules = rules
        self._requests = requests
        self._joins_late = joins_late
        self._state = threading.Lock()  # protects the flag that the run has begun
        self._runner: int | None = None  # the identifier of the thread that called `run`, or `close` before any run
        self._subscriptions: Sequence[LevelSubscription] = ()
        self._stop: tuple[bool, float] | None = None  # whether to drain, and the deadline; None until `stop` is called
        self._steps = EndSteps(self._steps_to_end)
        self._ended = Flag()
        self.failure: BaseException | None = None  # the error that ended the run, or None

    @property
    def has_begun(self) -> bool:
        """True once the run has begun, or if it was closed before it could begin."""
        return self._runner is not None

    @property
    def has_ended(self) -> bool:
        """True once the run has left its groups and closed its clients."""
        return self._ended.is_set()

    @property
    def is_stopping(self) -> bool:
        """True once `stop` or `close` was called."""
        return self._stop is not None

    def subscribe(self, subscriptions: Sequence[LevelSubscription]) -> None:
        """Read these topics. Call this before `run`."""
        self._subscriptions = subscriptions
        self._control.rate.subscribe(subscriptions)
        if not self._joins_late:
            self._control.fetching.subscribe(subscriptions)

    def run(self, spec: HandlerSpec, owner: Owner = None) -> None:
        """Run until the consumer is stopped. Raises the error that ended the run, if there is one."""
        self._begin()
        try:
            # `on_terminate` is the outermost block, because a second SIGTERM must not end the process before the last
            # commit.
            with on_terminate(self.stop), contextlib.ExitStack() as at_end:
                at_end.callback(self._end)
                handler = self._parts.handler(spec)
                self._parts.require_permissions(self._subscriptions)
                if self._rules:
                    self._rules.start()  # before any record starts
                self._parts.start(spec, handler, owner, lambda: self.is_stopping)
                if self._requests:
                    self._requests.start(self._parts.moves)
                if self._joins_late and not self.is_stopping:
                    self._control.fetching.subscribe(self._subscriptions)
                self._run_rounds()
            # A handler or callback might have failed after the last round.
            if failure := self._dispatch.failure or self._control.callbacks.failure or self._parts.failure:
                raise failure
        except BaseException as error:
            self.failure = error
            raise

    def stop(self, drain: bool, timeout: float = DRAIN_WITHIN) -> None:
        """Request that the run ends, and return at once. Handlers and signal handlers can call this."""
        self._stop = drain, time.monotonic() + (timeout if drain else 0)
        self._dispatch.end()
        self._wake.set()

    def close(self, drain: bool, timeout: float) -> None:
        """Stop the run, and wait until the run has ended. Raises `HeadwayError` if called in a callback."""
        if self._control.callbacks.runs_here():
            raise HeadwayError(
                "close() was called in a callback of the consumer, where it would wait forever for the callback to "
                "return. Call stop() instead."
            )
        with self._state:
            if self._runner is None:
                self._runner = threading.get_ident()  # from now on `run` raises `ClosedError`
        if not self._ended.is_set():
            self.stop(drain, timeout)
        while not self._ended.is_set():
            # Two interrupts in a row may have ended `run` before `_end` had finished, or before `_end` was registered.
            # In that case only this method can complete the end of the run.
            here = threading.get_ident()
            if is_on_stack(here, _RUN, self) or is_on_stack(here, _END, self):
                # Called in a signal handler that has interrupted `run` or `_end`, which can continue only after this
                # call.
                return
            if not is_on_stack(self._runner, _RUN, self):
                self._end()
            else:
                self._ended.wait(_CHECK_THAT_IT_RUNS_EVERY)

    def _begin(self) -> None:
        with self._state:
            if self._runner is not None:
                raise ClosedError("A consumer can run only once. Make a new consumer.")
            if not self._subscriptions:
                raise ConfigError("The consumer has no topics to read. Call subscribe before you run it.")
            self._runner = threading.get_ident()

    def _run_rounds(self) -> None:
        while self._stop is None:
            self._control.run_round()
        while self._stop[0] and self._dispatch.is_running() and time.monotonic() < self._stop[1]:
            self._control.run_round()

    def _end(self) -> None:
        """Leave the groups, and close all parts. If steps raise errors, the last error is raised after all steps."""
        self._steps.take()
        self._ended.set()

    def _steps_to_end(self) -> Iterator[Step]:
        """Yield the steps that `_end` takes.

        All steps that wait for Kafka share one deadline: `END_WITHIN` seconds from now or the end of the drain timeout,
        whichever is earlier, but at least one second from now.
        """
        now = time.monotonic()
        drains_until = self._stop[1] if self._stop and self._stop[0] else math.inf
        end_by = min(now + END_WITHIN, max(drains_until, now + _LEAST_FOR_END))

        def until() -> float:
            return time.monotonic() if self._steps.hurries else end_by

        if self._requests:
            yield self._requests.close
        yield lambda: self._control.leave(until())
        yield lambda: self._control.commit_last(until())
        for level in self._levels:
            yield partial(level.client.wake_with, None)
        yield lambda: self._levels.close(until())
        yield from (partial(self._close_in_time, part) for part in self._parts.closing())
        yield lambda: self._control.wait_for_callbacks(until())
        yield self._control.rate.close
        if self._rules:
            yield self._rules.close
        yield self._wake.close
        if self._tenancy:
            yield self._tenancy.end
        yield self._parts.forget_running

    def _close_in_time(self, closing: ClosablePart) -> None:
        until = -math.inf if self._stop is None or self._steps.hurries else self._stop[1]
        closing.close(max(0.0, until - time.monotonic()))


_RUN, _END = Run.run.__code__, Run._end.__code__
