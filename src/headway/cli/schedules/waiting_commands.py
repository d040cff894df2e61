"""Commands that wait for a relay, as `headway schedule list` and `stats` tell of them."""

from itertools import islice

from headway.delay.pending import PendingReader
from headway.delay.topic_names import DEFAULT_NAME
from headway.errors import AuthorizationError

MOST_COUNTED = 1_000
"""The commands up to which a quick look counts them."""


def count_commands(reader: PendingReader, most: int | None = None) -> int | None:
    """Return how many commands wait for a relay, up to `most` and one more.

    None if there seem to be some, and this client may not read them.
    """
    try:
        return sum(1 for _ in islice(reader.commands(), None if most is None else most + 1))
    except AuthorizationError:  # the schedules are to be seen all the same
        return None


def waiting(commands: int | None, name: str, most: int | None = None) -> str:
    """Return a sentence about so many waiting commands of a scheduler, and what carries them out.

    >>> waiting(None, "headway-delay")
    'Commands seem to wait for a relay; this client may not read them. `headway relay` carries them out.'
    """
    relay = "`headway relay`" if name == DEFAULT_NAME else f"`headway relay --name {name}`"
    if commands is None:
        return f"Commands seem to wait for a relay; this client may not read them. {relay} carries them out."
    if commands == 1:
        what = "a schedule with an id, a cancellation or a reschedule"
        return f"1 command waits for a relay: {what}. {relay} carries it out."
    number = f"{commands:,}" if most is None or commands <= most else f"More than {most:,}"
    what = "schedules with an id, cancellations, reschedules"
    return f"{number} commands wait for a relay: {what}. {relay} carries them out."
