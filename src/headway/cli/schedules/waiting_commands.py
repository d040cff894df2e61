"""How `headway schedule list` and `stats` report commands that wait for a relay."""

from itertools import islice

from headway.delay.pending import PendingReader
from headway.delay.topic_names import DEFAULT_NAME
from headway.errors import AuthorizationError

MOST_COUNTED = 1_000
"""`list` stops counting commands here, to stay quick."""


def count_commands(reader: PendingReader, most: int | None = None) -> int | None:
    """Count the commands that wait for a relay, stopping one beyond `most`.

    Returns None if there seem to be some, but this client lacks the right to read them.
    """
    try:
        return sum(1 for _ in islice(reader.commands(), None if most is None else most + 1))
    except AuthorizationError:  # the schedules can still be shown
        return None


def waiting(commands: int | None, name: str, most: int | None = None) -> str:
    """Format a sentence about commands of a scheduler that wait, and how to have them carried out.

    >>> waiting(None, "headway-delay")
    'Commands may be waiting for a relay, but this client may only see schedules. `headway relay` carries them out.'
    """
    relay = "`headway relay`" if name == DEFAULT_NAME else f"`headway relay --name {name}`"
    if commands is None:
        return f"Commands may be waiting for a relay, but this client may only see schedules. {relay} carries them out."
    if commands == 1:
        what = "a schedule with an id, a cancellation or a reschedule"
        return f"1 command waits for a relay: {what}. {relay} carries it out."
    number = f"{commands:,}" if most is None or commands <= most else f"More than {most:,}"
    what = "schedules with an id, cancellations, reschedules"
    return f"{number} commands wait for a relay: {what}. {relay} carries them out."
