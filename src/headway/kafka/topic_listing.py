"""The existing topics. A topic that Kafka's listing does not show is looked up by its name.

Kafka's listing does not show the topics that a client is not permitted to see. Only a request for the topic's name
distinguishes such a topic from one that does not exist.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping


class TopicListing(Mapping[str, int]):
    """The topics that a client is permitted to see, each with its number of partitions.

    When a topic that is not listed is looked up, one request for the topic is sent to Kafka. Iteration and `len()`
    cover only the listed topics.

    Args:
        seen: The topics in Kafka's listing, each with its number of partitions.
        ask: Takes topics and an operation, and returns each topic's number of partitions, or None if the topic does not
            exist. Raises an `AuthorizationError` that names the operation if the client is not permitted to describe a
            topic.
        wanted: The operation that the client is about to perform on the topics.
        missing: Topics that do not exist, so that no request for them is necessary.
    """

    def __init__(
        self,
        seen: Mapping[str, int],
        ask: Callable[[Collection[str], str], Mapping[str, int | None]],
        wanted: str = "Describe",
        missing: Iterable[str] = (),
    ) -> None:
        self.seen = seen
        self._ask = ask
        self._wanted = wanted
        self._missing = missing
        self._asked: dict[str, int | None] = dict.fromkeys(missing)

    def wanting(self, operation: str) -> "TopicListing":
        """Return the same listing for a client that is about to perform another operation on the topics."""
        return TopicListing(self.seen, self._ask, operation, self._missing)

    def look_up(self, topics: Collection[str]) -> dict[str, int]:
        """Return those of these topics that exist, each with its number of partitions.

        A request is sent for topics that are not listed.
        """
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
