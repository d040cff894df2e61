"""The settings of a Spark session."""

import pytest

from headway.spark.session.session import ON_THIS_MACHINE, SETTINGS, settings_for


@pytest.mark.parametrize("master", [None, "local[2]"])
def test_on_this_machine_nobody_else_is_asked_and_checkpoints_are_quick(master: str | None) -> None:
    settings = settings_for(master)
    assert settings.items() >= {**SETTINGS, **ON_THIS_MACHINE}.items()
    assert settings["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host:6443"])
def test_on_a_cluster_executors_can_reach_the_driver_and_a_checkpoint_may_be_anywhere(master: str) -> None:
    settings = settings_for(master)
    assert settings.items() >= SETTINGS.items()
    assert not settings.keys() & ON_THIS_MACHINE.keys()


def test_a_short_lived_session_has_the_quick_compiler_alone() -> None:
    assert "TieredStopAtLevel=1" in settings_for(None, short_lived=True)["spark.driver.extraJavaOptions"]
    assert "Tiered" not in settings_for(None)["spark.driver.extraJavaOptions"]
