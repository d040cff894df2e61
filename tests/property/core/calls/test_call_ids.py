"""Ids, headers and stored results of calls: they read back as written, and damaged ones raise only the known error."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.calls.call_id import CallId, read_header
from headway.core.calls.stored_result import MOST_BYTES, StoredError, StoredResult, encode_value
from headway.core.untrusted import LATEST
from headway.errors import ConfigError, FatalError, UnreadableError

ids = st.builds(
    CallId, st.integers(0, 99_999), st.integers(0, LATEST), st.binary(min_size=10, max_size=10).map(bytes.hex)
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(ids, st.from_regex(r"[a-zA-Z0-9._-]{1,100}", fullmatch=True))
def test_an_id_and_its_header_read_back_as_written(call: CallId, topic: str) -> None:
    assert CallId.parse(str(call)) == call
    assert read_header(call.header(topic)[1]) == (topic, call)


@given(st.none() | st.text() | st.binary())
def test_a_damaged_header_raises_only_the_known_error(value: str | bytes | None) -> None:
    with contextlib.suppress(UnreadableError):
        read_header(value)


@given(ids, st.integers(0, 50), st.characters())
def test_an_id_with_another_character_is_refused_or_is_another_id(call: CallId, place: int, character: str) -> None:
    text = str(call)
    damaged = text[: place % len(text)] + character + text[place % len(text) + 1 :]
    with contextlib.suppress(ConfigError):
        assert str(CallId.parse(damaged)) == damaged


@given(json_values, st.integers(0, LATEST), st.integers(0, 2**31 - 1))
def test_a_stored_value_reads_back_as_written(value: object, ended_at: int, attempts: int) -> None:
    stored = StoredResult.read(StoredResult(ended_at, attempts, encode_value(value)).encode(), "c")
    assert (stored.ended_at, stored.attempts, stored.error) == (ended_at, attempts, None)
    assert msgspec.json.decode(stored.value) == value


@given(st.none() | st.binary())
def test_a_damaged_result_raises_only_the_known_error(value: bytes | None) -> None:
    with contextlib.suppress(UnreadableError):
        StoredResult.read(value, "c")


class HostileError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("error", [HostileError(), ValueError("x" * 10_000_000), BaseException()])
def test_any_error_is_stored_in_bounded_space(error: BaseException) -> None:
    stored = StoredResult(1, 2, error=StoredError.of(error))
    assert len(stored.encode()) < 20_000
    assert StoredResult.read(stored.encode(), "c") == stored


@pytest.mark.parametrize("value", [object(), {1j}, "x" * MOST_BYTES, [[]]])
def test_a_value_that_cannot_be_stored_is_refused_for_good(value: object) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(FatalError, match="result of a call"):
        encode_value(deep if value == [[]] else value)
