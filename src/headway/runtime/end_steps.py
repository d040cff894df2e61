"""Shuts down an object that holds threads and clients, so that no interrupt leaves it half done."""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from headway.runtime.deferred_signals import defer_signals

Step = Callable[[], object]


class EndSteps:
    """A list of steps that are all taken, even if some raise errors. Each step must be safe to take twice.

    If an interrupt ends a step, it is taken again with `hurries` set to True, which means that it should not wait, and
    with further interrupts deferred until it is over. If an interrupt arrives between two steps, the rest of them, and
    `is_over`, are left to the next call of `take`.
    """

    def __init__(self, make: Callable[[], Iterable[Step]]) -> None:
        self._make = make
        self._left: deque[Step] | None = None
        self._taking = threading.Lock()
        self.hurries = False
        self.is_over = False

    def take(self) -> None:
        """Take the remaining steps. The last error is raised at the end."""
        with self._taking:
            if self._left is None:
                self._left = deque(self._make())
            raised: BaseException | None = None
            while self._left:
                try:
                    self._take_one(self._left[0])
                except BaseException as error:
                    if raised is None or not self.hurries:  # an error while hurrying matters less than the interrupt
                        error.__context__ = error.__context__ or raised
                        raised = error
                    if not isinstance(error, Exception) and not self.hurries:
                        self.hurries = True
                        continue
                self._left.popleft()
                self.hurries = False
            self.is_over = True
            if raised is not None:
                raise raised

    def _take_one(self, step: Step) -> None:
        if self.hurries:
            with defer_signals():
                step()
        else:
            step()
