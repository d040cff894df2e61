"""The records that relays use to choose delay topics: the use of each delay topic, and recent delays."""

import logging
from collections.abc import Mapping

from headway.core.delay.delay_topic_retirement import FitState, read_fit_state
from headway.core.delay.recent_delays import RecentDelays
from headway.errors import UnreadableError

log = logging.getLogger(__name__)

FIT_KEY = "fit"
_DELAYS = "delays:"


def delays_key(number: int) -> str:
    """Return the key under which the recent delays of a partition are stored."""
    return f"{_DELAYS}{number}"


def fit_state_from(topic: str, value: bytes | None) -> FitState:
    """Read the stored state of the delay topics. If it is unreadable, log a warning and return an empty state."""
    if value is None:
        return FitState()
    try:
        return read_fit_state(value)
    except UnreadableError as error:
        log.warning("A record in %s is skipped: %s Relays that fit the delay topics replace it.", topic, error)
        return FitState()


def delays_from(topic: str, values: Mapping[str, bytes], partitions: int) -> dict[int, RecentDelays]:
    """Read the recent delays of each partition. Partitions without readable delays are left out."""
    found: dict[int, RecentDelays] = {}
    for number in range(partitions):
        if (value := values.get(delays_key(number))) is not None:
            try:
                found[number] = RecentDelays.decode(value)
            except UnreadableError as error:
                log.warning("A record in %s is skipped: %s", topic, error)
    return found
