"""The metrics of a pod are the sums of its members, and never go back when one of them dies."""

import time
from dataclasses import dataclass, field

from headway.cli.workers.messages import MemberReport, MemberSamples, report_from_line, to_line
from headway.cli.workers.pod_metrics import PodMetrics
from headway.metrics.health import Health
from headway.metrics.samples import Sample
from headway.metrics.table import HANDLER_DONE, HANDLER_RUNNING, WORKER_DEATHS, WORKER_PROCESSES

HEALTHY = Health()
STARTING = Health(not_ready=("It is starting.",))


@dataclass
class Member:
    name: str
    metrics: MemberSamples
    worker: str = "billing:bill"
    heard_at: float = field(default_factory=time.monotonic)


def metrics(done: int, running: int, health: Health = HEALTHY) -> MemberSamples:
    labels = "billing", "billing:bill"
    samples = [Sample.of(HANDLER_DONE, done, *labels), Sample.of(HANDLER_RUNNING, running, *labels)]
    return MemberSamples(samples, health)


def values(pod: PodMetrics) -> list[object]:
    """How many are done, running, processes and deaths."""
    found = {sample.name: sample.value for sample in pod.samples()}
    return [found[metric.name] for metric in (HANDLER_DONE, HANDLER_RUNNING, WORKER_PROCESSES, WORKER_DEATHS)]


def test_a_member_that_dies_leaves_its_totals() -> None:
    first, second = Member("bill[0]", metrics(10, 1)), Member("bill[1]", metrics(20, 2))
    living = [first, second]
    pod = PodMetrics(lambda: living, 2)
    assert values(pod) == [30, 3, 2, 0]
    living.remove(first)
    pod.ended(first, died=True)
    assert values(pod) == [30, 2, 1, 1]
    living.append(Member("bill[0]", metrics(1, 1)))
    assert values(pod) == [31, 3, 2, 1]


def test_a_pod_is_ready_when_all_members_are() -> None:
    living = [
        Member("bill[0]", metrics(0, 0)),
        Member("bill[1]", metrics(0, 0, Health(not_ready=("It is starting.",)))),
    ]
    pod = PodMetrics(lambda: living, 3)
    health = pod.health()
    assert health.not_live == ()
    assert health.not_ready == ("bill[1]: It is starting.", "1 of 3 processes are not running now.")
    living = [Member(f"bill[{number}]", metrics(0, 0)) for number in range(3)]
    assert pod.health() == Health()
    living[0].heard_at -= 100
    living[1].metrics = metrics(0, 0, Health(not_live=("It stands still.",)))
    assert pod.health().not_live == ("bill[0]: It has sent nothing for 100 s.", "bill[1]: It stands still.")


def test_a_report_and_metrics_can_be_told_apart_on_the_wire() -> None:
    sent = metrics(3, 1, Health(("stands still",), ("not ready",)))
    assert report_from_line(to_line(sent)) == sent
    assert report_from_line(to_line(MemberReport(1, 2, 3, 4))) == MemberReport(1, 2, 3, 4)
