"""Spark whose login brokers refuse: a sentence with the reason, in seconds."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headway.broker import LocalBroker
from headway.spark import run_workers
from tests.broker.test_refused_connections import MISTAKES, Mistake, broker, mistakes

__all__ = ["broker", "mistakes"]  # fixtures

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

HANDLER = "tests.spark.programs.handlers:local"


def read(spark: SparkSession, options: dict[str, str]) -> None:
    spark.read.format("headway").options(**options, subscribe="orders", levels="1").load().count()


def write(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.createDataFrame([("one", "orders")], "value string, topic string")
    rows.write.format("headway").mode("append").options(**options).save()


@pytest.mark.slow
@pytest.mark.parametrize("work", [read, write])
def test_a_wrong_password_is_told(
    spark: SparkSession, headway_secure_broker: LocalBroker, work: Callable[[SparkSession, dict[str, str]], None]
) -> None:
    config = {**headway_secure_broker.client_config(), "sasl.password": "guessed"}
    with pytest.raises(Exception, match=r"refuses this client: .*invalid credentials") as raised:
        work(spark, {f"kafka.{key}": str(value) for key, value in config.items()})
    assert "guessed" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("work", [read, write])
def test_each_mistake_is_told(
    spark: SparkSession,
    mistakes: dict[str, Mistake],
    work: Callable[[SparkSession, dict[str, str]], None],
    mistake: str,
) -> None:
    config = {**mistakes[mistake].config}
    if "oauth_cb" in config:
        config["oauth_cb"] = "tests.broker.test_refused_connections:bad_token"
    began = time.monotonic()
    with pytest.raises(Exception, match=mistakes[mistake].reason) as raised:
        work(spark, {f"kafka.{key}": str(value) for key, value in config.items()})
    assert mistakes[mistake].advice in str(raised.value)
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_workers_with_a_wrong_password_are_not_started(spark: SparkSession, headway_secure_broker: LocalBroker) -> None:
    config: dict[str, Any] = {**headway_secure_broker.client_config(), "sasl.password": "guessed"}
    with pytest.raises(Exception, match=r"refuses this client: .*invalid credentials"):
        run_workers(spark, HANDLER, 1, config)
