"""The existing topics: a listing lacks topics that a client has no right to see, so these are asked for by name."""

from collections.abc import Callable, Collection, Iterator, Mapping


class TopicListing(Mapping[str, int]):
    """The topics that a client sees, each with its number of partitions.

    If a topic is looked up but not listed, Kafka is asked for it by name, once. Its answer tells a missing topic from
    one that the client has no right to see. Iteration and length cover only the topics that were seen.

    Args:
        seen: The topics of a listing.
        ask: Returns how many partitions each topic has, None if it does not exist. Raises `AuthorizationError`, for the
            operation that it is given, if Kafka does not tell this client.
        wanted: The operation for which topics are looked up.
    """

    def __init__(
        self,
        seen: Mapping[str, int],
        ask: Callable[[Collection[str], str], Mapping[str, int | None]],
        wanted: str = "Describe",
    ) -> None:
        self.seen = seen
        self._ask = ask
        self._wanted = wanted
        self._asked: dict[str, int | None] = {}

    def wanting(self, operation: str) -> "TopicListing":
        """Return the same listing for topics that are looked up for another operation."""
        return TopicListing(self.seen, self._ask, operation)

    def look_up(self, topics: Collection[str]) -> dict[str, int]:
        """Return those of these topics that exist, each with its number of partitions; unknown ones are asked for."""
        if unknown := [topic for topic in topics if topic not in self.seen and topic not in self._asked]:
            self._asked |= self._ask(unknown, self._wanted)
        counts = {topic: self.seen.get(topic, self._asked.get(topic)) for topic in topics}
        return {topic: count for topic, count in counts.items() if count is not None}

    def __getitem__(self, topic: str) -> int:
        return self.look_up([topic])[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self.seen)

    def __len__(self) -> int:
        return len(self.seen)
