"""Reads the queries of addresses. Whatever a query has, there is a sensible answer or None, and never an error."""

from collections.abc import Sequence

from starlette.requests import Request

from headway.inspection.letters import LetterPosition, is_whole_number
from headway.inspection.snapshot import LevelStatus, PartitionStatus, QueueStatus, Snapshot


def chosen_queue(snapshot: Snapshot, request: Request) -> QueueStatus | None:
    """Return the queue that `topic` and `group` name, or None."""
    topic, group = request.query_params.get("topic"), request.query_params.get("group")
    return next((each for each in snapshot.queues if (each.topic, each.group) == (topic, group)), None)


def chosen_level(queue: QueueStatus, request: Request) -> LevelStatus:
    """Return the level that `level` names, or the highest one."""
    number = request.query_params.get("level")
    return next((each for each in queue.levels if str(each.level) == number), queue.levels[0])


def number_in(request: Request, name: str) -> int:
    """Return a number of the query, or 0."""
    text = request.query_params.get(name, "")
    return int(text) if is_whole_number(text) else 0


def one_of(request: Request, name: str, allowed: Sequence[str]) -> str:
    """Return a word of the query if it is one of these, and otherwise the first of them."""
    text = request.query_params.get(name, "")
    return text if text in allowed else allowed[0]


def letter_position(text: str) -> LetterPosition | None:
    """Parse the position of a dead letter, such as 0:12. Returns None for other text."""
    partition, _, offset = text.partition(":")
    if not (is_whole_number(partition) and is_whole_number(offset)):
        return None
    return LetterPosition(int(partition), int(offset))


def has_members(snapshot: Snapshot, queue: QueueStatus) -> bool:
    """Return whether anybody reads a queue as a member of its groups. Spark's queries do not."""
    groups = {level.group for level in queue.levels}
    return any(each.group in groups for each in snapshot.members)


def urgency(status: PartitionStatus) -> tuple[bool, float, int, int]:
    """Return a sort key: stuck partitions first, the longest standing before others, then those with the most to do."""
    stuck = status.stuck if status.is_stuck else None
    return stuck is None, stuck.since if stuck else 0.0, -status.not_done, status.partition
