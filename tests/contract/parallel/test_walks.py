"""Random walks over the public calls of parallel consumers, with their options together. On a real Apache Kafka.

A walk that fails names its seed; `HEADWAY_WALK_SEED=17` runs the one of that seed alone, as long as in the slow suite.
"""

import os
from pathlib import Path

import pytest

from tests.contract.conftest import Cluster
from tests.contract.parallel.walk import Walk

pytestmark = pytest.mark.kafka

SEED = os.environ.get("HEADWAY_WALK_SEED")
FEW, MANY = range(1, 4), range(100, 120)
SHORT, LONG = 60, 500  # steps


def walk(cluster: Cluster, seed: int, steps: int, folder: Path) -> None:
    """Walk, and check at the end that nothing is lost, doubled, out of order or standing still."""
    way = Walk(cluster, seed, folder)
    try:
        way.walk(steps)
        way.end()
    except BaseException as error:
        error.add_note(f"HEADWAY_WALK_SEED={seed}, after {len(way.steps)} steps, with {way.chosen}")
        raise
    finally:
        way.close()


@pytest.mark.quick("1")
@pytest.mark.skipif(SEED is not None, reason="another seed was asked for")
@pytest.mark.parametrize("seed", FEW)
def test_a_short_walk_loses_and_doubles_nothing(kafka_cluster: Cluster, tmp_path: Path, seed: int) -> None:
    walk(kafka_cluster, seed, SHORT, tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [int(SEED)] if SEED else [pytest.param(each, marks=pytest.mark.slow) for each in MANY])
def test_a_long_walk_loses_and_doubles_nothing(kafka_cluster: Cluster, tmp_path: Path, seed: int) -> None:
    walk(kafka_cluster, seed, LONG, tmp_path)
