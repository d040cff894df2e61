"""Sends dead letters again: plans which letter goes to which topic, then sends them."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from headway.actions.choice import Choice, Show, chosen_letters
from headway.core.offsets.commit_metadata import Done
from headway.core.outgoing_record import NOW, OutgoingRecord
from headway.dead_letters import MOST_BYTES
from headway.errors import ConfigError, DeliveryError, KafkaError
from headway.inspection.dead_topic import DeadTopic
from headway.inspection.letters import Letter, LetterPosition
from headway.kafka.producer.client import ProducerClient
from headway.runtime.interrupt import Interrupt
from headway.settings.config import OWN_KEYS, Config

_ANY_PARTITION = -1
_REMEMBER_EVERY = 1.0  # seconds between two commits; after a crash, letters sent since the last one are sent again
_CHECK_FOR_CTRL_C_EVERY = 0.2  # the longest wait in seconds inside librdkafka, where Ctrl-C has no effect


class LetterTarget(NamedTuple):
    """The topic and partition to which a letter is sent. If the partition is None, the key decides."""

    topic: str
    partition: int = _ANY_PARTITION


class Plan:
    """The letters to send, each with its target, and the offsets of all letters in the partitions of these letters."""

    def __init__(self) -> None:
        self.existing: dict[int, list[int]] = {}
        self.destinations: dict[int, dict[int, LetterTarget]] = defaultdict(dict)
        self.without_topic = 0
        self.shortened = 0
        self.empty = 0
        self.gone = Counter[str]()  # the number of letters for each topic that no longer exists
        self.own = 0

    @property
    def size(self) -> int:
        """The number of letters to send."""
        return sum(map(len, self.destinations.values()))

    @property
    def topics(self) -> Counter[str]:
        """The number of letters for each topic."""
        return Counter(each.topic for chosen in self.destinations.values() for each in chosen.values())

    def left_out(self, topic: str) -> Iterator[str]:
        """Yield a sentence for each kind of letters of the dead-letter topic that cannot be sent."""
        if self.without_topic:
            yield (
                f"Left out {letters(self.without_topic)}, because the topic that the record came from is not named. "
                "Add --to to send such letters."
            )
        if self.shortened:
            yield (
                f"Left out {letters(self.shortened)}, because only the beginning of the record was kept in the letter."
            )
        if self.own:
            yield (
                f"Left out {letters(self.own)}, because the record came from {topic} itself. Add --to to send such "
                "letters."
            )
        for gone, number in sorted(self.gone.items()):
            yield (
                f"Left out {letters(number)}, because the topic {gone} no longer exists. Create it, or name another "
                "topic with --to."
            )
        if self.empty:
            yield f"Left out {letters(self.empty)}, because the share group does not copy records."

    def without(self, settled: Mapping[int, Container[int]]) -> None:
        """Remove letters that were settled after the plan was made."""
        for partition, planned in self.destinations.items():
            for offset in [each for each in planned if each in settled[partition]]:
                del planned[offset]


def make_plan(dead: DeadTopic, choice: Choice, to: str | None, kafka_topics: Mapping[str, int], show: Show) -> Plan:
    """Find the selected letters. Each is sent to the topic `to`, or by default to the topic that it came from.

    Raises `ConfigError` or `KafkaError` if a named letter does not exist, is settled, or has no destination.
    """
    plan = Plan()
    for letter in chosen_letters(dead, choice, plan.existing, show):
        if choice.places:
            _require_sendable(dead.name, letter, choice)
        destination = _destination(letter, to, kafka_topics)
        if _is_shortened(letter):
            plan.shortened += 1
        elif letter.is_empty:
            plan.empty += 1
        elif destination and to is None and not choice.places and destination.topic == dead.name:
            plan.own += 1
        elif destination and to is None and not choice.places and destination.topic not in kafka_topics:
            plan.gone[destination.topic] += 1
        elif destination:
            plan.destinations[letter.place.partition][letter.place.offset] = destination
        elif choice.places:
            raise ConfigError(
                f"{dead.name} {letter.place} does not name the topic it came from, so nothing was sent. Name a topic "
                "with --to, or remove this letter from the command."
            )
        else:
            plan.without_topic += 1
        if choice.limit is not None and plan.size >= choice.limit:
            break
    _require_topics(plan.topics, kafka_topics, dead.name)
    return plan


def _is_shortened(letter: Letter) -> bool:
    return letter.failure is not None and letter.failure.shortened is not None


def _require_sendable(dead: str, letter: Letter, choice: Choice) -> None:
    if letter.settled and not choice.settled_too:
        raise ConfigError(
            f"{dead} {letter.place} is already settled, by `headway dead send-again` or `headway dead settle`. Nothing "
            "was sent now. Remove this letter from the command, or add --settled-too to send it anyway."
        )
    if _is_shortened(letter):
        raise ConfigError(
            f"{dead} {letter.place} holds only the beginning of its record, because the full record was too large. "
            "Nothing was sent. Remove this letter from the command."
        )
    if letter.is_empty:
        raise ConfigError(
            f"{dead} {letter.place} has no key and no value, because its share group does not copy records. Nothing "
            "was sent. Remove this letter from the command. To copy the records of later letters, set "
            "errors.deadletterqueue.copy.record.enable for the group."
        )


def _destination(letter: Letter, to: str | None, kafka_topics: Mapping[str, int]) -> LetterTarget | None:
    """Return the topic and partition that the letter came from.

    The partition is kept because any partitioner might have chosen it for the key.
    """
    if to is not None:
        return LetterTarget(to)
    if letter.failure is None or letter.failure.topic is None:
        return None
    topic, partition = letter.failure.topic, letter.failure.partition
    if partition is None or partition >= kafka_topics.get(topic, 0):
        return LetterTarget(topic)
    return LetterTarget(topic, partition)


def _require_topics(topics: Iterable[str], kafka_topics: Mapping[str, int], dead: str) -> None:
    for topic in sorted(topics):
        if topic == dead:
            raise ConfigError(
                f"{dead} is the dead letter topic itself. Nothing was sent. Name another topic with --to."
            )
        if topic not in kafka_topics:
            raise ConfigError(
                f"Kafka has no topic {topic}, where dead letters should go. Nothing was sent. Create it, or name "
                "another one with --to."
            )


def start_sending(
    dead: DeadTopic, plan: Plan, config: Config, say: Callable[[str], object], *, settled_too: bool = False
) -> "SendingAgain":
    """Connect to Kafka to send a plan's letters. `say` gets a sentence for each letter that could not be sent.

    Raises `KafkaError` if it could not be remembered which letters were sent.
    """
    if not settled_too:  # another process may have sent letters since the plan was made
        plan.without({partition: Done(offset_map) for partition, offset_map in dead.settled().items()})
    # Before letters are sent, find out whether the group accepts commits, by a commit that changes nothing.
    dead.remember(plan.existing, dict.fromkeys(plan.destinations, ()))
    settings = {key: value for key, value in config.items() if key not in OWN_KEYS}
    own = {"enable.idempotence": True, "partitioner": "murmur2_random", "message.max.bytes": MOST_BYTES}
    return SendingAgain(dead, plan, ProducerClient(own | settings), say)


class SendingAgain:
    """Sends a plan's letters, and marks those that Kafka has acknowledged as settled. Closes the client at the end.

    Attributes:
        interrupted: Whether Ctrl-C ended the sending.
        is_unmarked: Whether letters that were sent still count as open, because Kafka refused the commit.
    """

    def __init__(self, dead: DeadTopic, plan: Plan, client: ProducerClient, say: Callable[[str], object]) -> None:
        self._dead = dead
        self._plan = plan
        self._client = client
        self._say = say
        self._acknowledged: list[tuple[LetterPosition, str]] = []  # filled by the thread that takes delivery reports
        self._remembered = 0
        self._remembered_at = time.monotonic()
        self.is_unmarked = self.interrupted = False

    def run(self, interrupt: Interrupt, show: Show) -> None:
        """Send all letters, and wait until Kafka has acknowledged them. After Ctrl-C, send no further letters."""
        try:
            for number, letter in enumerate(interrupt.read(self._letters()), 1):
                self._send(letter)
                self._remember_if_due()
                show(number, number)
            self._deliver(interrupt)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._client.close(0)
            self._remember()

    @property
    def stored(self) -> Counter[str]:
        """The number of letters that each topic has got."""
        return Counter(topic for _, topic in self._acknowledged)

    @property
    def missing(self) -> int:
        """The number of letters of the plan that Kafka has not acknowledged."""
        return self._plan.size - len(self._acknowledged)

    def _letters(self) -> Iterator[Letter]:
        """Yield the letters of the plan.

        All letters are read a second time, because keeping them would take too much memory.
        """
        for partition, planned in self._plan.destinations.items():
            yield from self._dead.chosen(partition, planned)

    def _send(self, letter: Letter) -> None:
        topic, partition = self._plan.destinations[letter.place.partition][letter.place.offset]
        headers = letter.headers_to_send(self._dead.name, topic)
        # The timestamp is the present time. With the old timestamp, Kafka could delete the record before anyone reads
        # it.
        record = OutgoingRecord(topic, letter.value, letter.key, partition, NOW, headers)
        reported = partial(self._reported, letter.place, topic)
        while True:
            try:
                self._client.produce(record, reported)
                return
            except BufferError:
                self._client.reports.serve(_CHECK_FOR_CTRL_C_EVERY)
            except DeliveryError as error:
                self._say(f"{self._dead.name} {letter.place} was not sent: {error}")
                return

    def _reported(self, place: LetterPosition, topic: str, error: Any, _: Any) -> None:
        if error is None:
            self._acknowledged.append((place, topic))
        else:
            self._say(f"{self._dead.name} {place} was not stored in {topic}: {error.str().rstrip('.')}.")

    def _deliver(self, interrupt: Interrupt) -> None:
        while self._client.flush(_CHECK_FOR_CTRL_C_EVERY):
            self._remember_if_due()
            if interrupt.requested:
                self._say("Waiting for records that are being sent. Press Ctrl-C again to stop waiting.")
        self.interrupted = interrupt.requested

    def _remember_if_due(self) -> None:
        if time.monotonic() - self._remembered_at > _REMEMBER_EVERY:
            self._remember()

    def _remember(self) -> None:
        done = len(self._acknowledged)
        if done == self._remembered:
            return
        sent: dict[int, list[int]] = defaultdict(list)
        for place, _ in self._acknowledged[:done]:
            sent[place.partition].append(place.offset)
        try:
            self._dead.remember(self._plan.existing, sent)
            self._remembered, self.is_unmarked = done, False
        except KafkaError as error:
            self.is_unmarked = True
            sent_again = letters(done - self._remembered)
            self._say(f"{sent_again} that were sent again still count as open: {error}")
        self._remembered_at = time.monotonic()


def letters(number: int) -> str:
    """Format a number of dead letters, such as "2 dead letters"."""
    return f"{number:,} dead letter{'' if number == 1 else 's'}"


def sent(per_topic: Counter[str]) -> str:
    """Format the total number of letters of all topics."""
    return letters(per_topic.total())


def goals(per_topic: Counter[str]) -> str:
    """Format the destinations.

    >>> goals(Counter({"orders-1": 2})), goals(Counter({"orders-1": 2, "clicks": 1}))
    (' to orders-1', ': 1 to clicks, 2 to orders-1')
    """
    if len(per_topic) == 1:
        return f" to {next(iter(per_topic))}"
    each = ", ".join(f"{number:,} to {topic}" for topic, number in sorted(per_topic.items()))
    return f": {each}" if each else ""
