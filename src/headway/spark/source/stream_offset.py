"""The progress of a query, in the form in which Spark's checkpoint stores it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headway.errors import ConfigError
from headway.kafka.reading.range_reader import Offsets
from headway.kafka.reading.topic_naming import PlainPartition, TopicNaming, kafka_topic
from headway.records.record_types import TopicPartition
from headway.spark.source.offset_json import from_json, to_json


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read in each partition, and the ids of the Kafka topics that the offsets belong to.

    The ids are needed because a topic that is deleted and recreated has another id, and its offsets start again.

    `tasks` is the maximum number of tasks for the micro-batch that ends at these offsets, and `split` is True if ranges
    may be split among tasks. Both are stored so that in a replay, each task gets the same rows, even on another machine
    or with other options.

    `begun` is set only in the first micro-batch of a query, and contains its start. Spark does not store that start,
    and requests it again after a restart. `limit` is the current limit under targetTriggerTime, with which a restarted
    query continues.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str]
    tasks: int = field(default=1, compare=False)
    split: bool = field(default=False, compare=False)
    begun: Offsets | None = field(default=None, compare=False)
    limit: int | None = field(default=None, compare=False)

    def same_topic(self, other: "StreamOffset", partition: TopicPartition) -> bool:
        """Return whether the topic of a partition is the same in both offsets. An unknown id matches every id."""
        name = kafka_topic(partition)
        ours, theirs = self.topic_ids.get(name), other.topic_ids.get(name)
        return ours == theirs or ours is None or theirs is None

    def is_surely_same_topic(self, other: "StreamOffset", partition: TopicPartition) -> bool:
        """Return whether the topic of a partition is known to be the same in both offsets."""
        name = kafka_topic(partition)
        return name in self.topic_ids and self.topic_ids[name] == other.topic_ids.get(name)

    def to_json(self) -> dict[str, Any]:
        """Encode the offset for the checkpoint. Entries are sorted, because Spark compares the text."""
        form: dict[str, Any] = {"offsets": to_json(self.offsets), "topicIds": dict(sorted(self.topic_ids.items()))}
        if priorities := {at.topic: at.level for at in sorted(self.offsets) if isinstance(at, PlainPartition)}:
            form["priorities"] = priorities
        form["tasks"] = self.tasks
        if self.split:
            form["split"] = True
        if self.limit is not None:
            form["limit"] = self.limit
        return form if self.begun is None else {**form, "begun": to_json(self.begun)}

    @classmethod
    def from_json(cls, form: Mapping[str, Any], naming: TopicNaming) -> "StreamOffset":
        """Decode an offset from the checkpoint.

        Raises `ConfigError` if the checkpoint is for topics with levels but the query reads topics without levels, or
        the other way round.
        """
        if form["offsets"] and ("priorities" in form) != (naming.levels is None):
            had, has = ("no levels", "levels") if "priorities" in form else ("levels", "no levels")
            raise ConfigError(
                f"The checkpoint is for a query whose topics have {had}, but those of this query have {has}. Correct "
                "the option `levels`, or start with a new checkpoint."
            )
        offsets = from_json(form["offsets"], naming)
        begun = from_json(form["begun"], naming) if "begun" in form else None
        return cls(offsets, form["topicIds"], form["tasks"], form.get("split", False), begun, form.get("limit"))


def naming_of(form: Mapping[str, Any], naming: TopicNaming) -> TopicNaming:
    """Return the naming with the priorities that are stored in an offset of the checkpoint.

    With these, a replay has the same tasks even if the priorities in the query's options have changed.
    """
    return replace(naming, priorities=form["priorities"]) if "priorities" in form else naming
