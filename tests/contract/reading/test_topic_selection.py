"""The topics that a pattern finds on a real broker."""

from collections.abc import Collection

import pytest

from headway.kafka.admin import Admin
from headway.kafka.reading.catalog import Catalog
from headway.kafka.reading.topic_naming import TopicNaming
from headway.kafka.topic_listing import TopicListing
from headway.spark.source.topic_selection import parse_selection
from tests.contract.conftest import Cluster

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("levels", [2, None])
def test_a_topic_that_is_deleted_just_when_a_pattern_has_found_it_is_left_out(
    kafka_cluster: Cluster, levels: int | None
) -> None:
    kept, deleted = (kafka_cluster.topic(levels=2) for _ in range(2))

    class Deletes(Catalog):
        """Another client deletes the highest level of a topic behind its first question."""

        def topics(self, wanted: str = "Describe", *, named: Collection[str] | None = None) -> TopicListing:
            found = super().topics(wanted, named=named)
            Admin(self._settings).delete([f"{deleted}-1"])
            return found

    config = {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    everything = {f"{topic}-{level}" for topic in (kept, deleted) for level in range(2)}
    while not everything <= set(Admin(config).topics().seen):
        pass  # the broker has not heard of all yet
    pattern = f"({kept}|{deleted})" + ("" if levels else "-[01]")
    found = parse_selection({"subscribepattern": pattern}).find(Deletes(config), TopicNaming(levels))
    left = {f"{kept}-0", f"{kept}-1"} | (set() if levels else {f"{deleted}-0"})
    assert set(found.topic_ids) == left
    assert {each.topic for each in found.partitions} == ({kept} if levels else left)
