"""A check of rights that Kafka has refused, because librdkafka reports a refusal once and then retries in silence."""

import logging
from concurrent.futures import Future

from headway.core.rights import Right
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.kafka.binding.time_limits import RIGHTS_ASKED_FOR_EVERY
from headway.runtime.background import in_background
from headway.settings.config import Config, settings_beside

log = logging.getLogger(__name__)

_REPORT_EVERY = 10.0


class AccessWatch:
    """Asks Kafka repeatedly whether refused rights are granted, until they are, without waiting for an answer.

    Without a refusal it asks nothing and keeps no connection.
    """

    def __init__(self, config: Config) -> None:
        self._config = settings_beside(config)
        self._rights: dict[Right, None] = {}
        self._admin: Admin | None = None
        self._asked: Future[Right | None] | None = None
        self._look_at = 0.0
        self._reported_at: float | None = None
        self.missing: Right | None = None

    @property
    def is_on(self) -> bool:
        """True if a right was refused and is not known to have been granted since."""
        return self.missing is not None

    def sentence(self) -> str | None:
        """Return a sentence about the missing right with what to do, or None if no right is missing."""
        return self.missing.missing(self._config) if self.missing else None

    def refused(self, right: Right, now: float) -> str | None:
        """Note a refusal. Returns the sentence about it, if that is due to be reported."""
        self._rights[right] = None
        if self.missing is None:
            self.missing = right
            self._look_at = now + RIGHTS_ASKED_FOR_EVERY
        return self._due(now)

    def look(self, now: float) -> str | None:
        """Check whether the rights are granted. Returns the sentence about a missing one, if due to be reported."""
        if self.missing is None:
            return None
        if self._asked is None:
            if now >= self._look_at:
                self._asked = in_background(self._ask)
        elif self._asked.done():
            asked, self._asked = self._asked, None
            self._look_at = now + RIGHTS_ASKED_FOR_EVERY
            self._note(asked)
        return self._due(now)

    def _ask(self) -> Right | None:
        self._admin = self._admin or Admin(self._config)
        return self._admin.missing(list(self._rights))

    def _note(self, asked: Future[Right | None]) -> None:
        try:
            missing = asked.result()
        except HeadwayError as error:
            log.debug("The check whether a missing right was granted failed, and is repeated: %s", error)
            return
        if missing is None:
            log.info("A right that was missing has been granted: %s.", self.missing)
            self._rights.clear()
            self._admin = self._reported_at = None
        self.missing = missing

    def _due(self, now: float) -> str | None:
        if self.missing is None or (self._reported_at is not None and now - self._reported_at < _REPORT_EVERY):
            return None
        self._reported_at = now
        return self.sentence()
