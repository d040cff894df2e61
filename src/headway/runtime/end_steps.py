"""Starts and shuts down an object that owns threads and clients, so that an interrupt never leaves it half done."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from headway.runtime.call_stacks import is_on_stack
from headway.runtime.deferred_signals import allow_signals, defer_signals

Step = Callable[[], object]

_MAX_TRIES = 4
_this_thread = threading.local()


@contextmanager
def construction(close: Callable[[], object]) -> Iterator[None]:
    """Run the part of a constructor that starts threads and clients. An interrupt then leaves none of them behind.

    Interrupts are deferred until the end of the block. If an interrupt has arrived, `close` first releases everything
    that the block has started, and then the interrupt is raised. User code in the block must run in `allow_signals`,
    because it might take a long time.

    Within the block of another `construction`, this context manager does nothing, because the outer block defers
    interrupts and closes everything.
    """
    if getattr(_this_thread, "is_constructing", False):
        yield
        return
    is_complete = False
    try:
        with defer_signals():
            _this_thread.is_constructing = True
            try:
                yield
                is_complete = True
            finally:
                _this_thread.is_constructing = False
    except BaseException:
        if is_complete:
            close()
        raise


class EndSteps:
    """The steps of a shutdown. All of them are run, even if some raise errors. Each step must be safe to run twice.

    If an interrupt ends a step, the step is run again with `hurries` set to True, so that it does not wait. From then
    on, further interrupts are deferred until all steps are done. Interrupts are also deferred between two steps.
    """

    def __init__(self, make: Callable[[], Iterable[Step]]) -> None:
        self._make = make
        self._left: deque[Step] | None = None
        self._tries = 0  # how many times the first remaining step has been started
        self._raised: BaseException | None = None
        self._taking = threading.Lock()
        self.is_over = False

    @property
    def hurries(self) -> bool:
        """True while a step is being run again after an interrupt."""
        return self._tries > 1

    def take(self) -> None:
        """Run the remaining steps, and then raise the last error, if any step has raised one.

        If a step itself calls this, for example through a callback, the call does nothing.
        """
        if is_on_stack(threading.get_ident(), _TAKE_ALL, self):
            return
        with self._taking, defer_signals():
            self._take_all()

    def _take_all(self) -> None:
        while not self.is_over:
            try:
                self._take_left()
            except Exception:  # `make` failed, so there are no steps to run
                raise
            except BaseException as error:
                # This happens only after two interrupts within a few instructions: the first one kept `allow_signals`
                # from deferring signals again, and the second one arrived before the next step was started.
                self._note(error)
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised

    def _take_left(self) -> None:
        if self._left is None:
            self._left = deque(self._make())
        while self._left:
            self._tries += 1
            try:
                self._take_one(self._left[0])
            except BaseException as error:
                self._note(error)
                # The step can be repeated more than once, because a second interrupt can arrive before signals are
                # deferred.
                if not isinstance(error, Exception) and self._tries < _MAX_TRIES:
                    continue
            self._left.popleft()
            self._tries = 0
        self.is_over = True

    def _note(self, error: BaseException) -> None:
        if self._raised is None or not self.hurries:  # an error in a hurried step must not hide the interrupt
            error.__context__ = error.__context__ or self._raised
            self._raised = error

    def _take_one(self, step: Step) -> None:
        if self.hurries:
            with defer_signals():  # an interrupt might have kept `allow_signals` from deferring signals again
                step()
        else:
            with allow_signals():
                step()


_TAKE_ALL = EndSteps._take_all.__code__
