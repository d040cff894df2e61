"""Dead letters of records that are larger than any client may send: they were compressed."""

from types import SimpleNamespace
from typing import Any, cast

from headway.core.outgoing_record import OutgoingRecord
from headway.dead_letters import MOST_BYTES, PREFIX, shortened, size_of
from headway.parallel import dead_letters


def letter_of(size: int) -> OutgoingRecord:
    record = cast(Any, SimpleNamespace(raw_value=bytes(size), raw_key=b"k"))
    return dead_letters.letter_of("orders-dead", record, [("own", b"1"), (f"{PREFIX}reason", b"why")])


def test_a_record_that_fits_is_kept_as_it_is() -> None:
    letter = letter_of(MOST_BYTES - 1000)
    assert (len(letter.value), letter.key) == (MOST_BYTES - 1000, b"k")
    assert letter.headers == [("own", b"1"), (f"{PREFIX}reason", b"why")]


def test_of_a_larger_one_the_beginning_is_kept_and_said_how_large_it_was() -> None:
    letter = letter_of(5_000_000)
    assert MOST_BYTES // 2 < len(letter.value) < MOST_BYTES
    said = dict(letter.headers or ())
    assert said == {f"{PREFIX}reason": b"why", f"{PREFIX}shortened": b"value 5000000 bytes, key 1 bytes, 1 headers"}


def test_what_is_shortened_again_says_what_it_was_at_first() -> None:
    once = shortened(OutgoingRecord("orders-dead", bytes(100_000), bytes(50_000)), 20_000)
    twice = shortened(once, 5_000)
    assert size_of(once) <= 20_000
    assert size_of(twice) <= 5_000
    assert once.headers == twice.headers
    empty = shortened(OutgoingRecord("orders-dead", None, None), 5_000)
    assert (empty.value, empty.key) == (None, None)
