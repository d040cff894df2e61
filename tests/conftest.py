"""What all tests share. The real Apache Kafka comes from `headway.testing.fixtures`, as it does for users."""

import faulthandler
import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
import pytest_timeout  # type: ignore[import-untyped]
from _pytest.doctest import DoctestModule
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from headway.broker import LocalBroker
from headway.runtime.compiled import is_compiled, outdated_modules
from tests.one_broker import BrokerOfTheRun, broker_for
from tests.processor_time import ProcessorTime
from tests.quick_choice import leave_the_rest_to_test_all
from tests.time_limit import TimeLimit

# A test run in the background ignores Ctrl-C, and all that it starts would too; what Ctrl-C does is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The run in plain Python is also the one without uvloop, so that two runs cover both.
if not is_compiled():
    sys.modules["uvloop"] = None  # type: ignore[assignment]

# Programs that tests start: they read their arguments when they are imported.
collect_ignore = ["broker/secrets_program.py", "spark/programs/secrets.py"]

# How long an example takes, or takes to be made, depends on how busy the machine is, so neither has a deadline.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make test` tries 15 % of the examples; `make test-all` runs the properties again with the profile `thorough`.
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=15)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugins that `pytest_configure` adds."""
    parser.addoption(
        "--within",
        type=float,
        metavar="SECONDS",
        help="start no test later than this after the run began; the summary names the files that were not reached",
    )
    parser.addoption(
        "--processor-time",
        type=Path,
        metavar="FILE",
        help="write the processor time of each test to a CSV file, the costliest first",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the plugins of a run of several processes, of one with a time limit, and of one that is measured."""
    if outdated := outdated_modules():
        names = ", ".join(path.name for path in outdated)
        pytest.exit(f"{names} changed after being compiled. Run `make setup`, or `HEADWAY_COMPILE=0 make setup`.", 4)
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(BrokerOfTheRun())
    if within := config.getoption("within"):
        config.pluginmanager.register(TimeLimit(config, within))
    if times := config.getoption("processor_time"):
        config.pluginmanager.register(ProcessorTime(times))


@pytest.fixture(scope="session")
def headway_broker(pytestconfig: pytest.Config) -> Iterator[LocalBroker]:
    """A running Apache Kafka, the same for all processes of the run."""
    with broker_for(pytestconfig) as broker:
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no doctests among the tests: it would take a fifth of the time that collecting takes."""
    return [each for each in (yield) if not isinstance(each, DoctestModule)]


# What asks the broker for all of its topics, groups and schedules comes first, while there are few.
_FIRST = (
    "tests/contract/inspection/",
    "tests/contract/dashboard/",
    "tests/contract/testing/",
    "tests/contract/delay/",
    "tests/contract/cli/test_schedule.py",
    "tests/broker/test_delay",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that take a broker, for `-m "not kafka"`, and what `make test` leaves to `make test-all`."""
    for item in items:
        if {"headway_broker", "headway_secure_broker"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")
    leave_the_rest_to_test_all(items)
    if hasattr(config, "workerinput") and not config.getoption("within"):
        items[:] = _side_by_side(items)
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))


_COMPUTING = ("tests/unit/", "tests/property/", "src/")


def _side_by_side(items: list[pytest.Item]) -> list[pytest.Item]:
    """Spread the tests that only compute evenly among those that also wait for brokers, so that no core is idle.

    The tests run in this order only if several processes run them. What shares a fixture still goes to one process, one
    test after the other (`TogetherWhatShares`).
    """
    computing = [item.nodeid.startswith(_COMPUTING) for item in items]
    totals = Counter(computing)
    before: Counter[bool] = Counter()
    places = []
    for kind in computing:
        places.append(before[kind] / totals[kind])
        before[kind] += 1
    return [item for _, item in sorted(zip(places, items, strict=True), key=lambda pair: pair[0])]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector skip what the collection of tests has created.

    These three million objects stay until the end. Without this, each `gc.collect()` of a test takes 0.3 s.
    """
    gc.collect()
    gc.freeze()


class TogetherWhatShares(LoadScopeScheduling):  # type: ignore[misc]
    """Tests that share something go to one process; each other test goes to whichever process is free.

    Shared are Spark's session, the broker with TLS and rights, the fixtures of a module, and the scheduler of the
    default name: the processes of a run have one broker (`tests/one_broker.py`).
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith("tests/spark/"):
            return "spark"
        if file.startswith(_OF_THE_DEFAULT_SCHEDULER):
            return "default scheduler"
        if file.startswith(_OF_MIRROR_MAKER):
            return "mirror maker"
        return _shared_by(self.config.rootpath / file) or nodeid


# MirrorMaker's topic has a fixed name, and while it exists no map of the Java parallel consumer is used.
_OF_MIRROR_MAKER = "tests/contract/parallel/test_copied_commits.py"
_OF_THE_DEFAULT_SCHEDULER = ("tests/contract/testing/", "tests/contract/delay/test_docs.py")


@cache
def _shared_by(file: Path) -> str | None:
    """Return the name of what the tests of a file share, if they do."""
    text = file.read_text(encoding="utf-8")
    if "headway_secure_broker" in text:
        return "secure"
    return str(file) if 'scope="module"' in text else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """How tests are divided, where several processes run them."""
    return TogetherWhatShares(config, log)


_FAILED_ENDS_WITHIN = 120.0
# Longer than the longest limit that a test of `make test-slow` has, 1,800 s.
_SOME_TEST_ENDS_WITHIN = 2000.0


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """End a run of several processes that stands still, and say where: no test may take so long."""
    if not hasattr(report, "node"):  # it is the process of the test itself, with limits of its own
        return
    faulthandler.dump_traceback_later(_SOME_TEST_ENDS_WITHIN, file=sys.__stderr__ or 2, exit=True)


def pytest_sessionfinish() -> None:
    """Take the time that is needed to end."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Give a test that failed a time in which it must end, or the run would wait for its fixtures for ever.

    pytest and pytest-timeout lift their limits from a test that fails, for a debugger that may look at it.
    """
    if isinstance(node, pytest.Item):
        limit = pytest_timeout.Settings(_FAILED_ENDS_WITHIN, "signal", False, False)
        node.config.hook.pytest_timeout_set_timer(item=node, settings=limit)
        where = node.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(_FAILED_ENDS_WITHIN + 60, file=where, exit=True)


# A test that hangs where Python cannot interrupt it says where, this long after its time limit, and ends its process.
_BEYOND_ITS_LIMIT = 100.0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each test the limits that follow from its own, which may be longer than `faulthandler_timeout`.

    A test that runs again has the shorter ones that its failure was given.
    """
    marked = item.get_closest_marker("timeout")
    seconds = float(marked.args[0] if marked else item.config.getini("timeout"))
    if getattr(item, "execution_count", 1) > 1:
        item.config.hook.pytest_timeout_cancel_timer(item=item)
        limit = pytest_timeout.Settings(seconds, "signal", False, False)
        item.config.hook.pytest_timeout_set_timer(item=item, settings=limit)
    where = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(seconds + _BEYOND_ITS_LIMIT, file=where, exit=True)


@pytest.fixture(scope="session", autouse=True)
def interrupted_finalizers_are_no_failures() -> Generator[None]:
    """Drop what Python drops: an interruption for a time limit, met in a `__del__` of another test's garbage.

    The library interrupts the call once more, which a test of its own proves.
    """
    failing = sys.unraisablehook

    def passed_over(unraisable: "sys.UnraisableHookArgs") -> None:
        if unraisable.exc_type.__name__ != "_InterruptionError":
            failing(unraisable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", passed_over)
        yield


_STARTED = pytest.StashKey[set[threading.Thread]]()
_ENDS_WITHIN = 15.0
_OF_THE_PROCESS = {
    # Calls that may never return, and the closing of their clients, which waits for them: after its brokers were away
    # librdkafka may add offsets to a transaction for ever (its issues 5456 and 5511).
    "headway-in-background",
    "headway-admin-clients",  # one for all clients of the admin API, while any is kept
    "headway-stage-loop",  # of the stages in this Python worker
    "headway-rate-office",  # of Spark's driver
    "headway-java-stderr",  # as long as Spark's Java
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note the threads that a test starts; those of its fixtures are theirs to end."""
    before = set(threading.enumerate())
    try:
        return (yield)
    finally:
        item.stash[_STARTED] = set(threading.enumerate()) - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that leaves a thread behind, which would work, and write, beside the tests after it.

    A daemon of another library ends with the process, and is no concern of ours.
    """
    result = yield
    deadline = time.monotonic() + _ENDS_WITHIN
    started = [each for each in item.stash.get(_STARTED, ()) if not each.daemon or each.name.startswith("headway")]
    ours = [each for each in started if each.name not in _OF_THE_PROCESS]
    for thread in ours:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = sorted(thread.name for thread in ours if thread.is_alive())
    if left:
        pytest.fail(f"The test leaves threads behind that do not end within {_ENDS_WITHIN:g} s: {', '.join(left)}")
    return result
