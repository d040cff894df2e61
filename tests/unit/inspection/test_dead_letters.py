"""How the newest dead letters are kept and grouped."""

import pytest

from headway.inspection.dead_letters_reader import NEWEST, LettersOfTopic
from headway.inspection.letters import Letter, LetterFailure, LetterPosition

PLACE = ("orders-dead", 0)


def letter(offset: int, exception: str = "builtins.ValueError", message: str = "no", topic: str = "orders") -> Letter:
    headers = [
        ("headway.error.exception", exception.encode()),
        ("headway.error.message", message.encode()),
        ("headway.error.topic", topic.encode()),
        ("headway.error.last.time", b"%d" % (1_000 * (100 + offset))),
    ]
    failure = LetterFailure.of(headers)
    return Letter(LetterPosition(0, offset), 0, None, None, headers, failure, settled=False)


@pytest.fixture
def letters() -> LettersOfTopic:
    found = LettersOfTopic("orders-dead")
    assert found.unread(0.0, {PLACE: (0, 4)}) == {PLACE: (0, 4)}
    for offset in range(3):
        found.add(letter(offset, message=f"no {offset}"))
    found.add(letter(3, "shop.BankError"))
    return found


def test_letters_are_grouped_by_cause_with_the_newest_as_the_example(letters: LettersOfTopic) -> None:
    first, second = letters.status().causes
    assert (first.exception, first.topic, first.count, first.message) == ("builtins.ValueError", "orders", 3, "no 2")
    assert (first.first, first.last, first.newest) == (100.0, 102.0, (0, 2))
    assert (second.exception, second.count) == ("shop.BankError", 1)


def test_settled_letters_are_not_open(letters: LettersOfTopic) -> None:
    letters.settle({PLACE: (3, b"")})
    status = letters.status()
    assert (status.total, status.open, status.read) == (4, 1, 4)
    assert [each.exception for each in status.causes] == ["shop.BankError"]


def test_a_letter_is_read_once(letters: LettersOfTopic) -> None:
    assert letters.unread(5.0, {PLACE: (0, 4)}) == {}
    assert letters.unread(10.0, {PLACE: (0, 6)}) == {PLACE: (4, 6)}


def test_of_a_million_letters_only_the_newest_are_read() -> None:
    found = LettersOfTopic("orders-dead")
    assert found.unread(0.0, {PLACE: (0, 1_000_000)}) == {PLACE: (1_000_000 - NEWEST, 1_000_000)}
    for offset in range(1_000_000 - 2 * NEWEST, 1_000_000):
        found.add(letter(offset))
    status = found.status()
    assert (status.total, status.open, status.read) == (1_000_000, 1_000_000, NEWEST)


def test_a_topic_that_was_created_again_is_read_from_its_beginning(letters: LettersOfTopic) -> None:
    assert letters.unread(5.0, {PLACE: (0, 2)}) == {PLACE: (0, 2)}
    assert letters.status().read == 0


def test_texts_of_a_hostile_producer_are_cut_off() -> None:
    found = LettersOfTopic("orders-dead")
    found.unread(0.0, {PLACE: (0, 1)})
    found.add(letter(0, "E" * 100_000, "m" * 100_000))
    [cause] = found.status().causes
    assert (len(cause.exception), len(cause.message)) == (300, 300)
