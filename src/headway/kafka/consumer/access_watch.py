"""Checks whether missing permissions have been granted.

librdkafka reports a missing permission only once, and then retries silently.
"""

import logging
from concurrent.futures import Future

from headway.core.permissions import Permission
from headway.errors import HeadwayError
from headway.kafka.admin import Admin
from headway.kafka.binding.time_limits import PERMISSIONS_ASKED_FOR_EVERY
from headway.runtime.background import in_background
from headway.settings.config import Config, settings_beside

log = logging.getLogger(__name__)

_REPORT_EVERY = 10.0


class AccessWatch:
    """Checks repeatedly whether missing permissions have been granted, until all of them are.

    No method waits for an answer.

    While no permission is missing, the watch sends no requests and keeps no connection.
    """

    def __init__(self, config: Config) -> None:
        self._config = settings_beside(config)
        self._permissions: dict[Permission, None] = {}
        self._admin: Admin | None = None
        self._asked: Future[Permission | None] | None = None
        self._look_at = 0.0
        self._reported_at: float | None = None
        self.missing: Permission | None = None

    @property
    def is_on(self) -> bool:
        """True if a permission was reported as missing, and no later check has found that it was granted."""
        return self.missing is not None

    def sentence(self) -> str | None:
        """Return a sentence that names the missing permission and what to do, or None if no permission is missing."""
        return self.missing.missing(self._config) if self.missing else None

    def refused(self, permission: Permission, now: float) -> str | None:
        """Start to check this permission, which Kafka has reported as missing.

        Returns a sentence about the missing permission if it is time to report it, otherwise None.
        """
        self._permissions[permission] = None
        if self.missing is None:
            self.missing = permission
            self._look_at = now + PERMISSIONS_ASKED_FOR_EVERY
        return self._due(now)

    def look(self, now: float) -> str | None:
        """Check whether the permissions have been granted.

        Returns a sentence about a missing permission if it is time to report it, otherwise None.
        """
        if self.missing is None:
            return None
        if self._asked is None:
            if now >= self._look_at:
                self._asked = in_background(self._ask)
        elif self._asked.done():
            asked, self._asked = self._asked, None
            self._look_at = now + PERMISSIONS_ASKED_FOR_EVERY
            self._note(asked)
        return self._due(now)

    def _ask(self) -> Permission | None:
        self._admin = self._admin or Admin(self._config)
        return self._admin.missing(list(self._permissions))

    def _note(self, asked: Future[Permission | None]) -> None:
        try:
            missing = asked.result()
        except HeadwayError as error:
            log.debug(
                "Could not check whether a missing permission has been granted. The check is repeated. The reason: %s",
                error,
            )
            return
        if missing is None:
            log.info("A permission that was missing has been granted: %s.", self.missing)
            self._permissions.clear()
            self._admin = self._reported_at = None
        self.missing = missing

    def _due(self, now: float) -> str | None:
        if self.missing is None or (self._reported_at is not None and now - self._reported_at < _REPORT_EVERY):
            return None
        self._reported_at = now
        return self.sentence()
