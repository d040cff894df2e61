"""Lists the queues that can send. Listed queues take turns within their topic and level.

A queue is listed once while it has records that can be sent. Each operation costs time per record or per turn, never
per queue.
"""

from itertools import islice

from headway.core.producer.queues import ANY_PARTITION, Queue, R, TopicQueues

TURN = 64 * 1024
"""The size of a turn in bytes, about one request.

Records that can go to any partition all go to one partition until it has received this many bytes.
"""

# How many queues that can send are compared to choose the next one for records that can go to any partition. Comparing
# all of them would balance the load hardly any better, but with 2,000 partitions it would cost more than all other work
# on the records.
_CHOICES = 16


def can_send(queue: Queue[R]) -> bool:
    """Return whether a queue can send: its partition has a leader, and its window is not full."""
    return queue.partition in queue.topic.leaders and queue.in_flight < queue.window


def sticky_queue(topic: TopicQueues[R]) -> Queue[R] | None:
    """Return the queue to use for records that can go to any partition, or None if no partition can send.

    The function returns the same queue until this queue has received `TURN` bytes or cannot send. The next queue is the
    one with the fewest bytes among the next `_CHOICES` queues that can send.
    """
    sticky = topic.sticky
    if sticky is None or topic.sticky_left <= 0 or not can_send(sticky):
        last = ANY_PARTITION if sticky is None else sticky.partition
        after_last = ((last + step) % topic.partition_count for step in range(1, topic.partition_count + 1))
        leading = (topic.queue(number) for number in after_last if number in topic.leaders)
        choices = islice(filter(can_send, leading), _CHOICES)
        topic.sticky = min(choices, key=lambda queue: queue.used, default=None)
        topic.sticky_left = TURN
    return topic.sticky


def list_queue(queue: Queue[R]) -> None:
    """List a queue for turns if it has records and can send."""
    topic = queue.topic
    if queue.listed or not queue.records or queue is topic.raw:
        return
    if can_send(queue) or (queue is topic.undesignated and topic.leaders):
        queue.listed = True
        topic.turns.append(queue)
        if not topic.listed:
            topic.listed = True
            topic.level.turns.append(topic)


def relist(topic: TopicQueues[R]) -> None:
    """List all queues of a topic again. This function is called only after rare changes."""
    if topic.listed:
        topic.level.turns.remove(topic)
        topic.listed = False
    topic.turns.clear()
    for queue in topic.queues():
        queue.listed = False
        list_queue(queue)
