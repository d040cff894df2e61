"""The thread of the callbacks, without Kafka: what is told, in which order, and once."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.parallel.callbacks import Callbacks
from headway.records.record_types import TopicPartition
from headway.runtime.wakeup import Wakeup

PARTITIONS = [TopicPartition("orders", partition=number) for number in range(3)]


class World:
    """Callbacks that note what they are told, and wait while the gate is closed."""

    def __init__(self, raises: Callable[[str], BaseException | None] = lambda name: None) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.told: list[tuple[str, Any]] = []
        self.wake = Wakeup()
        self._raises = raises
        self.callbacks = Callbacks(self.wake)
        self.callbacks.subscribe(self._note("assign"), self._note("revoke"), self._note("lost"), self._commit)

    def _note(self, name: str) -> Callable[[list[TopicPartition]], None]:
        def callback(partitions: list[TopicPartition]) -> None:
            self.gate.wait(10)
            self.told.append((name, partitions))
            if error := self._raises(name):
                raise error

        return callback

    def _commit(self, error: Exception | None, offsets: Mapping[TopicPartition, int]) -> None:
        self.gate.wait(10)
        self.told.append(("commit", (error, offsets)))

    def close(self) -> None:
        self.gate.set()
        self.callbacks.wait(10)
        self.wake.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_a_partition_is_awaited_until_on_assign_has_returned(world: World) -> None:
    world.gate.clear()
    world.callbacks.assigned(PARTITIONS[:2])
    assert set(world.callbacks.awaited()) == set(PARTITIONS[:2])
    world.callbacks.lost(PARTITIONS[:1])
    assert set(world.callbacks.awaited()) == {PARTITIONS[1]}
    world.gate.set()
    world.callbacks.wait(10)
    assert set(world.callbacks.awaited()) == set()


def test_commits_that_succeed_while_a_callback_takes_long_are_told_as_one(world: World) -> None:
    first, second, _ = PARTITIONS
    world.gate.clear()
    world.callbacks.assigned([first])
    for offset in range(1000):
        world.callbacks.committed(None, {first: offset})
        world.callbacks.committed(None, {second: 2 * offset})
    refused = OSError("refused")
    world.callbacks.committed(refused, {first: 1000})
    world.callbacks.committed(None, {first: 1001})
    world.gate.set()
    world.callbacks.wait(10)
    assert world.told[1:] == [
        ("commit", (None, {first: 999, second: 1998})),
        ("commit", (refused, {first: 1000})),
        ("commit", (None, {first: 1001})),
    ]


def test_a_callback_that_never_returns_is_left_alone_at_the_end(world: World) -> None:
    world.gate.clear()
    world.callbacks.assigned(PARTITIONS)
    world.callbacks.wait(0.01)
    assert world.told == []


def test_the_first_error_of_a_rebalance_callback_ends_the_run_and_the_others_are_called_nevertheless() -> None:
    errors = {"assign": OSError("first"), "revoke": ValueError("second")}
    world = World(errors.get)
    world.callbacks.assigned(PARTITIONS[:1])
    told = world.callbacks.revoked(PARTITIONS)
    assert told is not None
    assert told.exception(10) is errors["revoke"]
    assert world.callbacks.failure is errors["assign"]
    assert world.told == [("assign", PARTITIONS[:1]), ("revoke", PARTITIONS[:1])]
    world.close()


def test_without_callbacks_nothing_is_awaited_or_told() -> None:
    wake = Wakeup()
    callbacks = Callbacks(wake)
    callbacks.assigned(PARTITIONS)
    assert not callbacks.awaited()
    assert callbacks.revoked(PARTITIONS) is None
    callbacks.committed(None, {PARTITIONS[0]: 1})
    callbacks.wait(0)
    wake.close()


CHANGES = st.lists(
    st.tuples(st.sampled_from(["assigned", "revoked", "lost", "commit", "open", "close"]), st.sets(st.integers(0, 2))),
    max_size=30,
)


@given(CHANGES)
def test_whatever_happens_each_partition_that_is_told_as_new_is_told_as_gone_once(
    changes: list[tuple[str, set[int]]],
) -> None:
    world, ours, expected = World(), set[TopicPartition](), list[tuple[str, list[TopicPartition]]]()
    committed: dict[TopicPartition, int] = {}
    for step, (what, numbers) in enumerate(changes):
        partitions = [PARTITIONS[number] for number in sorted(numbers)]
        if what == "assigned" and (new := [each for each in partitions if each not in ours]):
            world.callbacks.assigned(new)
            ours.update(new)
            expected.append(("assign", new))
        elif what in ("revoked", "lost"):
            getattr(world.callbacks, what)(partitions)
            if gone := [each for each in partitions if each in ours]:
                ours.difference_update(gone)
                expected.append(("revoke" if what == "revoked" else "lost", gone))
        elif what == "commit":
            world.callbacks.committed(None, dict.fromkeys(partitions, step))
            committed |= dict.fromkeys(partitions, step)
        elif what == "open":
            world.gate.set()
        elif what == "close":
            world.gate.clear()
    world.close()
    assert [each for each in world.told if each[0] != "commit"] == expected
    last: dict[TopicPartition, int] = {}
    for name, about in world.told:
        if name == "commit":
            last |= about[1]
    assert last == committed
    came = Counter(each for name, about in world.told if name == "assign" for each in about)
    left = Counter(each for name, about in world.told if name in ("revoke", "lost") for each in about)
    assert came - left == Counter(ours)
