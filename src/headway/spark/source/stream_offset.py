"""A query's progress, as Spark keeps it in its checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.core.levels.naming import level_topic
from headway.kafka.reading.range_reader import Offsets
from headway.records import TopicPartition

OffsetJson = dict[str, dict[str, dict[str, int]]]
"""Offsets by topic, level and partition, as `startingOffsets` takes them, too."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of each partition, and the ids of the level topics to which the offsets belong.

    A topic that is deleted and created again has another id, and its offsets begin anew. `tasks` is the most tasks that
    read the micro-batch that ends here, and `split` is whether ranges are split for them. A replay uses the same on any
    machine and with any options, so each task gets the same rows.
    `begun` is the micro-batch's start, if it is a query's first: Spark's log has no offset before it, and Spark asks
    anew.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str]
    tasks: int = field(default=1, compare=False)
    split: bool = field(default=False, compare=False)
    begun: Offsets | None = field(default=None, compare=False)

    def same_topic(self, other: "StreamOffset", partition: TopicPartition) -> bool:
        """Return whether both offsets of a partition belong to the same topic, as far as is known."""
        name = level_topic(partition.topic, partition.level)
        ours, theirs = self.topic_ids.get(name), other.topic_ids.get(name)
        return ours == theirs or ours is None or theirs is None

    def to_json(self) -> dict[str, Any]:
        """Return the form for the checkpoint, in one order, since Spark compares it as text."""
        ids = dict(sorted(self.topic_ids.items()))
        split = {"split": True} if self.split else {}
        begun = {} if self.begun is None else {"begun": to_json(self.begun)}
        return {"offsets": to_json(self.offsets), "topicIds": ids, "tasks": self.tasks, **split, **begun}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> "StreamOffset":
        """Return the offset from its form for the checkpoint."""
        begun = from_json(form["begun"]) if "begun" in form else None
        return cls(from_json(form["offsets"]), form["topicIds"], form["tasks"], form.get("split", False), begun)


def to_json(offsets: Offsets) -> OffsetJson:
    """Return offsets as JSON, in one order.

    >>> to_json({TopicPartition("orders", partition=0, level=1): 7, TopicPartition("orders", partition=0): 5})
    {'orders': {'0': {'0': 5}, '1': {'0': 7}}}
    """
    form: OffsetJson = {}
    for topic, partition, level in sorted(offsets, key=lambda at: (at.topic, at.level, at.partition)):
        levels = form.setdefault(topic, {})
        levels.setdefault(str(level), {})[str(partition)] = offsets[
            TopicPartition(topic, partition=partition, level=level)
        ]
    return form


def from_json(form: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """Return offsets from their JSON form."""
    return {
        TopicPartition(topic, partition=int(partition), level=int(level)): offset
        for topic, levels in form.items()
        for level, partitions in levels.items()
        for partition, offset in partitions.items()
    }
