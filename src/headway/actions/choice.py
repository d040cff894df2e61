"""The dead letters that a command, or an action of the dashboard, selects."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headway.inspection.dead_topic import DeadTopic
from headway.inspection.letters import Filter, Letter, LetterPosition

Show = Callable[[int, int], object]
"""Shows progress. The arguments are the number of letters that were read, twice, as a progress line takes them."""


class Choice(NamedTuple):
    """The letters that a command selects: the letters at `places` or, without places, those that match `filter`.

    `limit` is the maximum number of letters that the command takes.
    """

    places: frozenset[LetterPosition] = frozenset()
    filter: Filter = Filter()
    settled_too: bool = False
    limit: int | None = None


def chosen_letters(dead: DeadTopic, choice: Choice, existing: dict[int, list[int]], show: Show) -> Iterator[Letter]:
    """Yield the selected letters, and record in `existing` the offsets of all letters that were read.

    A named letter is yielded even if it is settled. Raises `KafkaError` if a named letter does not exist.
    """
    missing = set(choice.places)
    for seen, letter in enumerate(dead.letters({place.partition for place in choice.places} or None), 1):
        existing.setdefault(letter.place.partition, []).append(letter.place.offset)
        show(seen, seen)
        if letter.place in missing:
            missing.remove(letter.place)
            yield letter
        elif not choice.places and (choice.settled_too or not letter.settled) and choice.filter.matches(letter):
            yield letter
    for place in sorted(missing):
        raise dead.no_letter(place)


class OpenLetters(NamedTuple):
    """The offsets of open letters by partition, and of all letters that were read to find the open ones."""

    offsets: Mapping[int, Sequence[int]]
    existing: Mapping[int, Sequence[int]]

    @property
    def size(self) -> int:
        """The number of open letters."""
        return sum(map(len, self.offsets.values()))


def open_letters(dead: DeadTopic, choice: Choice, show: Show) -> OpenLetters:
    """Find the open letters among the selected ones. Raises the same errors as `chosen_letters`."""
    existing: dict[int, list[int]] = {}
    offsets: dict[int, list[int]] = defaultdict(list)
    size = 0
    for letter in chosen_letters(dead, choice, existing, show):
        if not letter.settled:
            offsets[letter.place.partition].append(letter.place.offset)
            size += 1
        if size == choice.limit:
            break
    return OpenLetters(offsets, existing)
