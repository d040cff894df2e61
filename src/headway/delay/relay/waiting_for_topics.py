"""A relay's wait for its scheduler's topics: it can be started before anything was ever scheduled."""

import logging
from collections.abc import Callable

from headway.delay.topic_names import TopicNames
from headway.errors import AuthenticationError, AuthorizationError, KafkaError
from headway.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.5  # seconds


def await_topics(
    are_there: Callable[[], bool], is_stopped: Callable[[], bool], names: TopicNames, wake: Wakeup
) -> bool:
    """Wait until the scheduler has topics. Returns False if the relay is stopped first. Logs once what it waits for.

    Raises `KafkaError`, as `are_there` does, if the login or a right is refused or no broker has ever answered.
    """
    has_said = False
    while not is_stopped():
        try:
            if are_there():
                return True
        except (AuthenticationError, AuthorizationError):
            raise
        except KafkaError as error:
            if not has_said:
                raise
            log.debug("Cannot find out now whether the topics exist: %s", error)
        if not has_said:
            has_said = True
            log.warning(
                "The scheduler %s has no topics yet, so the relay waits for them. A Scheduler of this name creates "
                "them on first use, and so does `headway schedule init --name %s`.",
                names.name,
                names.name,
            )
        wake.wait(_LOOK_EVERY)
    return False
