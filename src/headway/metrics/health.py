"""The health of a client, as probes report it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """Why a client is not healthy.

    Attributes:
        not_live: Sentences that say why only a restart can help. Empty if the client is alive.
        not_ready: Sentences that say why the client does not do its work now. Empty if it does, or can.
    """

    not_live: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()


CheckHealth = Callable[[], Health]
"""Returns the present health of a client. Any thread can call it."""
