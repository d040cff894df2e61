"""The watch for rights that Kafka has refused: librdkafka reports a refusal once, and asks on in silence."""

import logging
from concurrent.futures import Future

from headway.core.rights import Right
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.kafka.binding.time_limits import RIGHTS_ASKED_FOR_EVERY
from headway.runtime.background import in_background
from headway.settings.config import Config, settings_beside

log = logging.getLogger(__name__)

_SAY_EVERY = 10.0


class AccessWatch:
    """A watch that asks for refused rights now and then until none is refused; never waits for an answer.

    Without a refusal it asks nothing and keeps no connection.
    """

    def __init__(self, config: Config) -> None:
        self._config = settings_beside(config)
        self._rights: dict[Right, None] = {}
        self._admin: Admin | None = None
        self._asked: Future[Right | None] | None = None
        self._look_at = 0.0
        self._said_at: float | None = None
        self.missing: Right | None = None

    @property
    def is_on(self) -> bool:
        """True if a right was refused and is not known to be granted since."""
        return self.missing is not None

    def sentence(self) -> str | None:
        """Return a sentence with the missing right and what to do, None if none is missing."""
        return self.missing.missing(self._config) if self.missing else None

    def refused(self, right: Right, now: float) -> str | None:
        """Note a refusal; return the sentence about it, if it is due to be reported."""
        self._rights[right] = None
        if self.missing is None:
            self.missing = right
            self._look_at = now + RIGHTS_ASKED_FOR_EVERY
        return self._due(now)

    def look(self, now: float) -> str | None:
        """Find out if the rights are there again; return the sentence, if it is due to be reported again."""
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
            log.debug("Whether a right is granted is not known yet: %s", error)
            return
        if missing is None:
            log.info("Granted by now: %s.", self.missing)
            self._rights.clear()
            self._admin = self._said_at = None
        self.missing = missing

    def _due(self, now: float) -> str | None:
        if self.missing is None or (self._said_at is not None and now - self._said_at < _SAY_EVERY):
            return None
        self._said_at = now
        return self.sentence()
