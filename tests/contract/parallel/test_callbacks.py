"""The callbacks about partitions and commits, on a real Apache Kafka: which, when, and whatever they do."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headway import ConsumerRecord, ParallelConsumer, TopicPartition
from headway.errors import ConfigError, HeadwayError, KafkaError
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import (
    COOPERATIVE,
    OFTEN,
    Member,
    committed,
    handled_until_all_is_committed,
    plain_topic,
    send,
    settings_of,
    topic_of,
    wait_for,
)
from tests.contract.parallel.test_commit_failures import HEARS_NOTHING
from tests.membership import expel

pytestmark = pytest.mark.kafka

Partitions = list[TopicPartition]


class Story:
    """What happened to a consumer, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.threads = set[str]()
        self._lock = threading.Lock()

    def tell(self, what: str, about: Any = None) -> None:
        with self._lock:
            self.told.append((what, about))
            self.threads.add(threading.current_thread().name)

    def telling(self, what: str, then: Callable[[Any], Any] = lambda about: None) -> Callable[[Any], None]:
        def callback(about: Any) -> None:
            self.tell(what, about)
            then(about)

        return callback

    def on_commit(self, error: Exception | None, offsets: Mapping[TopicPartition, int]) -> None:
        self.tell("committed", (error, dict(offsets)))

    def words(self, *of: str) -> list[str]:
        return [what for what, _ in self.told if not of or what in of]

    def place(self, what: str) -> int:
        return self.words().index(what)

    def partitions(self, what: str) -> Counter[TopicPartition]:
        return Counter(each for said, about in self.told if said == what for each in about)


def subscribed(
    cluster: Cluster,
    topic: str,
    story: Story,
    options: dict[str, Any] | None = None,
    callbacks: dict[str, Callable[..., Any]] | None = None,
    **settings: Any,
) -> ParallelConsumer:
    parallel = ParallelConsumer(cluster.config(settings_of(topic, **settings)), **(options or {}))
    told = {name: story.telling(name) for name in ("on_assign", "on_revoke", "on_lost")}
    parallel.subscribe(topic, **told | {"on_commit": story.on_commit} | (callbacks or {}))
    return parallel


def test_no_record_starts_before_on_assign_has_returned_and_none_runs_when_on_revoke_is_called(
    kafka_cluster: Cluster,
) -> None:
    topic, story = topic_of(kafka_cluster, 1), Story()
    send(kafka_cluster, topic, [("a", str(i)) for i in range(5)])
    may_start = threading.Event()
    callbacks = {"on_assign": story.telling("assigned", lambda _: may_start.wait(30))}
    member = Member(
        subscribed(kafka_cluster, topic, story, callbacks=callbacks),
        lambda record, context: story.tell("handled", record.offset),
    )
    wait_for(lambda: story.words("assigned"))
    wait_for(member.consumer.assignment)
    threading.Event().wait(1.5)  # longer than a turn of the control thread, which pauses what waits for on_assign
    assert member.consumer.metrics().remaining == 0
    may_start.set()
    wait_for(lambda: len(story.words("handled")) == 5)
    member.stop()
    only = TopicPartition(topic, partition=0)
    assert story.words() == ["assigned", *["handled"] * 5, "on_revoke", "committed"]
    assert story.told[0] == ("assigned", [only])
    assert story.told[-2] == ("on_revoke", [only])
    assert story.told[-1] == ("committed", (None, {only: 5}))
    assert committed(kafka_cluster, topic)[0][0] == 5


@pytest.mark.parametrize("settings", [{}, COOPERATIVE], ids=["eager", "cooperative"])
@pytest.mark.parametrize("mode", ["async", "transactional"])
def test_each_partition_that_comes_goes_once_and_what_is_done_is_committed_after_it_was_told(
    kafka_cluster: Cluster, settings: dict[str, Any], mode: str
) -> None:
    topic, stories = plain_topic(kafka_cluster), [Story(), Story()]
    stop_sending, sent = threading.Event(), Counter[str]()

    def keep_sending() -> None:
        while not stop_sending.wait(0.02):
            values = [f"{len(sent) + i}" for i in range(20)]
            send(kafka_cluster, topic, [(value, value) for value in values])
            sent.update(values)

    sending = threading.Thread(target=keep_sending)
    sending.start()
    handled = list[str]()

    def handle(record: ConsumerRecord, context: object) -> None:
        handled.append(record.value.decode())

    members = []
    for story in stories:
        options = {"commit_mode": mode}
        members.append(Member(subscribed(kafka_cluster, topic, story, options, **OFTEN | settings), handle))
        wait_for(lambda story=story: story.words("on_assign"))  # type: ignore[misc]
    wait_for(lambda: all("committed" in story.words() for story in stories))
    members[1].stop()
    wait_for(lambda: len(members[0].consumer.assignment()) == 4)
    stop_sending.set()
    sending.join()
    wait_for(lambda: len(set(handled)) == len(sent))
    members[0].stop()
    assert Counter(handled) == sent  # nothing twice: all was committed as it went
    for story in stories:
        assert story.partitions("on_assign") == story.partitions("on_revoke")
        assert story.words("on_lost") == []
        errors = [about[0] for what, about in story.told if what == "committed"]
        assert errors[-1] is None  # a commit amid a rebalance may be refused, and another one covers it
        rebalances = story.words("on_assign", "on_revoke")
        assert rebalances[0] == "on_assign"
        assert rebalances[-1] == "on_revoke"


def test_what_on_assign_raises_ends_the_run_and_no_record_is_handled(kafka_cluster: Cluster) -> None:
    topic, story = topic_of(kafka_cluster, 1), Story()
    send(kafka_cluster, topic, [("a", "1")])

    def raising(_: Partitions) -> None:
        raise OSError("the store is away")

    callbacks = {"on_assign": raising}
    member = Member(
        subscribed(kafka_cluster, topic, story, callbacks=callbacks),
        lambda record, context: story.tell("handled"),
    )
    wait_for(lambda: member.error)
    with pytest.raises(OSError, match="the store is away"):
        member.stop()
    assert isinstance(member.consumer.failure, OSError)
    assert story.words() == ["on_revoke"]
    assert handled_until_all_is_committed(kafka_cluster, topic) == [(0, 0)]


@pytest.mark.parametrize("error", [OSError("not flushed"), SystemExit(3)], ids=["Exception", "SystemExit"])
def test_what_is_done_is_not_committed_if_on_revoke_raises(kafka_cluster: Cluster, error: BaseException) -> None:
    topic, story = topic_of(kafka_cluster, 1), Story()
    send(kafka_cluster, topic, [("a", "1"), ("a", "2")])

    def raising(_: Partitions) -> None:
        raise error

    member = Member(
        subscribed(kafka_cluster, topic, story, callbacks={"on_revoke": raising}),
        lambda record, context: story.tell("handled"),
    )
    wait_for(lambda: len(story.words("handled")) == 2)
    with pytest.raises(type(error)):
        member.stop()
    assert "committed" not in story.words()
    assert handled_until_all_is_committed(kafka_cluster, topic) == [(0, 0), (0, 1)]


def test_the_group_waits_for_an_on_revoke_no_longer_than_for_a_handler(kafka_cluster: Cluster) -> None:
    topic, story = topic_of(kafka_cluster, 2), Story()
    send(kafka_cluster, topic, [(None, "1")], partition=0)
    send(kafka_cluster, topic, [(None, "2")], partition=1)
    go_on = threading.Event()
    first = Member(
        subscribed(
            kafka_cluster,
            topic,
            story,
            {"hand_over_timeout": 0.5},
            {"on_revoke": story.telling("on_revoke", lambda _: go_on.wait(60))},
            **COOPERATIVE,
        ),
        lambda record, context: story.tell("handled"),
    )
    wait_for(lambda: len(story.words("handled")) == 2)
    second_story = Story()
    second = Member(
        subscribed(kafka_cluster, topic, second_story, **COOPERATIVE),
        lambda record, context: second_story.tell("handled"),
    )
    wait_for(lambda: second_story.words("handled"))  # again, as nothing says that it was flushed
    assert story.words("committed") == []
    go_on.set()
    second.stop()
    first.stop()


def test_what_runs_on_after_on_revoke_was_called_is_not_committed(kafka_cluster: Cluster) -> None:
    topic, story = topic_of(kafka_cluster, 1), Story()
    send(kafka_cluster, topic, [("quick", "1"), ("slow", "2")])
    go_on, revoked = threading.Event(), threading.Event()

    def handle(record: ConsumerRecord, context: object) -> None:
        if record.key == b"slow":
            go_on.wait(30)
        story.tell("handled", record.offset)

    def slow_revoke(_: Partitions) -> None:
        go_on.set()
        wait_for(lambda: len(story.words("handled")) == 2)
        revoked.set()

    parallel = subscribed(kafka_cluster, topic, story, callbacks={"on_revoke": slow_revoke})
    member = Member(parallel, handle)
    wait_for(lambda: story.words("handled"))
    member.stop(drain=False)
    assert revoked.is_set()
    assert committed(kafka_cluster, topic)[0][0] == 1
    assert handled_until_all_is_committed(kafka_cluster, topic) == [(0, 1)]


def test_a_callback_may_call_its_consumer_but_not_close_it(kafka_cluster: Cluster) -> None:
    topic, story = topic_of(kafka_cluster, 1), Story()
    send(kafka_cluster, topic, [("a", "1")])
    parallel: ParallelConsumer

    def calling_back(partitions: Partitions) -> None:
        assert set(partitions) == parallel.assignment()
        parallel.pause()
        parallel.resume()
        parallel.request_commit()
        with pytest.raises(HeadwayError, match=r"close\(\) was called in a callback"):
            parallel.close()
        story.tell("remaining", parallel.metrics().remaining)

    def stopping(error: Exception | None, offsets: object) -> None:
        parallel.stop()
        raise ValueError("a callback of commits may fail")

    parallel = subscribed(
        kafka_cluster, topic, story, callbacks={"on_assign": calling_back, "on_commit": stopping}, **OFTEN
    )
    parallel.run(lambda record: story.tell("handled"))
    assert story.words() == ["remaining", "handled", "on_revoke"]
    assert "headway-in-background" in story.threads


def test_who_was_expelled_hears_of_the_refused_commit_and_on_lost_and_goes_on(kafka_cluster: Cluster) -> None:
    topic, story = topic_of(kafka_cluster, 1), Story()
    only = TopicPartition(topic, partition=0)
    member = Member(
        subscribed(kafka_cluster, topic, story, **OFTEN | HEARS_NOTHING),
        lambda record, context: story.tell("handled", record.offset),
    )
    wait_for(lambda: story.words("on_assign"))
    expel(kafka_cluster.config({}), topic)
    send(kafka_cluster, topic, [("a", "1")])
    wait_for(lambda: len(story.words("handled")) == 2)
    member.stop()
    assert story.words("on_assign", "on_lost", "on_revoke") == ["on_assign", "on_lost", "on_assign", "on_revoke"]
    (error, offsets), *_, last = [about for what, about in story.told if what == "committed"]
    assert isinstance(error, KafkaError)
    assert offsets == {only: 1}
    assert last == (None, {only: 1})


@pytest.mark.parametrize("name", ["on_assign", "on_revoke", "on_lost", "on_commit"])
def test_a_callback_that_cannot_be_called_is_refused(kafka_cluster: Cluster, name: str) -> None:
    callback: Any = {name: lambda: None}
    with (
        ParallelConsumer(kafka_cluster.config({"group.id": "g"})) as parallel,
        pytest.raises(ConfigError, match=f"{name} is .*, which cannot be called with"),
    ):
        parallel.subscribe("orders", **callback)
