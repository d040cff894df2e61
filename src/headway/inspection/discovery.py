"""Chooses the groups to watch: those that the user has named, or those that work with Headway's means."""

from collections.abc import Collection, Mapping, Sequence

from headway.core.levels.naming import level_group
from headway.core.offsets.commit_metadata import UNKNOWN, read_metadata
from headway.inspection.arrangement import levelled_groups
from headway.kafka.reading.groups_reader import GroupReading

MOST_GROUPS = 200
"""The groups that are watched at most. Each of them costs two requests a reading."""

_FIRST_LOOK = 100  # the groups that are examined at once at the start
_LATER_LOOK = 5  # the groups that are examined in each later reading
_NOT_QUEUES = ("headway-dead-",)  # the groups that only remember which dead letters are settled


class Discovery:
    """Decides which groups are watched.

    Without named groups, these are the level groups, and the groups with an offset map in one of their commits. Whether
    a group has a map is only known once its commits are read, so a few more groups are examined in each reading. A
    group that once had a map is watched from then on.

    Args:
        named: The groups that the user has named, by their logical names or by those in Kafka.
    """

    def __init__(self, named: Sequence[str] = ()) -> None:
        self._named = named
        self._existing: set[str] = set()
        self._watched: dict[str, None] = {}
        self._unexamined: list[str] = []
        self._is_first = True
        self.has_lost = False  # whether the latest listing lacks groups that were watched, as after a broker's restart

    def list_groups(self, existing: Collection[str], schedulers: Collection[str]) -> None:
        """Take in the names of all groups. The groups of schedulers' relays are left out."""
        self._existing = {each for each in existing if not each.startswith(_NOT_QUEUES) and each not in schedulers}
        self.has_lost = not self._existing.issuperset(self._watched)
        levelled = levelled_groups(self._existing)
        of_levels = [level_group(base, level) for base, count in levelled.items() for level in range(count)]
        if self._named:
            wanted = {group for name in self._named for group in self._named_groups(name, levelled)}
            self._watched = dict.fromkeys(sorted(wanted))
            return
        kept = [each for each in self._watched if each in self._existing]
        self._watched = dict.fromkeys([*kept, *of_levels])
        self._unexamined = sorted(self._existing - self._watched.keys())

    def _named_groups(self, name: str, levelled: Mapping[str, int]) -> list[str]:
        levels = [level_group(name, level) for level in range(levelled.get(name, 0))]
        return levels + [name] * (name in self._existing or not levels)

    def next_groups(self) -> list[str]:
        """Return the groups to read now: those that are watched, and a few that are examined."""
        count = _FIRST_LOOK if self._is_first else _LATER_LOOK
        self._is_first = False
        examined, self._unexamined = self._unexamined[:count], self._unexamined[count:]
        return [*self._watched, *examined][:MOST_GROUPS]

    def examine(self, readings: Mapping[str, GroupReading]) -> dict[str, GroupReading]:
        """Return the readings of the groups that are watched from now on."""
        for group, reading in readings.items():
            if group not in self._watched and _has_map(reading):
                self._watched[group] = None
        return {group: reading for group, reading in readings.items() if group in self._watched}

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about groups that are not shown."""
        if missing := [each for each in self._named if not self._is_there(each)]:
            return [
                f"Kafka has no group {each} yet. A group exists once it has members or commits." for each in missing
            ]
        if self._named:
            return []
        notes = []
        if len(self._watched) > MOST_GROUPS:
            notes.append(f"Only {MOST_GROUPS} of {len(self._watched):,} groups are read. Name the ones to watch.")
        if others := len(self._existing - self._watched.keys()):
            which = (
                "1 group without an offset map or levels is"
                if others == 1
                else f"{others:,} groups without an offset map or levels are"
            )
            notes.append(f"{which} not shown. Name a group to see it.")
        return notes

    def _is_there(self, name: str) -> bool:
        return name in self._existing or level_group(name, 0) in self._existing


def _has_map(reading: GroupReading) -> bool:
    """Return whether a commit of the group has an offset map, or the failed attempts of records."""
    for offset, text in reading.commits.values():
        metadata = read_metadata(text, offset) if text else None
        if metadata and metadata.encoding not in ("none", UNKNOWN) and metadata.stream_time is None:
            return True
    return False
