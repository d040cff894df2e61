"""A resource profile for the tasks of a stage."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from headway.spark import parallel_map
from tests.spark.cluster import standalone_cluster

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_a_cluster_gives_the_stage_executors_of_its_profile(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as cluster:
        cluster.run("profiled", str(tmp_path / "found")).wait(200)
    assert json.loads((tmp_path / "found").read_text()) == [["-Xmx512M"], ["-Xmx640M"]]


def test_a_local_session_says_that_it_takes_no_profile(spark: SparkSession) -> None:
    def one(row: Any) -> int:
        return 1

    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(1)).build
    frame = parallel_map(spark.range(1), one, "int", key=None, profile=profile)
    with pytest.raises(Exception, match="TaskResourceProfiles are only supported for Standalone, Yarn and Kubernetes"):
        frame.collect()
