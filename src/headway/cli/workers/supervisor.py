"""The supervisor, which keeps one process running for each member, until SIGTERM, Ctrl-C, or a fatal error."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from headway.cli.display.terminal import count
from headway.cli.workers.member import LEAVE_WITHIN
from headway.cli.workers.messages import (
    LONGEST_LINE,
    Code,
    MemberReport,
    MemberSamples,
    MemberTask,
    Order,
    Warn,
    report_from_line,
    to_line,
)
from headway.cli.workers.pod_metrics import PodMetrics
from headway.cli.workers.progress_line import WorkersProgressLine
from headway.core.engine.suspects import RunningAttempt, Suspects, how_it_ended
from headway.core.restart_policy import MOST_DEATHS, RestartPolicy
from headway.execution.lifespan import SHUT_DOWN_WITHIN
from headway.execution.running_table import make_table_file, read_table
from headway.metrics.health import Health

log = logging.getLogger("headway.worker")

_LAST_REPORT_WITHIN = 1.0  # seconds to wait for the last report of a process that has ended
_SHOW_EVERY = 0.5  # seconds between two updates of the progress line
_TASKS = Path("/proc/self/task")


class Conclusion(NamedTuple):
    """The exit code, and a sentence with the reason, which is missing if the user has stopped the command."""

    code: Code
    sentence: str = ""


class MemberProcess:
    """The running process of a member."""

    def __init__(self, job: MemberTask) -> None:
        self.job = job
        self.report = MemberReport()
        # Until the member has sent something, it is starting.
        self.metrics = MemberSamples([], Health(not_ready=("It is starting.",)))
        self.heard_at = time.monotonic()
        self.mistake = ""
        self.crash = ""
        self.ran: Sequence[RunningAttempt] = ()
        """The records that were running when the process died."""

    async def start(self) -> None:
        """Start the process in its own session, so that Ctrl-C in the terminal reaches only the supervisor."""
        ours, theirs = socket.socketpair()
        self._table = make_table_file()
        with theirs:
            descriptors = theirs.fileno(), self._table
            self._process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-P",
                    "-m",
                    "headway.cli.workers.member",
                    *map(str, descriptors),
                    member_name(self.job),
                ),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_LINE)
        self._writer.write(to_line(self.job))
        self._listening = asyncio.create_task(self._listen())

    @property
    def name(self) -> str:
        """The name of the member."""
        return member_name(self.job)

    @property
    def worker(self) -> str:
        """The name of its worker."""
        return self.job.worker

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ended(self) -> int:
        """Wait until the process has ended.

        Returns its exit code, or the negative number of the signal that ended it.
        """
        code = await self._process.wait()
        with contextlib.suppress(TimeoutError):  # a child of the process may keep the socket open
            await asyncio.wait_for(self._listening, _LAST_REPORT_WITHIN)
        self._writer.close()
        self.ran = read_table(self._table)
        os.close(self._table)
        return code

    def tell(self, order: Order | Warn) -> None:
        """Send an order to end, or a list of suspect records, to the process."""
        self._writer.write(to_line(order))

    def kill(self) -> None:
        """Kill the process at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _listen(self) -> None:
        with contextlib.suppress(OSError):
            async for line in self._reader:
                report = report_from_line(line)
                if isinstance(report, MemberSamples):
                    self.metrics, self.heard_at = report, time.monotonic()
                elif report.mistake or report.crash:
                    self.mistake, self.crash = report.mistake, report.crash
                else:
                    self.report = report


class Supervisor:
    """Runs each job in a process, and restarts processes that die.

    `drain_timeout` is how many seconds running handlers may take to finish. `config_of` returns a worker's current
    settings for each process that starts.
    """

    def __init__(
        self,
        jobs: Sequence[MemberTask],
        drain_timeout: float,
        progress: WorkersProgressLine | None,
        config_of: Callable[[str], dict[str, Any]],
    ) -> None:
        self._jobs = jobs
        self._drain_timeout = drain_timeout
        self._progress = progress
        self._config_of = config_of
        self._living: set[MemberProcess] = set()
        self._suspects: defaultdict[str, Suspects] = defaultdict(Suspects)  # suspect records by worker
        self._dead = MemberReport()
        self._ending = asyncio.Event()
        self._order = Order.DRAIN
        self._is_interrupted = False
        self._starting = 0
        self._outcome = Conclusion(Code.DONE)
        self.pod = PodMetrics(lambda: list(self._living), len(jobs))
        """The metrics and the health of all members, if they are probed."""

    async def run(self) -> Conclusion:
        """Run the jobs until they must end, and return the conclusion."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        # A background job of a shell ignores SIGINT, and must continue to ignore it.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGCHLD, self._collect_orphans)
        showing = asyncio.create_task(self._show())
        try:
            async with asyncio.TaskGroup() as members:
                for job in self._jobs:
                    members.create_task(self._keep_alive(job))
        finally:
            showing.cancel()
            if self._progress:
                self._progress.clear()
        return self._outcome

    # Members

    async def _keep_alive(self, job: MemberTask) -> None:
        deaths = RestartPolicy()
        crash = ""
        while not self._ending.is_set():
            config, suspects = self._config_of(job.worker), self._suspects[job.worker].all()
            process = MemberProcess(replace(job, config=config, suspects=suspects, last_crash=crash))
            code, lived = await self._live(process)
            if self._ending.is_set():
                self._conclude(_outcome(code, process.mistake))
            elif process.mistake:
                self._end(Order.DRAIN, _outcome(code, process.mistake))
            else:
                crash = process.crash
                self._suspect(process, how_it_ended(code))
                await self._wait_to_restart(process, how_it_ended(code), lived, deaths)

    async def _live(self, process: MemberProcess) -> tuple[int, float]:
        """Start a process, and wait until it has ended. Returns its exit code and how many seconds it ran."""
        born = time.monotonic()
        self._starting += 1
        await process.start()
        self._living.add(process)
        self._starting -= 1
        log.info("Started %s as process %d.", member_name(process.job), process.pid)
        # While this process was starting, it was not yet in `_living`. So send it now the suspects that the other
        # processes received during that time.
        suspects = self._suspects[process.job.worker].all()
        if suspects != process.job.suspects:
            process.tell(Warn(suspects))
        if self._ending.is_set():
            process.tell(self._order)
        code = await process.ended()
        self._living.discard(process)
        self._dead = MemberReport(
            self._dead.handled + process.report.handled, self._dead.failed + process.report.failed
        )
        self.pod.ended(process, died=not self._ending.is_set())
        return code, time.monotonic() - born

    def _suspect(self, process: MemberProcess, how: str) -> None:
        """Warn all members of a worker about records that were running when one of its processes died."""
        suspects = self._suspects[process.job.worker].died(process.ran, how, time.time())
        for other in self._living:
            if suspects and other.job.worker == process.job.worker:
                other.tell(Warn(suspects))
        if process.ran:
            records = count(len(process.ran), "record")
            log.error(
                "%s %s while it was handling %s. From now on, each of these records runs alone.",
                member_name(process.job),
                how,
                records,
            )

    async def _wait_to_restart(self, process: MemberProcess, how: str, lived: float, deaths: RestartPolicy) -> None:
        """Wait until the process should be restarted, or end the command if the process keeps dying."""
        name, delay = member_name(process.job), deaths.delay(lived, by_records=bool(process.ran))
        if delay is None:
            how_often = f"{MOST_DEATHS} times in a row, the last time {how} after {lived:.1f} s"
            sentence = f"{name} died {how_often}. It is not restarted."
            why = f"Its error: {process.crash}" if process.crash else "Its own log is above."
            others = "" if len(self._jobs) == 1 else " All other processes stop too."
            self._end(Order.DRAIN, Conclusion(Code.KEPT_DYING, f"{sentence}{others} {why}"))
            return
        log.error("%s, process %d, %s after %.1f s; restarting it in %g s.", name, process.pid, how, lived, delay)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), delay)

    def _collect_orphans(self) -> None:
        if not self._starting:  # while a process is starting, its id is not known yet
            collect_orphans([process.pid for process in self._living])

    # Shutdown

    def _terminate(self) -> None:
        again = self._ending.is_set()
        log.info("SIGTERM: %s.", "not waiting for running handlers" if again else "waiting for running handlers")
        self._end(Order.STOP if again else Order.DRAIN, Conclusion(Code.DONE))

    def _interrupt(self) -> None:
        if self._is_interrupted:
            self._kill()
        self._is_interrupted = True
        self._end(Order.STOP, Conclusion(Code.INTERRUPTED))

    def _end(self, order: Order, outcome: Conclusion) -> None:
        """Order all members to end."""
        self._conclude(outcome)
        self._order = order
        self.pod.is_ending = True
        self._ending.set()
        for process in self._living:
            process.tell(order)
        longest = 2 * LEAVE_WITHIN + SHUT_DOWN_WITHIN + (self._drain_timeout if order is Order.DRAIN else 0.0)
        asyncio.get_running_loop().call_later(longest, self._kill)

    def _kill(self) -> None:
        for process in self._living:
            log.error("%s did not end in time; killing it.", member_name(process.job))
            process.kill()

    def _conclude(self, outcome: Conclusion) -> None:
        """Keep the first conclusion that is not `DONE`, because it determines the exit code of the command."""
        if self._outcome.code == Code.DONE:
            self._outcome = outcome

    # Progress

    async def _show(self) -> None:
        while self._progress:
            reports = [self._dead, *(process.report for process in self._living)]
            self._progress.show(reports, len(self._living), time.monotonic())
            await asyncio.sleep(_SHOW_EVERY)


def member_name(job: MemberTask) -> str:
    """Format a member's name for logs.

    >>> from headway.cli.workers.messages import LogStyle
    >>> member_name(MemberTask("billing:bill", 2, {}, None, 30, LogStyle()))
    'billing:bill[2]'
    """
    return f"{job.worker}[{job.index}]"


def _outcome(code: int, mistake: str) -> Conclusion:
    """Return the conclusion of the command, which ends because this process has ended and is not restarted."""
    if mistake:
        return Conclusion(Code.FAILED_FOR_GOOD if code == Code.FAILED_FOR_GOOD else Code.MISTAKE, mistake)
    if code != Code.DONE:
        return Conclusion(
            Code.UNFINISHED, "Some running handlers did not finish; their records are handled again later."
        )
    return Conclusion(Code.DONE)


def collect_orphans(own: Collection[int]) -> None:
    """Collect all orphaned processes that have ended. This works only on Linux, where containers run.

    An orphan is a process that a handler left behind. In a container without an init process, `headway worker` is
    process 1 and adopts the orphan. When the orphan ends, it remains as a zombie until it is collected, and zombies use
    up the container's process ids.

    `own` are the processes for which asyncio waits. Each of these processes leads its own session, so their orphans are
    not in the session of this process. A child process in the session of this process was started by a library, which
    waits for it.
    """
    session = os.getsid(0)
    for child in _children():
        with suppress(OSError, ValueError, IndexError):  # another thread may have collected the process already
            if child not in own and _is_zombie(child) and os.getsid(child) != session:
                os.waitpid(child, os.WNOHANG)


def _children() -> Iterator[int]:
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError):  # the thread may have ended already
                yield from map(int, (task / "children").read_text().split())


def _is_zombie(process: int) -> bool:
    # The process name before the state is in parentheses, and can contain any character, even a parenthesis.
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
