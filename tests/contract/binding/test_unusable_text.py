"""Text that the binding cannot take ends the process or is cut in it, so it is refused before."""

from collections.abc import Callable
from typing import Any

import pytest

from headway import (
    ParallelConsumer,
    PriorityConsumer,
    Producer,
    Relay,
    Scheduler,
    TopicPartition,
    worker,
)
from headway.errors import ConfigError

TEXTS = {"a surrogate": "a\ud83db", "NUL": "a\0b"}
NOWHERE: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
OF_A_GROUP = {**NOWHERE, "group.id": "g"}
CALLS: dict[str, Callable[[str], object]] = {
    "the group of a parallel consumer": lambda text: ParallelConsumer({**NOWHERE, "group.id": text}),
    "the group of a priority consumer": lambda text: PriorityConsumer({**OF_A_GROUP, "group.id": text, "levels": 1}),
    "the group of a relay": lambda text: Relay({**NOWHERE, "group.id": text}),
    "a producer's client.id": lambda text: Producer({**NOWHERE, "client.id": text}),
    "a producer's transactional.id": lambda text: Producer({**NOWHERE, "levels": 1, "transactional.id": text}),
    "a producer's password": lambda text: Producer({**NOWHERE, "sasl.password": text}),
    "the name of a setting": lambda text: Producer({**NOWHERE, text: "x"}),
    "the servers": lambda text: Scheduler({"bootstrap.servers": text}),
    "credentials": lambda text: _with(Producer(NOWHERE), lambda sends: sends.set_sasl_credentials("me", text)),
    "a topic to subscribe to": lambda text: _with(ParallelConsumer(OF_A_GROUP), lambda reads: reads.subscribe(text)),
    "a pattern": lambda text: _with(ParallelConsumer(OF_A_GROUP), lambda reads: reads.subscribe(f"^{text}")),
    "a topic with a level": lambda text: _with(
        PriorityConsumer({**OF_A_GROUP, "levels": 1}), lambda reads: reads.subscribe({text: 0})
    ),
    "a partition to ask for": lambda text: _with(
        PriorityConsumer({**OF_A_GROUP, "levels": 1}),
        lambda reads: reads.committed([TopicPartition(text, partition=0)], timeout=0.1),
    ),
    "a worker's topic": lambda text: worker(text, group="g")(lambda record: None),
}


def _with(client: Any, call: Callable[[Any], object]) -> None:
    with client:
        call(client)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("what", CALLS)
def test_text_that_the_binding_does_not_take_is_refused(what: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        CALLS[what](TEXTS[text])
    if what in ("a producer's password", "credentials"):
        assert TEXTS[text] not in str(refused.value)
        assert refused.value.__cause__ is None
