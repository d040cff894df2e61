"""What the user has chosen to see, and how keys change it."""

from dataclasses import dataclass, replace

VIEWS = ("levels", "partitions", "stuck", "members", "tenants", "dead", "relays", "changes", "rules")
"""The views, in the order of the keys 1 to 9."""

_MOST_TYPED = 60


@dataclass(frozen=True, slots=True)
class ViewState:
    """The view that is shown, and its order, filter and position.

    Args:
        view: The name of the view.
        column: The column by which rows are sorted, or None for the view's own order.
        reverse: Whether the order is reversed.
        filter: Only rows that contain this text are shown.
        typed: The text of the filter while it is typed, or None.
        first: The first row that is shown.
        is_paused: Whether the screen keeps its snapshot.
        shows_help: Whether the keys are explained.
    """

    view: str = VIEWS[0]
    column: int | None = None
    reverse: bool = False
    filter: str = ""
    typed: str | None = None
    first: int = 0
    is_paused: bool = False
    shows_help: bool = False

    def after(self, key: str, columns: int, rows: int, page: int) -> "ViewState | None":
        """Return the state after a key, or None if the key ends the program.

        Args:
            key: A character, or the name of a key: `up`, `down`, `pageup`, `pagedown`, `home`, `end`, `left`, `right`,
                `enter`, `escape`, `backspace` or `tab`.
            columns: The number of columns of the view.
            rows: The number of rows that match the filter.
            page: The number of rows that fit on the screen.

        >>> ViewState().after("3", 9, 0, 20).view
        'stuck'
        >>> ViewState().after("q", 9, 0, 20) is None
        True
        """
        if self.typed is not None:
            return self._typing(key, self.typed)
        if self.shows_help:
            return None if key == "q" else replace(self, shows_help=False)
        if key == "q":
            return None
        if key.isdecimal() and 1 <= int(key) <= len(VIEWS):
            return self._switched(int(key) - 1)
        return self._moved(key, rows, page) or self._arranged(key, columns)

    def _typing(self, key: str, typed: str) -> "ViewState":
        if key == "enter":
            return replace(self, filter=typed, typed=None, first=0)
        if key == "escape":
            return replace(self, typed=None)
        if key == "backspace":
            return replace(self, typed=typed[:-1])
        if len(key) == 1 and key.isprintable() and len(typed) < _MOST_TYPED:
            return replace(self, typed=typed + key)
        return self

    def _switched(self, index: int) -> "ViewState":
        return replace(self, view=VIEWS[index % len(VIEWS)], column=None, reverse=False, first=0)

    def _moved(self, key: str, rows: int, page: int) -> "ViewState | None":
        last = max(0, rows - page)
        to = {
            "up": self.first - 1,
            "down": self.first + 1,
            "pageup": self.first - page,
            "pagedown": self.first + page,
            "home": 0,
            "end": last,
        }.get(key)
        return None if to is None else replace(self, first=max(0, min(to, last)))

    def _arranged(self, key: str, columns: int) -> "ViewState":
        index = VIEWS.index(self.view)
        if key in ("tab", "right", "left"):
            return self._switched(index + (-1 if key == "left" else 1))
        if key == "s":
            column = 0 if self.column is None else self.column + 1
            return replace(self, column=column if column < columns else None, first=0)
        if key == "escape":
            return replace(self, filter="", first=0)
        return self._turned(key)

    def _turned(self, key: str) -> "ViewState":
        """Return the state after a key that turns something on or off, or the same state after any other key."""
        match key:
            case "r":
                return replace(self, reverse=not self.reverse)
            case "/":
                return replace(self, typed="")
            case "p" | " ":
                return replace(self, is_paused=not self.is_paused)
            case "?" | "h":
                return replace(self, shows_help=True)
            case _:
                return self
