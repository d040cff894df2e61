"""Shuts down an object that holds threads and clients, so that no interrupt leaves it half done."""

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
    """Run the part of a constructor that starts threads and clients, so that an interrupt leaves none of them behind.

    Interrupts are deferred until the block is complete. One that arrived is raised then, after `close` has released
    what the block started. User code in the block, which may take long, must run in `allow_signals`. Within another
    construction this does nothing: the outer one defers interrupts, and closes everything.
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
    """A list of steps that are all taken, even if some raise errors. Each step must be safe to take twice.

    If an interrupt ends a step, it is taken again with `hurries` set to True, which means that it should not wait, and
    with further interrupts deferred until all steps are over. Between two steps interrupts are deferred, too.
    """

    def __init__(self, make: Callable[[], Iterable[Step]]) -> None:
        self._make = make
        self._left: deque[Step] | None = None
        self._tries = 0  # of the first step that is left
        self._raised: BaseException | None = None
        self._taking = threading.Lock()
        self.is_over = False

    @property
    def hurries(self) -> bool:
        """True while a step is taken again."""
        return self._tries > 1

    def take(self) -> None:
        """Take the remaining steps. The last error is raised at the end.

        A call from within one of the steps, for example by a callback, does nothing.
        """
        if is_on_stack(threading.get_ident(), _TAKE_ALL, self):
            return
        with self._taking, defer_signals():
            self._take_all()

    def _take_all(self) -> None:
        while not self.is_over:
            try:
                self._take_left()
            except Exception:  # the steps could not be made
                raise
            except BaseException as error:
                # Two interrupts within a few instructions: one kept `allow_signals` from deferring further ones, and
                # the other came before the next step was taken.
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
                # More than once: a second interrupt can arrive before signals are deferred again.
                if not isinstance(error, Exception) and self._tries < _MAX_TRIES:
                    continue
            self._left.popleft()
            self._tries = 0
        self.is_over = True

    def _note(self, error: BaseException) -> None:
        if self._raised is None or not self.hurries:  # an error while hurrying matters less than the interrupt
            error.__context__ = error.__context__ or self._raised
            self._raised = error

    def _take_one(self, step: Step) -> None:
        if self.hurries:
            with defer_signals():  # an interrupt may have kept `allow_signals` from restoring it
                step()
        else:
            with allow_signals():
                step()


_TAKE_ALL = EndSteps._take_all.__code__
