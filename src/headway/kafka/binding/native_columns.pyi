from typing import Any

def bind(
    consume_batch_queue: int,
    message_destroy: int,
    message_timestamp: int,
    message_errstr: int,
    topic_name: int,
) -> None: ...
def take(queue: int, most: int, timeout_ms: int) -> list[tuple[Any, ...]]: ...
