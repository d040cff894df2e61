"""Lays out the views of `headway top` for a terminal, or for a file."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import click
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.cli.display.map_drawing import LEGEND
from headway.cli.display.texts import printable
from headway.cli.top.quantities import short_duration
from headway.cli.top.view_state import VIEWS, ViewState
from headway.cli.top.views import VIEW_OF, Heading, TableView, ViewRow, summary_cells
from headway.inspection.snapshot import Snapshot

_TONES = {"": "", "warn": "yellow", "bad": "bold red"}
_KEYS = "1-9 view  s sort  r reverse  / filter  p pause  ? help  q quit"
_MOST_NOTES = 3
_GAP = 2  # characters between two columns
_LEAST_TEXT = 14  # characters that a column of text needs
_STALE_AFTER = 10.0  # seconds
_BELOW_LEVELS = ("stuck", "rules", "dead", "members", "changes")
_MOST_BELOW = 6  # rows
_ONCE = ("levels", "stuck", "rules", "members", "tenants", "dead", "relays")

HELP = """\
1 to 9, Tab    switch the view: levels, partitions, stuck records, members, tenants, dead letters, relays, changes,
               rules
s              sort by the next column; after the last one, in the view's own order
r              reverse the order
/ text Enter   show only rows that contain the text; Esc clears the filter
↑ ↓ PgUp PgDn  scroll
p              pause: keep what is on the screen
q              quit

not done       records that are not done, by the offset maps, and not by the commit
oldest         how long the oldest of them has waited
work           how long it takes to do them at the rate of the last half minute
stuck          records that have held back the commit of their partition for longer than a commit takes to come
behind         the records after a stuck one that are not done; with the same key, they wait for it
done ahead     the records after a stuck one that are done; they are not handled again after a restart
since          for how long; > means longer than it was watched

Any key closes this page."""


def screen_of(snapshot: Snapshot | None, state: ViewState, size: tuple[int, int], now: float) -> RenderableType:
    """Return the whole screen, for a terminal with this many columns and lines."""
    if snapshot is None:
        return Text("Reading Kafka …")
    if state.shows_help:
        return Text(HELP)
    notes = [_line(each, "yellow") for each in snapshot.notes[:_MOST_NOTES]]
    found = table_of(snapshot, state)
    rows = page_size(snapshot, size[1])
    last = min(len(found.rows), state.first + rows)
    body: list[RenderableType] = [_table(found, state, found.rows[state.first : last], size[0])]
    used = last - state.first
    if not found.rows:
        body.append(_line(found.empty, "dim"))
        used += 1
    if state.view == "partitions":
        body.append(_line(LEGEND, "dim"))
    if state.view == VIEWS[0]:
        more = list(_more(snapshot, size[0], rows - used))
        body += (table for table, _ in more)
        used += sum(lines for _, lines in more)
    shown = f"{state.first + 1:,} to {last:,} of {len(found.rows):,}" if last - state.first < len(found.rows) else ""
    blank = Text("\n" * (rows - used - 1)) if rows > used else Text("", end="")
    return Group(_head(snapshot, state, now), _tabs(state), *notes, *body, blank, _foot(state, shown))


def _more(snapshot: Snapshot, columns: int, lines: int) -> Iterator[tuple[RenderableType, int]]:
    """Yield the beginnings of other views, with their numbers of lines, as far as there is space for them."""
    for view in _BELOW_LEVELS:
        state = ViewState(view)
        found = table_of(snapshot, state)
        rows = min(len(found.rows), _MOST_BELOW, lines - 3)
        if rows > 0:
            left_out = f", {rows} of {len(found.rows):,}" if rows < len(found.rows) else ""
            title = _line(f"{view} (key {VIEWS.index(view) + 1}{left_out})", "bold reverse")
            yield Group(Text(), title, _table(found, state, found.rows[:rows], columns)), rows + 3
            lines -= rows + 3


def table_of(snapshot: Snapshot, state: ViewState) -> TableView:
    """Return the table of the view, filtered and in the order that the user has chosen."""
    return VIEW_OF[state.view](snapshot).arranged(state)


def page_size(snapshot: Snapshot, lines: int) -> int:
    """Return how many rows fit on a screen with this many lines."""
    # The summary, the names of the views, the headings, the legend of maps, and the keys take a line each.
    return max(1, lines - 5 - min(_MOST_NOTES, len(snapshot.notes)))


def print_once(snapshot: Snapshot, console: Console, wanted: str = "") -> None:
    """Print all views that have something to show, one after the other. Rows without the text `wanted` are left out."""
    with console.capture() as captured:
        console.print(*_parts(snapshot, wanted), sep="\n")
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _parts(snapshot: Snapshot, wanted: str) -> Iterator[RenderableType]:
    yield _line("  ".join(cell.text for cell in summary_cells(snapshot)))
    yield from (_line(note, "yellow") for note in snapshot.notes)
    for view in _ONCE:
        state = ViewState(view, filter=wanted)
        found = table_of(snapshot, state)
        if found.rows:
            yield Text()
            yield _table(found, state, found.rows)
        elif view == VIEWS[0]:
            yield _line(found.empty)


def _head(snapshot: Snapshot, state: ViewState, now: float) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    age = now - snapshot.taken_at
    at = datetime.fromtimestamp(snapshot.taken_at).astimezone().strftime("%H:%M:%S")
    line.append(at, "bold")
    if state.is_paused:
        line.append("  paused", "bold yellow")
    elif age >= _STALE_AFTER:
        line.append(f"  {short_duration(age)} old", "bold red")
    for cell in summary_cells(snapshot):
        line.append("  ")
        line.append(cell.text, _TONES[cell.tone])
    return line


def _tabs(state: ViewState) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for number, view in enumerate(VIEWS, 1):
        line.append(f"{number} {view}", "reverse" if view == state.view else "dim")
        line.append(" ")
    return line


def _foot(state: ViewState, shown: str) -> Text:
    if state.typed is not None:
        return _line(f"filter: {printable(state.typed)}█   Enter keeps it, Esc leaves it as it was", "bold")
    filtered = f"filter: {printable(state.filter)}   " if state.filter else ""
    return _line("   ".join(each for each in (f"{filtered}{_KEYS}", shown) if each), "dim")


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def _table(view: TableView, state: ViewState, rows: Sequence[ViewRow], columns: int | None = None) -> Table:
    """Return the rows as a table that fits in this many columns of the screen, or that is as wide as its content."""
    titles = list(_titles(view, state))
    natural = [max(map(cell_len, [title, *(row[at].text for row in rows)])) for at, title in enumerate(titles)]
    widths = dict(enumerate(natural)) if columns is None else _widths(view.headings, natural, columns)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, width in widths.items():
        justify = view.headings[index].justify
        table.add_column(titles[index], justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(row[index].text, _TONES[row[index].tone]) for index in widths))
    return table


def _widths(headings: Sequence[Heading], natural: Sequence[int], columns: int) -> dict[int, int]:
    """Return the width of each column that is shown.

    If not even the least that each column needs fits, those that matter least are left out. What is left over goes to
    the columns of text.
    """
    least = {
        index: min(width, _LEAST_TEXT) if heading.ratio else width
        for index, (width, heading) in enumerate(zip(natural, headings, strict=True))
    }
    while sum(least.values()) + _GAP * (len(least) - 1) > columns:
        index = max(least, key=lambda each: headings[each].rank)
        if not headings[index].rank:
            break
        del least[index]
    left = columns - sum(least.values()) - _GAP * (len(least) - 1)
    while left > 0 and (short := [index for index in least if least[index] < natural[index]]):
        total = sum(headings[index].ratio for index in short)
        for index, share in [(index, max(1, left * headings[index].ratio // total)) for index in short]:
            more = min(share, left, natural[index] - least[index])
            least[index] += more
            left -= more
    return least


def _titles(view: TableView, state: ViewState) -> Iterator[str]:
    for index, heading in enumerate(view.headings):
        mark = ("▲" if state.reverse == (heading.justify == "right") else "▼") if index == state.column else ""
        yield heading.title + mark
