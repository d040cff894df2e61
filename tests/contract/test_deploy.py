"""What `deploy/` starts: commands that exist, with options that exist, and times that fit each other."""

import configparser
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from headway.cli import headway

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def unit(path: Path) -> configparser.SectionProxy:
    """The section about the service in a unit."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser["Service"]


def pod(path: Path) -> dict[str, Any]:
    """The specification of the pods of a manifest."""
    spec: dict[str, Any] = yaml.safe_load(path.read_text())["spec"]["template"]["spec"]
    return spec


def commands() -> Iterator[list[str]]:
    """Yield every command line that starts something of Headway."""
    for path in UNITS:
        yield unit(path)["ExecStart"].split()[1:]
    for path in MANIFESTS:
        for container in pod(path)["containers"]:
            yield container["args"][1:]
    [words] = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    yield json.loads(words)[1:]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_each_command_exists_with_its_options(words: list[str]) -> None:
    assert isinstance(headway, click.Group)
    context = click.Context(headway)
    command = headway.get_command(context, words[0])
    assert command is not None
    parsed = command.make_context(words[0], words[1:], parent=context)
    assert parsed.params["probes"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_pod_is_asked_at_the_port_and_paths_that_it_serves(path: Path) -> None:
    for container in pod(path)["containers"]:
        [probes] = [word for word in container["args"] if word.startswith("--probes=")]
        [port] = container["ports"]
        assert probes == f"--probes=0.0.0.0:{port['containerPort']}"
        asked = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert {each["port"] for each in asked.values()} == {port["name"]}
        assert [each["path"] for each in asked.values()] == ["/livez", "/livez", "/readyz"]


def test_nothing_is_killed_before_its_handlers_may_end() -> None:
    worker = pod(DEPLOY / "kubernetes" / "worker.yaml")
    [drain] = [word for word in worker["containers"][0]["args"] if word.startswith("--drain-timeout=")]
    assert worker["terminationGracePeriodSeconds"] >= int(drain.partition("=")[2]) + 10
    service = unit(DEPLOY / "systemd" / "headway-worker@.service")
    words = service["ExecStart"].split()
    assert int(service["TimeoutStopSec"]) >= int(words[words.index("--drain-timeout") + 1]) + 10


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_each_unit(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name.replace("@", "@shop")
    copy.write_text(path.read_text().replace("/opt/shop/bin/headway", "/bin/true"))
    checked = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
