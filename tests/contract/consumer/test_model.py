"""Random calls of the priority consumer, beside a model: nothing is lost, doubled or left uncommitted."""

import random
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.contract.conftest import Cluster
from tests.contract.consumer.world import A_MOMENT, Habits, Member, World

MOCK_PROTOCOLS: list[dict[str, Any]] = [
    {"partition.assignment.strategy": "range"},
    {"partition.assignment.strategy": "cooperative-sticky"},
]
KAFKA_PROTOCOLS: list[dict[str, Any]] = [*MOCK_PROTOCOLS, {"group.protocol": "consumer"}]
ONE_GROUP = {"group.per.level": False}
_MEMBERS = 2
numbers = st.integers(0, 1_000_000)
chances = st.sampled_from([0.0, 0.0, 0.5, 1.0])


class PriorityConsumers(RuleBasedStateMachine):
    """Up to two members of a group, whose callbacks seek, commit and call back."""

    cluster: ClassVar[Cluster]
    protocols: ClassVar[list[dict[str, Any]]]
    is_mock: ClassVar[bool]

    @initialize(
        data=st.data(),
        seed=numbers,
        policy=st.sampled_from(["fair", "strict", "capacity_burst"]),
        auto_commit=st.booleans(),
        habits=st.builds(Habits, chances, chances, chances, chances, chances),
    )
    def begin(self, data: st.DataObject, seed: int, policy: str, auto_commit: bool, habits: Habits) -> None:
        protocol = data.draw(st.sampled_from(self.protocols))
        own: dict[str, Any] = {"enable.auto.commit": auto_commit}
        if data.draw(st.booleans()):  # with this little room a partition of some records is kept apart
            own |= {"queued.max.messages.kbytes": 1, "max.poll.records": 3}
        if auto_commit:
            own["auto.commit.interval.ms"] = data.draw(st.sampled_from([10, 100_000]))
        if protocol.get("group.protocol") == "consumer":
            own |= {"session.timeout.ms": None, "heartbeat.interval.ms": None}
        takes_commits = not self.is_mock
        self.world = World(self.cluster, protocol | own, policy, habits, random.Random(seed), takes_commits)
        for partition in self.world.partitions:
            self.world.produce(partition, data.draw(st.integers(0, 60)))
        self.world.join(is_async=data.draw(st.booleans()))
        self.world.settle()

    def member(self, number: int) -> Member:
        return self.world.members[number % len(self.world.members)]

    @rule(number=numbers, times=st.integers(1, 4))
    def poll(self, number: int, times: int) -> None:
        for _ in range(times):
            self.member(number).poll(A_MOMENT)

    @rule(number=numbers, most=st.integers(1, 50))
    def iterate(self, number: int, most: int) -> None:
        self.member(number).iterate(most)

    @rule(number=numbers, most=st.integers(1, 50))
    def consume_arrow(self, number: int, most: int) -> None:
        self.member(number).consume_arrow(most)

    @rule(number=numbers, where=numbers, to=numbers, asks_for_the_end=st.sampled_from([False] * 9 + [True]))
    def seek(self, number: int, where: int, to: int, asks_for_the_end: bool) -> None:
        partition = self.world.partitions[where % len(self.world.partitions)]
        if asks_for_the_end:
            self.member(number).seek_to_end(partition)
        else:
            self.member(number).seek(partition, to % (self.world.ends[partition] + 1))

    @rule(number=numbers, which=st.sets(numbers, max_size=4))
    def pause(self, number: int, which: set[int]) -> None:
        self.member(number).pause([self.world.partitions[each % len(self.world.partitions)] for each in which])

    @rule(number=numbers)
    def resume(self, number: int) -> None:
        self.member(number).resume(self.world.partitions)

    @rule(number=numbers)
    def pause_and_resume(self, number: int) -> None:
        self.member(number).pause(self.world.partitions)
        self.member(number).resume(self.world.partitions)

    @rule(number=numbers)
    def commit(self, number: int) -> None:
        self.world.settle()
        self.member(number).commit()

    @rule(number=numbers, where=numbers)
    def position(self, number: int, where: int) -> None:
        self.member(number).check_position(self.world.partitions[where % len(self.world.partitions)])

    @rule(where=numbers, count=st.integers(1, 30))
    def produce(self, where: int, count: int) -> None:
        self.world.produce(self.world.partitions[where % len(self.world.partitions)], count)

    @precondition(lambda self: len(self.world.members) < _MEMBERS)
    @rule(is_async=st.booleans(), settles=st.booleans())
    def join(self, is_async: bool, settles: bool) -> None:
        self.world.join(is_async=is_async)
        if settles:
            self.world.settle()

    @precondition(lambda self: len(self.world.members) == _MEMBERS)
    @rule(number=numbers, settles=st.booleans())
    def leave(self, number: int, settles: bool) -> None:
        self.world.settle()  # a call amid a rebalance waits for others to join, which do not poll here
        self.member(number).close()
        if settles:
            self.world.settle()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.drain()
                for member in list(self.world.members):
                    member.commit_at_last()
                    member.check_failures()
            finally:
                self.world.close()


def run(cluster: Cluster, protocols: list[dict[str, Any]], examples: int, steps: int, *, is_mock: bool = False) -> None:
    own = {"cluster": cluster, "protocols": protocols, "is_mock": is_mock}
    machine = type("Machine", (PriorityConsumers,), own)
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes minutes
    )
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", MOCK_PROTOCOLS, ids=["eager", "cooperative"])
def test_whatever_is_called_the_next_record_is_the_next_and_what_was_handed_out_is_committed(
    mock_cluster: Cluster, protocol: dict[str, Any]
) -> None:
    run(mock_cluster, [protocol], examples=6, steps=40, is_mock=True)


@pytest.mark.slow
@pytest.mark.kafka
def test_whatever_is_called_kafka_holds_what_was_handed_out(kafka_cluster: Cluster) -> None:
    run(kafka_cluster, KAFKA_PROTOCOLS, examples=6, steps=25)


@pytest.mark.quick("eager")
@pytest.mark.parametrize("protocol", MOCK_PROTOCOLS, ids=["eager", "cooperative"])
def test_whatever_is_called_one_group_of_all_levels_hands_out_the_next_record_and_commits_it(
    mock_cluster: Cluster, protocol: dict[str, Any]
) -> None:
    run(mock_cluster, [protocol | ONE_GROUP], examples=6, steps=40, is_mock=True)


@pytest.mark.slow
@pytest.mark.kafka
def test_whatever_is_called_kafka_holds_what_was_handed_out_in_one_group_of_all_levels(kafka_cluster: Cluster) -> None:
    run(kafka_cluster, [each | ONE_GROUP for each in KAFKA_PROTOCOLS], examples=6, steps=25)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("protocol", KAFKA_PROTOCOLS, ids=lambda each: next(iter(each.values())))
def test_whatever_is_called_for_long_kafka_holds_what_was_handed_out_in_one_group(
    kafka_cluster: Cluster, protocol: dict[str, Any]
) -> None:
    run(kafka_cluster, [protocol | ONE_GROUP], examples=60, steps=50)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("protocol", KAFKA_PROTOCOLS, ids=lambda each: next(iter(each.values())))
def test_whatever_is_called_for_long_kafka_holds_what_was_handed_out(
    kafka_cluster: Cluster, protocol: dict[str, Any]
) -> None:
    run(kafka_cluster, [protocol], examples=60, steps=50)
