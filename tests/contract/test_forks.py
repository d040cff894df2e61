"""In a forked process each public object made before says so at once, and ends with the process; a new one works."""

import subprocess
import sys
import textwrap
import uuid

import pytest

from headway import Producer, create_topic
from headway.broker import LocalBroker

PROGRAM = """
    import asyncio, os, signal, sys, threading
    from headway import AsyncPriorityConsumer, AsyncProducer, AsyncScheduler, ParallelConsumer, Producer
    from headway import PriorityConsumer, Relay, Scheduler, TopicPartition, create_topic
    from headway.broker import LocalBroker
    from headway.errors import ClosedError
    from headway.testing import MockCluster

    signal.alarm(100)
    servers, data_dir, name = sys.argv[1:]
    config = {"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"}

    def refused(**calls):
        for call_name, call in calls.items():
            try:
                call()
            except ClosedError as error:
                assert "created before the process was forked" in str(error), (call_name, error)
            else:
                raise AssertionError(call_name)

    def forked(work):
        child = os.fork()
        if not child:
            signal.alarm(20)
            work()
            sys.exit(7)  # an ordinary end: objects that are alive now are destroyed
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

    def handle(record, context):
        pass
"""

PARTS = {
    "a parallel consumer that has not run": """
        made = ParallelConsumer(config)
        made.subscribe(name)
        place = TopicPartition(name, partition=0)

        def work():
            refused(run=lambda: made.run(handle), subscribe=lambda: made.subscribe(name), pause=made.pause)
            refused(results=lambda: list(made.results(handle)), resume=made.resume, paused=made.paused)
            refused(seek=lambda: made.seek(place, 0), commit=made.request_commit, metrics=made.metrics)
            refused(assignment=made.assignment, work=lambda: made.work_remaining)
            made.stop()
            with made:
                pass
            ParallelConsumer(config).close()

        forked(work)
        made.close()
    """,
    "a parallel consumer that runs": """
        handled, made = threading.Event(), ParallelConsumer(config)
        made.subscribe(name)
        runs = threading.Thread(target=made.run, args=[lambda record, context: handled.set()])
        runs.start()
        assert handled.wait(60)

        def work():
            refused(run=lambda: made.run(handle), metrics=made.metrics, pause=made.pause, commit=made.request_commit)
            made.close()

        forked(work)
        made.close()
        runs.join()
    """,
    "a stream of results": """
        made = ParallelConsumer(config)
        made.subscribe(name)
        results = iter(made.results(handle))
        next(results)
        forked(lambda: refused(next=lambda: next(results)))
        results.close()
    """,
    "a child that SIGTERM is to end": """
        made = ParallelConsumer(config)
        made.subscribe(name)

        def fork(record, context):
            child = os.fork()
            if not child:
                signal.raise_signal(signal.SIGTERM)
                os._exit(7)
            children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            made.stop()

        children = []
        made.run(fork)
        assert children == [-signal.SIGTERM], children
    """,
    "a relay": """
        Scheduler(config, name=name).close()
        made = Relay(config, name=name)

        def work():
            refused(run=made.run, running=lambda: made.running().__enter__())
            made.stop()
            with made:
                pass

        forked(work)
        made.close()
    """,
    "a relay that runs": """
        Scheduler(config, name=name).close()
        with Relay(config, name=name).running() as made:
            while not made.ready:
                threading.Event().wait(0.05)
            forked(lambda: refused(run=made.run))
            child = os.fork()
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                assert made.ready
            else:
                signal.alarm(20)
        if not child:  # which leaves the block like its parent
            sys.exit(7)
    """,
    "a scheduler": """
        made = Scheduler(config, name=name)

        def work():
            refused(send_later=lambda: made.send_later("k", "v", name, 60), cancel=lambda: made.cancel("id"))
            refused(every=lambda: made.every("0 9 * * *", "k", "v", name))
            made.close()

        forked(work)
        made.send_later("k", "v", name, 3600).future.result(30)
        made.close()
    """,
    "a priority consumer": """
        made = PriorityConsumer({**config, "levels": 1})
        made.subscribe({name: 0})
        assert made.poll(60)

        def work():
            refused(poll=made.poll, commit=made.commit, next=lambda: next(iter(made)))
            made.close()

        forked(work)
        made.close()
    """,
    "clients for asyncio": """
        connection = {"bootstrap.servers": servers}
        tells = AsyncProducer({**connection, "levels": 1, "transactional.id": name})
        reads = AsyncPriorityConsumer({**config, "levels": 1})
        later = AsyncScheduler(connection, name=name)

        async def use():
            await tells.init_transactions()
            async with tells.transaction():
                pass
            reads.subscribe({name: 0})
            await reads.poll(0.1)
            await later.send_later("k", "v", name, 3600)

        async def use_the_copies():
            async def refuses(call):
                try:
                    await call()
                except ClosedError as error:
                    assert "created before the process was forked" in str(error), error
                else:
                    raise AssertionError(call)

            await refuses(tells.begin_transaction)
            await refuses(lambda: tells.send(name, b"v"))
            await refuses(reads.poll)
            await refuses(reads.commit)
            await refuses(lambda: later.send_later("k", "v", name, 3600))
            for each in (tells, reads, later):
                await each.close()

        async def close():
            for each in (tells, reads, later):
                await each.close()

        asyncio.run(use())
        forked(lambda: asyncio.run(use_the_copies()))
        asyncio.run(close())
    """,
    "the brokers of tests": """
        with LocalBroker.attach(data_dir) as broker, MockCluster() as mock:
            forked(broker.stop)
            forked(mock.close)
            assert broker.running
            Producer(mock.settings).close()
            os._exit(0)  # without stopping the broker
    """,
}


@pytest.mark.quick("a parallel consumer that runs")
@pytest.mark.parametrize("what", PARTS)
def test_in_a_forked_process_a_copy_says_so_at_once_and_does_no_harm_at_its_end(
    what: str, headway_broker: LocalBroker
) -> None:
    name = f"forks-{uuid.uuid4().hex[:8]}"
    create_topic(headway_broker.client_config(), name)
    with Producer(headway_broker.client_config()) as sends:
        for _ in range(20):
            sends.send(name, b"v")
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(PARTS[what])
    arguments = [headway_broker.bootstrap_servers, str(headway_broker.data_dir), name]
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
