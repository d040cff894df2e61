"""The supervisor of `headway worker`, with processes that only say that they live."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from headway.cli.workers import supervisor
from headway.cli.workers.messages import Code, LogStyle, MemberReport, MemberSamples, MemberTask, Order, Warn
from headway.cli.workers.supervisor import Supervisor


class FakeProcess:
    """A member's process that fails for good if it is the first; any other one ends only when it is killed."""

    others: list["FakeProcess"]

    def __init__(self, job: MemberTask) -> None:
        self.job = job
        self.report = MemberReport()
        self.metrics = MemberSamples([])
        self.worker = job.worker
        self.mistake = ""
        self.ran = ()
        self.pid = 0
        self.told: list[Order | Warn] = []
        self._killed = asyncio.Event()

    async def start(self) -> None:
        if self.job.index:
            self.others.append(self)

    async def ended(self) -> int:
        if self.job.index:
            await self._killed.wait()
            return -signal.SIGKILL
        await until(lambda: bool(self.others))
        self.mistake = "A record failed for good."
        return Code.FAILED_FOR_GOOD

    def tell(self, order: Order | Warn) -> None:
        self.told.append(order)

    def kill(self) -> None:
        self._killed.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_second_ctrl_c_kills_also_while_another_mistake_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    others = FakeProcess.others = []
    monkeypatch.setattr(supervisor, "MemberProcess", FakeProcess)
    jobs = [MemberTask("billing:bill", index, {}, None, 600, LogStyle()) for index in range(2)]

    async def interrupt_twice() -> Code:
        running = asyncio.create_task(Supervisor(jobs, 600, None, lambda name: {}).run())
        await until(lambda: bool(others) and others[0].told == [Order.DRAIN])
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: others[0].told == [Order.DRAIN, Order.STOP])
        os.kill(os.getpid(), signal.SIGINT)
        return (await asyncio.wait_for(running, 2)).code

    assert asyncio.run(interrupt_twice()) == Code.FAILED_FOR_GOOD
