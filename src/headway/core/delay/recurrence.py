"""Recurring schedules, by cron expression or interval, and the handling of missed times.

Invariant: a recurrence whose zone this machine does not know is not ended by that, because another machine may know it.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from headway.core.untrusted import LATEST, LONGEST_TEXT, Text, Time
from headway.errors import ConfigError

Misfire = Literal["coalesce", "fire", "skip"]
"""After downtime, `coalesce` fires once for all missed times, `fire` for each, `skip` only for those not too old."""

_SHORTEST_INTERVAL = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnknownZoneError(ConfigError):
    """This machine has no data about a time zone. Another machine may have it."""


class Recurrence(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When a schedule fires again. Exactly one of `cron` and `interval` is set; times are in milliseconds.

    `cron` has five fields as in Debian's cron, in the time zone `zone`, including daylight saving time. If the relay
    that fired it did not know the zone, `fired` is when that was, and the schedule is due when a relay tries again.
    """

    cron: Text | None = None
    interval: Time | None = None
    zone: Text = "UTC"
    misfire: Misfire = "coalesce"
    older_than: Time = 0
    expires_after: Time = 0  # how long after its time each record expires; 0 for never
    fired: Time | None = None

    def check(self) -> None:
        """Raise `ConfigError` for fields that form no recurrence, or `UnknownZoneError` if only the zone is unknown."""
        if (self.cron is None) == (self.interval is None):
            raise ConfigError("A recurring schedule needs either a cron expression or an interval.")
        if self.interval is not None and not _SHORTEST_INTERVAL <= self.interval <= LATEST:
            raise ConfigError(
                f"The interval is {self.interval} ms; it must be at least {_SHORTEST_INTERVAL} ms, at most {LATEST}."
            )
        if max(len(self.cron or ""), len(self.zone)) > LONGEST_TEXT:
            raise ConfigError(f"The cron expression or its zone has more than {LONGEST_TEXT} characters.")
        if self.misfire not in get_args(Misfire):
            raise ConfigError(f"The misfire is {self.misfire!r}; it must be one of {', '.join(get_args(Misfire))}.")
        if self.older_than < 0:
            raise ConfigError("older_than must not be negative, because a time cannot be skipped before it is missed.")
        if self.older_than > LATEST:
            raise ConfigError(f"older_than is {self.older_than} ms; it must be at most {LATEST}.")
        if not 0 <= self.expires_after <= LATEST:
            raise ConfigError(f"expires_after is {self.expires_after} ms; it must be above 0, and at most {LATEST} ms.")
        try:
            if self.cron is not None:
                CronSim(self.cron, _EPOCH)
            self._after(0)
        except UnknownZoneError:
            raise
        except (CronSimError, ValueError, OSError, OverflowError) as error:  # OSError: a zone is read from a file
            raise ConfigError(
                f"The schedule {self.cron!r} in the zone {self.zone!r} cannot be read: {error}. Use five fields, such "
                "as '0 17 * * MON-FRI', and a zone such as Europe/Berlin."
            ) from error

    def fires(self, due: int, now: int) -> bool:
        """Return whether a time that has come should be delivered."""
        return self.misfire != "skip" or now - due <= self.older_than

    def following(self, due: int, now: int) -> int | None:
        """Return the next time after `due` to decide about, or None if there is none before the year 10,000.

        Raises `UnknownZoneError` on a machine without data about the zone.

        >>> Recurrence(interval=60_000).following(due=0, now=150_000)
        180000
        >>> Recurrence(interval=60_000, misfire="fire").following(due=0, now=150_000)
        60000
        >>> Recurrence(interval=60_000, misfire="skip", older_than=40_000).following(due=0, now=150_000)
        120000
        """
        passed = {"fire": due, "coalesce": now, "skip": now - self.older_than - 1}[self.misfire]
        try:
            following = self._after(max(due, passed), due)
        except OverflowError:  # the end of the calendar
            return None
        return None if following is None or following > LATEST else following

    def _after(self, passed: int, due: int = 0) -> int | None:
        if self.interval is not None:
            return due + ((passed - due) // self.interval + 1) * self.interval
        start = (_EPOCH + timedelta(milliseconds=passed)).astimezone(self._zone)
        found = next(CronSim(self.cron or "", start), None)
        return None if found is None else round(found.timestamp() * 1000)

    @property
    def _zone(self) -> tzinfo:
        if self.zone == "UTC":  # needs no time zone data, which a slim container may lack
            return UTC
        try:
            return ZoneInfo(self.zone)
        except ZoneInfoNotFoundError as error:
            raise UnknownZoneError(
                f"This machine has no data about the time zone {self.zone!r}. If the name is correct, such as "
                "Europe/Berlin, install newer data: pip install --upgrade tzdata, or the system's package tzdata."
            ) from error
