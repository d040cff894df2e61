"""One member of a worker's group, in its own process: `python -m headway.cli.workers.member FD FD NAME`.

The first descriptor is the socket to the supervisor. The second is the file in which the member notes its running
records, so that the supervisor can read them if the member dies.

The member ends when the supervisor orders it to, when the supervisor dies, or after SIGTERM.
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence

from headway.cli.workers.handling import HandlingElsewhere, with_record_in_logs
from headway.cli.workers.logs import log_to_stderr
from headway.cli.workers.messages import (
    LONGEST_LINE,
    Code,
    MemberReport,
    MemberSamples,
    MemberTask,
    Order,
    Warn,
    from_line,
    order_from_line,
    to_line,
)
from headway.core.engine.suspects import Suspect
from headway.core.user_errors import kind_of, text_of
from headway.declarations import called
from headway.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    HandlerError,
    HeadwayError,
    LifespanError,
    OffsetError,
    OffsetMapError,
)
from headway.execution.gates.supervision import Supervision
from headway.execution.lifespan import SHUT_DOWN_WITHIN
from headway.execution.metrics import ParallelMetrics
from headway.metrics.health import Health
from headway.metrics.samples import with_label
from headway.parallel.consumer import ParallelConsumer
from headway.runtime.flag import Flag
from headway.workers.find_workers import find_workers

log = logging.getLogger("headway.worker")

_REPORT_EVERY = 0.25  # seconds between two reports to the supervisor
_METRICS_EVERY = 2.0  # seconds between two reports of metrics, if the command serves probes
# Sentences to the supervisor are cut to this many characters, because a handler's error can have any length.
_LONGEST_SENTENCE = 10_000
LEAVE_WITHIN = 10.0
"""How many seconds a member has to leave its group after the last record. It then has as long to end its process."""


class WorkingMember:
    """Runs a job until the supervisor or SIGTERM stops it."""

    def __init__(self, supervisor: socket.socket, table: int) -> None:
        self._supervisor = supervisor
        self._table = table
        self._orders = supervisor.makefile("rb")
        self._job = from_line(self._orders.readline(), MemberTask)
        self._consumer: ParallelConsumer | None = None
        self._supervision: Supervision | None = None
        self._suspects = list(self._job.suspects)
        self._sending = threading.Lock()  # held while a line is sent to the supervisor
        self._supervising = threading.Lock()  # held while suspects are passed to the supervision

    def run(self) -> Code:
        """Do the job, and return the exit code of the process."""
        log_to_stderr(self._job.logs, self._job.worker, self._job.index)
        # Ignore a second SIGTERM, because a process manager may send SIGTERM to the supervisor and to its members at
        # once.
        signal.signal(signal.SIGTERM, lambda *_: self._end(Order.DRAIN))
        threading.Thread(target=self._follow_orders, name="headway-orders", daemon=True).start()
        try:
            [worker] = find_workers([self._job.worker]).values()
            consumer = worker.consumer(self._job.config, self._job.max_concurrency, self._job.index)
            with self._supervising:
                self._supervision = consumer.supervise(self._table, self._suspects)
            self._consumer = consumer
            if worker.options.executor == "process":
                handler = called(worker.handler)
                elsewhere = HandlingElsewhere(self._job.worker, handler, self._job.index, self._job.logs)
                return self._handle(consumer, lambda: worker.run(consumer, elsewhere))
            return self._handle(consumer, lambda: worker.run(consumer, with_record_in_logs(worker)))
        except KeyboardInterrupt:
            return Code.INTERRUPTED
        except Exception as error:
            return self._end_of(error)

    def _end_of(self, error: Exception) -> Code:
        """Report to the supervisor, or in the log, why this process ends, and return the exit code."""
        if isinstance(error, (ConfigError, AuthorizationError, OffsetError, OffsetMapError)):
            return self._report_mistake(str(error), Code.MISTAKE)
        if isinstance(error, LifespanError):
            return self._report_mistake(f"{self._job.worker}: {error}", Code.MISTAKE)
        if isinstance(error, HandlerError):
            return self._report_mistake(f"{self._job.worker}: {error}", Code.FAILED_FOR_GOOD)
        if isinstance(error, AuthenticationError) and not error.was_connected:
            return self._report_mistake(f"{self._job.worker}: {error}", Code.MISTAKE)
        # If the credentials in the settings file were renewed, the brokers may accept the next process.
        if isinstance(error, AuthenticationError):
            log.critical("This process ends: %s", error)
        else:
            why = f"{kind_of(error)}: {text_of(error)}"
            is_known = isinstance(error, HeadwayError) or why == self._job.last_crash
            log.critical("This process ends: %s", why, exc_info=None if is_known else error)
            self._send(MemberReport(crash=why[:_LONGEST_SENTENCE]))
        return Code.CRASHED

    def _report_mistake(self, sentence: str, code: Code) -> Code:
        self._send(MemberReport(mistake=sentence[:_LONGEST_SENTENCE]))
        return code

    def _handle(self, consumer: ParallelConsumer, run: Callable[[], None]) -> Code:
        # Exclude all objects that are loaded so far from garbage collection. Scanning them each time would cost a tenth
        # of the CPU time.
        gc.freeze()
        ended = Flag()
        threading.Thread(target=self._report, args=(consumer, ended), name="headway-reports", daemon=True).start()
        metrics = MetricsReports(consumer, self._job.worker, self._send) if self._job.is_probed else None
        if metrics:
            threading.Thread(target=metrics.run, args=(ended,), name="headway-metrics", daemon=True).start()
        try:
            run()
        finally:
            ended.set()
            counts = consumer.metrics()
            if metrics:
                metrics.send()
            self._send(_report_of(counts))
            log.info(
                "Ended: %d handled, %d of them dead letters; %d attempts failed.",
                counts.done,
                counts.dead_letters,
                counts.failed,
            )
        if counts.abandoned:
            log.error("%d handlers could not be stopped; their records are handled again later.", counts.abandoned)
            return Code.UNFINISHED
        return Code.DONE

    # The connection to the supervisor

    def _report(self, consumer: ParallelConsumer, ended: Flag) -> None:
        """Report progress to the supervisor, but not more often than a person can read it."""
        last = None
        while not ended.wait(_REPORT_EVERY):
            report = _report_of(consumer.metrics())
            if report != last:
                last = report
                self._send(report)

    def _send(self, report: MemberReport | MemberSamples) -> None:
        # Two threads send, and `sendall` can send a line in several parts.
        with self._sending, contextlib.suppress(OSError):  # the supervisor has died, which `_follow_orders` handles
            self._supervisor.sendall(to_line(report))

    def _follow_orders(self) -> None:
        with contextlib.suppress(OSError):  # the supervisor ended before it read the last report
            for line in self._orders:
                order = order_from_line(line)
                if isinstance(order, Warn):
                    self._suspect(order.suspects)
                else:
                    self._end(order)
        # The supervisor has died, so no other process would kill this one if it does not end by itself.
        self._end(Order.DRAIN)
        time.sleep(self._job.drain_timeout + SHUT_DOWN_WITHIN + LEAVE_WITHIN)
        os._exit(Code.UNFINISHED)

    def _suspect(self, suspects: Sequence[Suspect]) -> None:
        with self._supervising:
            if self._supervision:
                self._supervision.suspect(suspects)
            elif self._consumer is None:
                self._suspects += suspects

    def _end(self, order: Order) -> None:
        if self._consumer is None:
            os._exit(Code.DONE)
        self._consumer.stop(drain=order is Order.DRAIN, timeout=self._job.drain_timeout)


class MetricsReports:
    """Sends the samples and the health of a consumer to the supervisor, at regular intervals and once at the end."""

    def __init__(
        self, consumer: ParallelConsumer, worker: str, send: Callable[[MemberReport | MemberSamples], None]
    ) -> None:
        self._measure = consumer.measure()
        self._check = consumer.watch_health()
        self._worker = worker
        self._send = send

    def run(self, ended: Flag) -> None:
        """Send them until the run has ended."""
        while not ended.wait(_METRICS_EVERY):
            self.send()

    def send(self) -> None:
        """Send the present samples and health."""
        samples = with_label(self._measure(), "handler", self._worker)
        if len(to_line(MemberSamples(samples))) > LONGEST_LINE - 2 * _LONGEST_SENTENCE:
            log.error("This process has too many metrics to send them to the supervisor: %d.", len(samples))
            samples = [each for each in samples if "partition" not in each.metric.labels]
        health = self._check()
        cut = [tuple(each[:_LONGEST_SENTENCE] for each in of[:1]) for of in (health.not_live, health.not_ready)]
        self._send(MemberSamples(samples, Health(*cut)))


def _report_of(counts: ParallelMetrics) -> MemberReport:
    waiting = max(0, counts.remaining - counts.running)
    return MemberReport(counts.done, counts.failed, counts.running, waiting)


def main() -> None:
    """Do the job that is received on the socket. The last argument is only for people who read process lists."""
    supervisor, table = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    for descriptor in (supervisor.fileno(), table):
        os.set_inheritable(descriptor, False)  # processes that a handler starts must not inherit the descriptor
    code = WorkingMember(supervisor, table).run()
    # Do not end normally: Python would wait for a thread that a handler has started, which might never end.
    last_resort = threading.Timer(LEAVE_WITHIN, os._exit, [code])
    last_resort.daemon = True
    last_resort.start()
    sys.exit(code)


if __name__ == "__main__":
    main()
