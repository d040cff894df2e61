"""The dead letters that the arguments of a command select."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import click

from headway.cli.display.terminal import ProgressLine
from headway.inspection.dead_topic import DeadTopic
from headway.inspection.letters import Filter, Letter, LetterPosition


class Choice(NamedTuple):
    """The letters that a command selects: the letters at `places` or, without places, those that match `filter`.

    `limit` is the maximum number of letters that the command takes.
    """

    places: frozenset[LetterPosition] = frozenset()
    filter: Filter = Filter()
    settled_too: bool = False
    limit: int | None = None

    def require_one_way(self, *, everything: bool) -> None:
        """Raise `UsageError` unless letters are named, selected by a filter, or all selected with --all."""
        if self.places and (everything or self.filter or self.limit):
            raise click.UsageError(
                "PARTITION:OFFSET selects individual dead letters. Do not combine it with --all, --max or a filter."
            )
        if not (self.places or everything or self.filter):
            raise click.UsageError(
                "Select the letters with PARTITION:OFFSET, --all (every open letter), or a filter such as --exception."
            )


def chosen_letters(
    dead: DeadTopic, choice: Choice, existing: dict[int, list[int]], progress: ProgressLine
) -> Iterator[Letter]:
    """Yield the selected letters, and record in `existing` the offsets of all letters that were read.

    A named letter is yielded even if it is settled. Raises `KafkaError` if a named letter does not exist.
    """
    missing = set(choice.places)
    for seen, letter in enumerate(dead.letters({place.partition for place in choice.places} or None), 1):
        existing.setdefault(letter.place.partition, []).append(letter.place.offset)
        progress.show(seen, seen)
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


def open_letters(dead: DeadTopic, choice: Choice, progress: ProgressLine) -> OpenLetters:
    """Find the open letters among the selected ones. Raises the same errors as `chosen_letters`."""
    existing: dict[int, list[int]] = {}
    offsets: dict[int, list[int]] = defaultdict(list)
    size = 0
    for letter in chosen_letters(dead, choice, existing, progress):
        if not letter.settled:
            offsets[letter.place.partition].append(letter.place.offset)
            size += 1
        if size == choice.limit:
            break
    return OpenLetters(offsets, existing)
