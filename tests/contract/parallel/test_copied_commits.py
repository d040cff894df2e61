"""Commits that were copied, translated or left behind: an offset map counts beside its own offset and log alone.

MirrorMaker 2 translates a group's offset for another cluster, and copies the metadata as it is. Two topics stand for
the two clusters here. On a real Apache Kafka.
"""

import json
from collections.abc import Collection, Iterator

import confluent_kafka as ck
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headway import ConsumerRecord, Context, Ordering, Retries, cli
from headway.core.offsets.offset_map import OffsetMap, encode
from headway.core.retry import fixed_backoff
from headway.errors import OffsetMapError
from headway.kafka.binding import capi
from tests.contract.conftest import Cluster
from tests.contract.parallel.members import Member, client_of, committed, consumer, send, topic_of, wait_for

pytestmark = pytest.mark.kafka

URL_ALPHABET = str.maketrans("+/", "-_")  # of Kafka's tools, where librdkafka has the plain one
COUNT = 40
NOT_DONE = {10, 13, 14, 21, 22, 23}


def filled_topic(cluster: Cluster) -> str:
    topic = topic_of(cluster, 1)
    send(cluster, topic, [(f"key {number}", str(number)) for number in range(COUNT)])
    return topic


def done_but_for_some(cluster: Cluster, topic: str) -> tuple[int, bytes]:
    """The commit of a member that could not do some of the records."""

    def handle(record: ConsumerRecord, context: Context) -> None:
        if record.offset in NOT_DONE:
            raise ValueError("Not now.")

    parallel = consumer(cluster, topic, {"ordering": Ordering.UNORDERED, "retries": Retries(fixed_backoff(30))})
    member = Member(parallel, handle)
    wait_for(lambda: parallel.metrics().done == COUNT - len(NOT_DONE) and parallel.metrics().failed == len(NOT_DONE))
    member.stop(drain=False)
    return committed(cluster, topic)[0]


def commit(cluster: Cluster, topic: str, offset: int, metadata: bytes) -> None:
    with client_of(cluster, topic) as client:
        assert capi.PendingCommit(client, {(topic, 0): (offset, metadata)}).refused(30) == {}


def handled_from(cluster: Cluster, topic: str, count: int, **options: str) -> Collection[int]:
    """The offsets that the topic's group handles, once so many are done."""
    handled: list[int] = []
    member = Member(consumer(cluster, topic, options), lambda record, context: handled.append(record.offset))
    wait_for(lambda: len(handled) >= count or member.error)
    member.stop()
    return sorted(handled)


def test_a_hand_over_in_the_same_log_repeats_nothing(kafka_cluster: Cluster) -> None:
    topic = filled_topic(kafka_cluster)
    done_but_for_some(kafka_cluster, topic)
    assert set(handled_from(kafka_cluster, topic, len(NOT_DONE))) == NOT_DONE


@pytest.mark.quick("3")
@pytest.mark.parametrize("behind", [0, 3])
def test_no_record_is_passed_over_by_a_map_that_was_copied_to_a_mirror(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, behind: int
) -> None:
    source, mirror = filled_topic(kafka_cluster), filled_topic(kafka_cluster)
    offset, metadata = done_but_for_some(kafka_cluster, source)
    commit(kafka_cluster, mirror, offset - behind, metadata)
    assert list(handled_from(kafka_cluster, mirror, COUNT - offset + behind)) == list(range(offset - behind, COUNT))
    [warning] = [text for text in caplog.messages if "without an offset map" in text]
    assert mirror in warning
    assert ("the committed offset is 7" if behind else "a topic whose id begins with") in warning


def test_a_map_of_another_offset_ends_a_run_that_is_to_fail(kafka_cluster: Cluster) -> None:
    topic = filled_topic(kafka_cluster)
    offset, metadata = done_but_for_some(kafka_cluster, topic)
    commit(kafka_cluster, topic, offset - 1, metadata)
    with pytest.raises(OffsetMapError, match=f"written for offset {offset}, but the committed offset is"):
        handled_from(kafka_cluster, topic, COUNT, on_invalid_metadata="fail")


def test_a_commit_names_the_id_that_kafka_shows(kafka_cluster: Cluster) -> None:
    topic = filled_topic(kafka_cluster)
    offset, metadata = done_but_for_some(kafka_cluster, topic)
    decoded = CliRunner().invoke(
        cli.headway, ["offsets", "decode", metadata.decode(), "--offset", str(offset), "--json"]
    )
    described = json.loads(decoded.stdout)
    admin = AdminClient(kafka_cluster.config({"log_level": 0}))
    [answer] = admin.describe_topics(ck.TopicCollection([topic])).values()
    assert described["topic_id_begins"] == str(answer.result(30).topic_id).translate(URL_ALPHABET)[:8]
    assert described["failed"] == [{"offset": each, "attempts": 1, "untried": 0} for each in sorted(NOT_DONE)]


# Maps without a trailer, as the Java parallel consumer writes them


def test_a_map_of_java_s_is_used_on_a_plain_hand_over(kafka_cluster: Cluster) -> None:
    topic = filled_topic(kafka_cluster)
    commit(kafka_cluster, topic, 10, encode(OffsetMap(10, (1, COUNT - 11))).encode())
    assert list(handled_from(kafka_cluster, topic, 1)) == [10]


@pytest.fixture
def checkpoints(kafka_cluster: Cluster) -> Iterator[str]:
    """The topic in which MirrorMaker 2 keeps the commits that it has translated from a cluster."""
    admin, name = AdminClient(kafka_cluster.config({"log_level": 0})), "primary.checkpoints.internal"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    yield name
    admin.delete_topics([name])[name].result(30)


def test_a_map_of_java_s_is_dropped_where_mirror_maker_translates_commits(
    kafka_cluster: Cluster, caplog: pytest.LogCaptureFixture, checkpoints: str
) -> None:
    topic = filled_topic(kafka_cluster)
    commit(kafka_cluster, topic, 10, encode(OffsetMap(10, (1, COUNT - 11))).encode())
    assert list(handled_from(kafka_cluster, topic, COUNT - 10)) == list(range(10, COUNT))
    [warning] = [text for text in caplog.messages if "without an offset map" in text]
    assert checkpoints in warning
