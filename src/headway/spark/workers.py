"""`run_workers`, which runs `@worker` handlers as long-running tasks on a Spark cluster.

Each worker is a Spark job with one task. If its executor dies, Spark starts the task on another executor, without
disturbing the other workers. Workers are not stopped by cancelling their jobs, because Spark would then kill the Python
processes within two seconds. Instead, they receive a stop message through Kafka, and drain and leave their groups.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from pyspark import InheritableThread, SparkContext
from pyspark.sql import SparkSession

from headway.core.restart_policy import MOST_DEATHS, RestartPolicy
from headway.declarations import check_number, check_whole
from headway.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    HandlerError,
    HeadwayError,
    KafkaError,
    LifespanError,
)
from headway.execution.metrics import ParallelMetrics
from headway.kafka.reading.control_topic import ControlTopic, listening
from headway.parallel.consumer import ParallelConsumer
from headway.settings.config import Config
from headway.settings.connection_settings import connection_of
from headway.spark.session.session_context import context_of
from headway.spark.worker_process import STOP, TaskSupervisor
from headway.workers.find_workers import find_workers

log = logging.getLogger(__name__)

CONTROL_TOPIC = "headway-control"
_LEAVE_WITHIN = 30.0  # a worker has this many seconds to leave its group and end after its last record is done


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The parameters of a worker's task, which are sent to the cluster.

    `config` has the settings that the user passed to `run_workers`. `connection` also includes the settings that the
    worker declares.
    """

    worker: str
    config: Config = field(repr=False)
    connection: Config = field(repr=False)
    max_concurrency: int | None
    drain_timeout: float
    run: str
    since: int
    index: int = 0

    def work(self, index: int) -> "Ended":
        """Run the worker with number `index` in a separate process until the stop message of this run arrives."""
        in_process = replace(self, index=index, connection={})
        supervisor = TaskSupervisor(in_process, lambda: ControlTopic(self.connection, CONTROL_TOPIC), self.run)
        with listening(self.connection, CONTROL_TOPIC, self.since, self.run, supervisor.hear):
            return supervisor.work() or Ended(None, "")

    # In the process

    @property
    def name(self) -> str:
        """The name of the worker with its number, as it appears in logs."""
        return f"{self.worker}[{self.index}]"

    def consumer(self) -> ParallelConsumer:
        """Create the consumer for the worker's handler."""
        [worker] = find_workers([self.worker]).values()
        return worker.consumer(self.config, self.max_concurrency, self.index)

    def handle(self, consumer: ParallelConsumer) -> "Ended":
        """Run the handler until the consumer is stopped."""
        [worker] = find_workers([self.worker]).values()
        worker.run(consumer)
        return Ended(consumer.metrics(), "")

    def mistake(self, error: HeadwayError) -> "Ended":
        """Return how the task ends if the error would occur again. Raises the error if a retry might succeed."""
        is_refused = isinstance(error, AuthenticationError) and not error.was_connected
        if is_refused or isinstance(error, (AuthorizationError, ConfigError, HandlerError, LifespanError)):
            return Ended(None, f"{self.worker}: {error}")
        raise error


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker's task ended: its metrics, or an error message if it must not be started again."""

    metrics: ParallelMetrics | None
    mistake: str


def run_workers(
    spark: SparkSession,
    handler_path: str,
    n: int,
    config: Config,
    *,
    max_concurrency: int | None = None,
    drain_timeout: float = 30.0,
) -> "ClusterWorkers":
    """Run a `@worker` in `n` tasks on the cluster, each of which is a member of the worker's consumer group.

    Returns without waiting for the workers to start. These workers work like those of `headway worker`: each record is
    acknowledged individually, and a worker that dies with its executor is replaced. Each worker occupies a core for as
    long as it runs.

    Args:
        spark: The session. Its cluster needs a free core for each worker.
        handler_path: The handler as `module:handler`. The cluster must be able to import the module, for example by
            `spark-submit --py-files`.
        n: The number of workers, which share the partitions. If there are more workers than partitions, some are idle.
        config: Kafka's address and further settings, as for a `ParallelConsumer`.
        max_concurrency: How many records each worker handles at a time. By default, this is the number that the
            `@worker` declares.
        drain_timeout: How many seconds running records can take after `stop`.

    Raises `ConfigError` for a session of Spark Connect, and if this program does not find the handler, or the handler
    is not a worker. Raises `KafkaError` if the topic `headway-control`, through which the stop message is sent, cannot
    be used.
    """
    check_whole("n", n, 1)
    if max_concurrency is not None:
        check_whole("max_concurrency", max_concurrency, 1)
    check_number("drain_timeout", drain_timeout, 0)
    if not isinstance(handler_path, str) or ":" not in handler_path:
        raise ConfigError(f"The handler is {handler_path!r}; name it as module:handler.")
    context = context_of(spark, "run_workers", "Run `headway worker`, or submit a program that calls run_workers.")
    [worker] = find_workers([handler_path]).values()
    connection = connection_of({**worker.config, **config})
    control = ControlTopic(connection, CONTROL_TOPIC)
    task = WorkerTask(handler_path, config, connection, max_concurrency, drain_timeout, uuid.uuid4().hex, control.end())
    return ClusterWorkers(context, task, n, control)


class ClusterWorkers:
    """The workers that `run_workers` has started. A `with` block stops them at its end."""

    def __init__(self, spark: SparkContext, task: WorkerTask, n: int, control: ControlTopic) -> None:
        self._spark = spark
        self._task = task
        self._control = control
        self._ending = threading.Event()
        self._mistake = ""
        self._results: list[ParallelMetrics] = []
        self._threads = [
            InheritableThread(target=self._keep_alive, name=f"headway-worker-{index}", args=(index,), daemon=True)
            for index in range(n)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send all workers the message to drain and leave their groups. Does not wait until they have ended.

        If the message cannot be sent, the jobs of the workers are cancelled, and running records are handled again
        later.
        """
        if self._ending.is_set():
            return
        self._ending.set()
        try:
            self._control.say(self._task.run, STOP)
        except KafkaError as error:
            log.error(
                "The stop message could not be sent to the workers of %s, so they are cancelled. %s",
                self._task.worker,
                error,
            )
            self._spark.cancelJobGroup(self._task.run)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all workers have ended. Returns False if they have not ended within `timeout` seconds.

        Raises `HeadwayError` if the workers had to stop because a record failed permanently and there is no dead-letter
        topic, or because a worker died several times in a row.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            while thread.is_alive() and (deadline is None or time.monotonic() < deadline):
                thread.join(0.1)  # waits for a short time only, so that Ctrl-C is handled
        if any(thread.is_alive() for thread in self._threads):
            return False
        if self._mistake:
            raise HeadwayError(self._mistake)
        return True

    @property
    def results(self) -> list[ParallelMetrics]:
        """The metrics of the workers that have ended."""
        return list(self._results)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if not self.wait(self._task.drain_timeout + _LEAVE_WITHIN):
            log.error("The workers of %s did not end in time, so they are cancelled.", self._task.worker)
            self._spark.cancelJobGroup(self._task.run)

    # One thread per worker

    def _keep_alive(self, index: int) -> None:
        deaths = RestartPolicy()
        while not self._ending.is_set():
            born = time.monotonic()
            try:
                ended = self._run_job(index)
            except Exception as error:  # from Spark, if the task failed too often or the application ends
                self._mourn(index, error, deaths.delay(time.monotonic() - born))
            else:
                self._note(ended)
                return

    def _run_job(self, index: int) -> Ended:
        task = self._task
        self._spark.setJobGroup(task.run, f"headway worker {task.worker}[{index}]")

        def work(_: Iterable[int]) -> Iterable[Ended]:
            yield task.work(index)

        return self._spark.parallelize([index], 1).mapPartitions(work).collect()[0]

    def _note(self, ended: Ended) -> None:
        if ended.metrics:
            self._results.append(ended.metrics)
        if ended.mistake:
            self._give_up(ended.mistake)

    def _mourn(self, index: int, error: Exception, delay: float | None) -> None:
        name = f"{self._task.worker}[{index}]"
        if self._ending.is_set():
            log.error("%s died while it was stopping: %s", name, error)
        elif delay is None:
            self._give_up(f"{name} died {MOST_DEATHS} times in a row and is not restarted: {error}")
        else:
            log.error("%s died; restarting it in %g s: %s", name, delay, error)
            self._ending.wait(delay)

    def _give_up(self, mistake: str) -> None:
        log.error("%s", mistake)
        self._mistake = self._mistake or mistake
        self.stop()
