"""The life of a producer's transactions: each state meets each call, on librdkafka's mock."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from headway import Producer
from headway.errors import HeadwayError
from tests.contract.mock_brokers import MockBrokers, mock_brokers
from tests.models.transaction_life import TRANSACTION_TRANSITIONS, TransactionEvent, TransactionState

ADD_PARTITIONS, END = 24, 26  # Kafka's numbers for the requests
NOT_AUTHORIZED, CONCURRENT, FENCED = 29, 51, 90  # and for the errors
WITHIN = 10.0  # seconds, for what is answered
SHORT = 0.1  # for what is not


@pytest.fixture(scope="module")
def brokers() -> Iterator[MockBrokers]:
    with mock_brokers() as brokers:
        yield brokers


class World:
    """A producer, and the brokers that refuse what a test wants refused."""

    def __init__(self, brokers: MockBrokers) -> None:
        self.brokers = brokers
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        brokers.create(self.topic)
        config = {"bootstrap.servers": brokers.bootstrap_servers, "transactional.id": self.topic, "log_level": 0}
        self.producer = Producer(config)
        self.within = WITHIN

    # A producer in each state

    def new(self) -> None:
        pass

    def ready(self) -> None:
        self.producer.init_transactions(self.within)

    def open(self) -> None:
        self.ready()
        self.producer.begin_transaction()
        self.sent()

    def committing(self) -> None:
        self.open()
        self.fails(self.commit_unanswered)

    def failed(self) -> None:
        self.open()
        self.fails(self.refused)

    def fatal(self) -> None:
        self.open()
        self.fails(self.fenced)

    # What happens

    def init(self) -> None:
        self.producer.init_transactions(self.within)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def sent(self) -> None:
        self.producer.send(self.topic, b"v").result(WITHIN)

    def refused(self) -> None:
        self.producer.send(self.topic, bytes(2_000_000)).result(WITHIN)

    def commit(self) -> None:
        self.producer.commit_transaction(self.within)

    def commit_unanswered(self) -> None:
        self.brokers.refuse(END, CONCURRENT, 4)  # librdkafka asks again, for most of a second
        self.producer.commit_transaction(SHORT)

    def abort(self) -> None:
        self.producer.abort_transaction(self.within)

    def abort_unanswered(self) -> None:
        self.brokers.refuse(END, CONCURRENT, 4)
        self.producer.abort_transaction(SHORT)

    def fenced(self) -> None:
        self.refuses(ADD_PARTITIONS, FENCED)

    def refuses(self, request: int, error: int) -> None:
        """Let the brokers refuse a record for another partition."""
        other = f"{self.topic}-other"
        self.brokers.create(other)
        self.brokers.refuse(request, error, 1)
        self.producer.send(other, b"v").result(WITHIN)

    def fails(self, act: Callable[[], None]) -> None:
        self.within = SHORT  # what conflicts with a call under way is tried for that long
        with pytest.raises(HeadwayError):
            act()
        self.within = WITHIN

    def is_in(self, state: TransactionState) -> None:
        """Show by what it refuses and what it allows in which state the producer is."""
        refuses, allows = SIGNS[state]
        for act in refuses:
            self.fails(getattr(self, act))
        for act in allows:
            getattr(self, act)()


SIGNS: dict[TransactionState, tuple[list[str], list[str]]] = {
    TransactionState.NEW: (["begin", "commit", "abort"], ["init", "begin"]),
    TransactionState.READY: (["commit", "abort", "init"], ["begin", "commit"]),
    TransactionState.OPEN: (["begin", "init"], ["sent", "commit", "begin"]),
    TransactionState.COMMITTING: (["begin", "abort", "sent"], ["commit", "begin"]),
    TransactionState.FAILED: (["begin", "commit", "init"], ["abort", "begin"]),
    TransactionState.FATAL: (["begin", "commit", "abort", "init"], []),
}

ALL = sorted(product(TransactionState, TransactionEvent))


@pytest.fixture
def world(brokers: MockBrokers) -> Iterator[World]:
    world = World(brokers)
    yield world
    world.producer.close(0.0)
    brokers.accept(END)


@pytest.mark.parametrize("state", TransactionState)
def test_each_state_has_its_signs(world: World, state: TransactionState) -> None:
    getattr(world, state.value)()
    world.is_in(state)


FAILING = {
    TransactionEvent.REFUSED,
    TransactionEvent.COMMIT_UNANSWERED,
    TransactionEvent.ABORT_UNANSWERED,
    TransactionEvent.FENCED,
}


@pytest.mark.parametrize(("state", "event"), list(TRANSACTION_TRANSITIONS), ids=lambda each: each.name)
def test_each_event_leads_where_the_table_says(world: World, state: TransactionState, event: TransactionEvent) -> None:
    getattr(world, state.value)()
    act = getattr(world, event.name.lower())
    if event in FAILING:
        world.fails(act)
    else:
        act()
    world.is_in(TRANSACTION_TRANSITIONS[state, event])


# A record that is not committed may be sent all the same: a failed transaction takes it along until it is aborted.
TOLERATED = {(TransactionState.FAILED, TransactionEvent.SENT)}
UNTOLD = {TransactionEvent.FENCED}  # without an open transaction no request tells it


@pytest.mark.parametrize(
    ("state", "event"),
    [pair for pair in ALL if pair not in TRANSACTION_TRANSITIONS and pair not in TOLERATED and pair[1] not in UNTOLD],
    ids=lambda each: each.name,
)
def test_any_other_call_is_refused_and_changes_nothing(
    world: World, state: TransactionState, event: TransactionEvent
) -> None:
    getattr(world, state.value)()
    world.fails(getattr(world, event.name.lower()))
    world.is_in(state)


def test_what_the_brokers_refuse_of_a_transaction_fails_it_as_well(world: World) -> None:
    world.open()
    world.fails(lambda: world.refuses(ADD_PARTITIONS, NOT_AUTHORIZED))
    world.is_in(TransactionState.FAILED)


def test_a_failed_transaction_takes_a_record_along_until_it_is_aborted(world: World) -> None:
    world.failed()
    with contextlib.suppress(HeadwayError):
        world.sent()
    world.is_in(TransactionState.FAILED)


@pytest.mark.parametrize("state", TransactionState)
def test_a_closed_producer_refuses_every_call_whatever_its_state_was(world: World, state: TransactionState) -> None:
    getattr(world, state.value)()
    world.producer.close(0.0)
    for act in ("init", "begin", "sent", "commit", "abort"):
        world.fails(getattr(world, act))
