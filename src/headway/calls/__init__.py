"""Calls: send a record, and get what its handler returned.

    from headway import Producer
    from headway.calls import Calls

    config = {"bootstrap.servers": "localhost:9092", "levels": 3}
    with Producer(config) as producer, Calls(config, "image-results") as calls:
        call = calls.call(producer, "resize", b"...", level=2)
        print(call.id, call.result(timeout=30))

The handlers must run with `result_topic="image-results"`. The result is stored in that topic for a day, and any process
can read it by the call's id: `calls.get(id)`.
"""

from headway.calls.async_calls import AsyncCalls
from headway.calls.call import Call, CallResult
from headway.calls.calls import Calls

__all__ = ["AsyncCalls", "Call", "CallResult", "Calls"]
