"""The live screen of `headway top`."""

import sys
import time

from rich.console import Console
from rich.live import Live

from headway.cli.top.keyboard import Keyboard
from headway.cli.top.pages import page_size, screen_of, table_of
from headway.cli.top.view_state import ViewState
from headway.inspection.inspector import Inspector
from headway.inspection.snapshot import Snapshot

_LOOK_EVERY = 0.2  # seconds between two looks at whether there is a new snapshot, or the terminal has another size


def console_of(*, width: int | None = None) -> Console:
    """Return a console that takes no text as markup, and that has no colours if stdout is not a terminal."""
    return Console(highlight=False, markup=False, emoji=False, width=width)


def can_be_live(console: Console) -> bool:
    """Return whether stdin and stdout are a terminal that can draw a screen."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()


class TopScreen:
    """Shows snapshots until the user quits.

    Args:
        inspector: Reads the snapshots.
        console: The terminal.
        state: What is shown at first.
    """

    def __init__(self, inspector: Inspector, console: Console, state: ViewState) -> None:
        self._inspector = inspector
        self._console = console
        self._state = state
        self._snapshot: Snapshot | None = None

    def run(self) -> None:
        """Show snapshots until the user quits. Raises `KafkaError` if Kafka does not answer at the start."""
        with (
            Keyboard(sys.stdin.fileno()) as keyboard,
            Live(console=self._console, screen=True, auto_refresh=False) as screen,
        ):
            drawn: object = None
            while True:
                self._take_snapshot()
                second = int(time.time())
                if drawn != (now := (self._state, id(self._snapshot), self._console.size, second)):
                    page = screen_of(self._snapshot, self._state, self._console.size, time.time())
                    screen.update(page, refresh=True)
                    drawn = now
                key = keyboard.key(_LOOK_EVERY)
                if keyboard.is_closed or (key and not self._press(key)):
                    return

    def _take_snapshot(self) -> None:
        if self._snapshot is None:
            self._snapshot = self._inspector.latest()
        elif not self._state.is_paused:
            self._snapshot = self._inspector.newer(self._snapshot, 0.0)

    def _press(self, key: str) -> bool:
        """Act on a key. Returns False if it ends the program."""
        if self._snapshot is None:
            return key != "q"
        view = table_of(self._snapshot, self._state)
        page = page_size(self._snapshot, self._console.size.height)
        state = self._state.after(key, len(view.headings), len(view.rows), page)
        self._state = state or self._state
        return state is not None
