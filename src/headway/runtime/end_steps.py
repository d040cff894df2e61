"""The end of an object that holds threads and clients, which no interrupt leaves half done."""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from headway.runtime.deferred_signals import defer_signals

Step = Callable[[], object]


class EndSteps:
    """A list of steps that are all taken, whatever is raised in one of them; each must bear being taken twice.

    A step that an interrupt ended is taken again, with `hurries` true, in which it should not wait, and with further
    interrupts put off until it is over. An interrupt that comes between two steps leaves the rest, and `is_over`, to
    the next call of `take`.
    """

    def __init__(self, make: Callable[[], Iterable[Step]]) -> None:
        self._make = make
        self._left: deque[Step] | None = None
        self._taking = threading.Lock()
        self.hurries = False
        self.is_over = False

    def take(self) -> None:
        """Take the steps that are left; the last error is raised at the end."""
        with self._taking:
            if self._left is None:
                self._left = deque(self._make())
            raised: BaseException | None = None
            while self._left:
                try:
                    self._take_one(self._left[0])
                except BaseException as error:
                    if raised is None or not self.hurries:  # what stops the hurry matters less than the interrupt
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
