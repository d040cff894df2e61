"""Recurring schedules, by cron expression or interval, and the handling of missed times.

Invariant: a recurring schedule does not end because this machine has no data about its time zone; another machine may
have the data.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from headway.core.untrusted import LATEST, LONGEST_TEXT, Text, Time
from headway.errors import ConfigError

Misfire = Literal["coalesce", "fire", "skip"]
"""How to handle times that were missed while no relay was running.

`coalesce` fires once for all of them, `fire` fires for each of them, and `skip` fires only for those that are recent
enough.
"""

_SHORTEST_INTERVAL = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnknownZoneError(ConfigError):
    """This machine has no data about a time zone. Another machine may have the data."""


class Recurrence(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The rule that decides when a schedule fires again.

    Exactly one of `cron` and `interval` is set. Times are in milliseconds.

    `cron` has five fields as in Debian's cron. The times of the expression are in the time zone `zone`, including
    daylight saving time. `fired` is None unless a relay could not compute the next time because it has no data about
    the zone. In that case, `fired` is the time for which the schedule last fired, and the schedule's due time is when a
    relay tries again to compute the next time.
    """

    cron: Text | None = None
    interval: Time | None = None
    zone: Text = "UTC"
    misfire: Misfire = "coalesce"
    older_than: Time = 0
    expires_after: Time = 0  # how long after its due time each record expires; 0 for never
    fired: Time | None = None

    def check(self) -> None:
        """Raise `ConfigError` if a field is not valid, or `UnknownZoneError` if only the time zone is unknown."""
        if (self.cron is None) == (self.interval is None):
            raise ConfigError("A recurring schedule must have either a cron expression or an interval, but not both.")
        if self.interval is not None and not _SHORTEST_INTERVAL <= self.interval <= LATEST:
            raise ConfigError(
                f"The interval is {self.interval} ms; it must be from {_SHORTEST_INTERVAL} ms to {LATEST} ms."
            )
        if (longest := max(len(self.cron or ""), len(self.zone))) > LONGEST_TEXT:
            raise ConfigError(
                f"The cron expression or its time zone has {longest} characters; each can have at most {LONGEST_TEXT}."
            )
        if self.misfire not in get_args(Misfire):
            raise ConfigError(f"misfire is {self.misfire!r}; it must be one of {', '.join(get_args(Misfire))}.")
        if self.older_than < 0:
            raise ConfigError(
                f"older_than is {self.older_than} ms; it must not be negative, because a time cannot be skipped before "
                "it is missed."
            )
        if self.older_than > LATEST:
            raise ConfigError(f"older_than is {self.older_than} ms; it must be at most {LATEST} ms.")
        if not 0 <= self.expires_after <= LATEST:
            raise ConfigError(f"expires_after is {self.expires_after} ms; it must be from 0 (never) to {LATEST} ms.")
        try:
            if self.cron is not None:
                CronSim(self.cron, _EPOCH)
            self._after(0)
        except UnknownZoneError:
            raise
        # OSError means that the zone's file is not readable
        except (CronSimError, ValueError, OSError, OverflowError) as error:
            raise ConfigError(
                f"The schedule {self.cron!r} in the zone {self.zone!r} cannot be read: {error}. Use five fields, such "
                "as '0 17 * * MON-FRI', and a zone such as Europe/Berlin."
            ) from error

    def fires(self, due: int, now: int) -> bool:
        """Return whether to deliver the record for the time `due`, which is not in the future."""
        return self.misfire != "skip" or now - due <= self.older_than

    def following(self, due: int, now: int) -> int | None:
        """Return the next time after `due` at which the schedule fires.

        Returns None if the schedule ends before the year 10,000.

        With `misfire="fire"`, the result can be a time that was missed. With `misfire="skip"`, the result can be a
        missed time only if that time is recent enough. Raises `UnknownZoneError` on a machine without data about the
        time zone.

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
        if self.zone == "UTC":  # UTC must work even in a slim container without time zone data
            return UTC
        try:
            return ZoneInfo(self.zone)
        except ZoneInfoNotFoundError as error:
            raise UnknownZoneError(
                f"This machine has no data about the time zone {self.zone!r}. Check the name; it must be written like "
                "Europe/Berlin. If it is correct, install newer data with pip install --upgrade tzdata, or with the "
                "system's package tzdata."
            ) from error
