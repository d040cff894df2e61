"""Lag that monitoring sees when all is done, on a real Apache Kafka."""

from typing import Any

import pytest

from tests.contract.conftest import Cluster
from tests.contract.parallel.members import handled_until_all_is_committed, topic_of, write_transactions

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("fates", [["commit"], ["commit", "abort"], ["abort"]], ids=" ".join)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_no_lag_is_left_when_a_log_ends_with_what_is_never_handed_out(
    kafka_cluster: Cluster, isolation: str, fates: list[str]
) -> None:
    topic = topic_of(kafka_cluster, 1)
    write_transactions(kafka_cluster, topic, fates)
    settings: dict[str, Any] = {"isolation.level": isolation}
    handled = handled_until_all_is_committed(kafka_cluster, topic, **settings)
    readable = len(fates) if isolation == "read_uncommitted" else fates.count("commit")
    assert len(handled) == 50 * readable
