from typing import Any

import confluent_kafka as ck
from confluent_kafka import cimpl

Message = ck.Message  # the native class has the same methods, except those that only events and deliveries need

def bind(consumer_type: type, addresses: tuple[int, ...]) -> None: ...
def columns(messages: list[Any], overhead: int) -> tuple[list[int], list[int], list[int], bool]: ...
def take(consumer: cimpl.Consumer, most: int, timeout_ms: int) -> tuple[list[ck.Message], list[ck.Message]]: ...
