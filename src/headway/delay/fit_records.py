"""Records of relays that fit the lines, in the ladder's topic: the use of each line, and recent delays."""

import logging
from collections.abc import Mapping

from headway.core.delay.line_retirement import FitState, read_fit_state
from headway.core.delay.recent_delays import RecentDelays
from headway.errors import UnreadableError

log = logging.getLogger(__name__)

FIT_KEY = "fit"
_DELAYS = "delays:"


def delays_key(number: int) -> str:
    """Return the key of the delays that came in to a partition."""
    return f"{_DELAYS}{number}"


def fit_state_from(topic: str, value: bytes | None) -> FitState:
    """Return the state of the lines from its stored form; an empty one, and a warning, if it cannot be read."""
    if value is None:
        return FitState()
    try:
        return read_fit_state(value)
    except UnreadableError as error:
        log.warning("A record in %s is passed over: %s The relays that fit the lines write a good one.", topic, error)
        return FitState()


def delays_from(topic: str, values: Mapping[str, bytes], partitions: int) -> dict[int, RecentDelays]:
    """Return the delays that came in to each partition, as far as they are stored and can be read."""
    found: dict[int, RecentDelays] = {}
    for number in range(partitions):
        if (value := values.get(delays_key(number))) is not None:
            try:
                found[number] = RecentDelays.decode(value)
            except UnreadableError as error:
                log.warning("A record in %s is passed over: %s", topic, error)
    return found
