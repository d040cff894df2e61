"""Dead letters of records that are larger than any client may send: they were compressed."""

from types import SimpleNamespace
from typing import Any, cast

from headway.core.outgoing_record import OutgoingRecord
from headway.dead_letters import PREFIX, fitting, halved, shortened_record, size_in_request
from headway.records.record_types import Header

MOST = 2_000_000


def letter_of(size: int) -> OutgoingRecord:
    record = cast(Any, SimpleNamespace(raw_value=bytes(size), raw_key=b"k"))
    headers: list[Header] = [("own", b"1"), (f"{PREFIX}reason", b"why")]
    return fitting(OutgoingRecord("orders-dead", record.raw_value, record.raw_key, headers=headers), MOST)


def test_a_record_that_fits_is_kept_as_it_is() -> None:
    letter = letter_of(MOST - 1000)
    assert (len(letter.value), letter.key) == (MOST - 1000, b"k")
    assert letter.headers == [("own", b"1"), (f"{PREFIX}reason", b"why")]


def test_of_a_larger_one_the_beginning_is_kept_and_said_how_large_it_was() -> None:
    letter = letter_of(5_000_000)
    assert MOST // 2 < len(letter.value) < MOST
    said = dict(letter.headers or ())
    assert said == {f"{PREFIX}reason": b"why", f"{PREFIX}shortened": b"value 5000000 bytes, key 1 bytes, 1 headers"}


def test_what_is_shortened_again_says_what_it_was_at_first() -> None:
    once = shortened_record(OutgoingRecord("orders-dead", bytes(100_000), bytes(50_000)), 20_000)
    twice = shortened_record(once, 5_000)
    assert size_in_request(once) <= 20_000
    assert size_in_request(twice) <= 5_000
    assert once.headers == twice.headers
    empty = shortened_record(OutgoingRecord("orders-dead", None, None), 5_000)
    assert (empty.value, empty.key) == (None, None)


def test_the_texts_of_a_long_story_are_cut_where_a_topic_takes_little() -> None:
    texts = [(f"{PREFIX}message", b"m" * 40_000), (f"{PREFIX}first.message", b"f" * 40_000)]
    letter: OutgoingRecord | None = OutgoingRecord(
        "orders-dead", b"v" * 50_000, b"k", headers=[*texts, (f"{PREFIX}topic", b"orders")]
    )
    while letter is not None and size_in_request(letter) > 4096:
        letter = halved(letter)
    assert letter is not None
    said = dict(letter.headers or ())
    assert said[f"{PREFIX}topic"] == b"orders"
    assert {said[name][:1] for name, _ in texts} == {b"m", b"f"}  # type: ignore[index]
