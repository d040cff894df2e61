"""The trailer of a commit's text: the log and the offset that the text belongs to, and the failed attempts of records.

A commit can become attached to another log: MirrorMaker 2 translates the offset but copies the text unchanged, and a
topic that is deleted and created again keeps its name. The trailer names the log and the offset for which the text was
written, so that a reader can ignore a text that does not belong to its partition.

Invariants:
- The Java parallel consumer ignores a trailer, because `offset_map` puts it in a place that this consumer does not
  read.
- Nothing in a trailer is trusted. The length of a trailer bounds the memory that is allocated for it, and decoding
  raises no error except `OffsetMapError`.
- The first byte of a trailer is never zero, because the Java parallel consumer ends bitsets with a zero byte.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

from headway.errors import OffsetMapError

MOST_ATTEMPTS = 1_000_000
"""The highest number of attempts that is written or read for a record."""

_WITH_LOG, _WITHOUT_LOG = b"H", b"h"
_MARK_BYTES = 6
_MARK_CHARACTERS = _MARK_BYTES * 4 // 3
_LEAST_ENTRY = 2  # the smallest size of an entry in bytes: one for the distance and one for the count
_LONGEST_NUMBER = 9  # the maximum number of bytes in a number, which has at most 63 bits, like an offset


class Tried(NamedTuple):
    """The failed attempts of a record. `untried` is the number of attempts that ended before anything was tried."""

    attempts: int
    untried: int = 0


NOTHING_TRIED: Mapping[int, Tried] = {}


class Trailer(NamedTuple):
    """The log and the committed offset for which a text was written, and the failed attempts of records by offset.

    `log` is the mark of the topic's id, as returned by `log_mark`. The mark is empty if the writer did not have the id.
    """

    offset: int
    log: bytes = b""
    tried: Mapping[int, Tried] = NOTHING_TRIED


def log_mark(topic_id: str) -> bytes:
    """Return the mark of a topic: the part of its id that trailers contain. The mark is empty if the id is not known.

    The mark is the first six bytes of the id, which are random. Kafka's tools show them as the first eight characters.

    >>> mark_text(log_mark("d5p2nUHkQK2Vi5yZ6TFeDw"))
    'd5p2nUHk'
    """
    # librdkafka writes ids in the standard alphabet of Base64, but Kafka's tools use the alphabet for URLs.
    mark = urlsafe_b64decode(topic_id[:_MARK_CHARACTERS].replace("+", "-").replace("/", "_"))
    return mark if any(mark) else b""  # if the topic has no id, all bytes are zero


def mark_text(mark: bytes) -> str:
    """Format a mark as the beginning of the topic's id, as Kafka's tools show it."""
    return urlsafe_b64encode(mark).decode()


def check_fits(trailer: Trailer, offset: int, log: bytes | None) -> None:
    """Raise `OffsetMapError` if a text with this trailer was written for another offset, or for another log.

    `log` is the mark of the partition's log. If the mark is None, only the offset is checked.
    """
    if trailer.offset != offset:
        raise OffsetMapError(
            f"The commit metadata was written for offset {trailer.offset}, but the committed offset is {offset}: the "
            "commit was translated for a mirror of the topic, or changed by another program."
        )
    if log is not None and trailer.log and trailer.log != log:
        ours = f"has an id that begins with {mark_text(log)}" if log else "has an unknown id"
        raise OffsetMapError(
            f"The commit metadata is for a topic whose id begins with {mark_text(trailer.log)}, but this topic {ours}. "
            "The commit was copied from another topic or cluster, or the topic was deleted and created again."
        )


def encode_trailer(trailer: Trailer) -> bytes:
    """Encode a trailer as bytes.

    >>> encode_trailer(Trailer(300, tried={302: Tried(4)})).hex()
    '68ac020208'
    """
    mark = _WITH_LOG + trailer.log if trailer.log else _WITHOUT_LOG
    return mark + _number(trailer.offset) + _entries(trailer.offset, sorted(trailer.tried.items()))


def pack_within(trailer: Trailer, size: int) -> bytes:
    """Encode a trailer in at most `size` bytes, with as many of its attempts as fit.

    The lowest counts are left out first, and among equal counts those with the highest offsets. If the trailer does not
    fit even without attempts, the result has no attempts and is longer than `size`.
    """
    alone = encode_trailer(trailer._replace(tried=NOTHING_TRIED))
    left = size - len(alone)
    if left < _LEAST_ENTRY or not trailer.tried:
        return alone
    most_important = nsmallest(left // _LEAST_ENTRY, trailer.tried.items(), _importance)
    fits, too_many = 0, len(most_important) + 1
    entries = b""
    while too_many - fits > 1:
        # This is a bisection, except that the first guess is that all attempts fit.
        count = fits + (too_many - fits) // 2 if fits or too_many <= len(most_important) else len(most_important)
        tried = _entries(trailer.offset, sorted(most_important[:count]))
        if len(tried) <= left:
            fits, entries = count, tried
        else:
            too_many = count
    return alone + entries


def unpack(packed: bytes) -> Trailer:
    """Decode a trailer from its bytes.

    Raises:
        OffsetMapError: The bytes are damaged, or not a trailer.

    >>> unpack(bytes.fromhex("68ac020208"))
    Trailer(offset=300, log=b'', tried={302: Tried(attempts=4, untried=0)})
    """
    kind, rest = packed[:1], packed[1:]
    if kind not in (_WITH_LOG, _WITHOUT_LOG):
        raise OffsetMapError(
            f"The offset map is followed by 0x{packed[:8].hex()}: the commit metadata is damaged, or a later version "
            "of Headway wrote it."
        )
    log = b""
    if kind == _WITH_LOG:
        log, rest = rest[:_MARK_BYTES], rest[_MARK_BYTES:]
    numbers = _numbers(rest)
    if not numbers or len(log) not in (0, _MARK_BYTES):
        raise OffsetMapError("The trailer of the commit metadata is cut off.")
    return Trailer(numbers[0], log, _tried(numbers))


def _importance(entry: tuple[int, Tried]) -> tuple[int, int]:
    offset, tried = entry
    return tried.untried - tried.attempts, offset


def _entries(offset: int, tried: Sequence[tuple[int, Tried]]) -> bytes:
    """Encode the attempts of ascending offsets.

    Each entry has the distance to the previous offset, and the number of attempts with a flag. If the flag is set, the
    number of untried attempts follows.
    """
    packed = bytearray()
    for at, one in tried:
        packed += _number(at - offset) + _number(min(one.attempts, MOST_ATTEMPTS) << 1 | bool(one.untried))
        if one.untried:
            packed += _number(min(one.untried, MOST_ATTEMPTS))
        offset = at
    return bytes(packed)


def _tried(numbers: Sequence[int]) -> dict[int, Tried]:
    offset, tried = numbers[0], dict[int, Tried]()
    rest = iter(numbers[1:])
    for distance in rest:
        offset += distance
        count = next(rest, 0)
        one = Tried(count >> 1, next(rest, 0) if count & 1 else 0)
        if not 0 < one.attempts <= MOST_ATTEMPTS or one.untried > one.attempts or offset >= 2**63:
            raise OffsetMapError(
                f"The trailer of the commit metadata is not valid: it has {one.attempts} attempts at offset {offset}, "
                f"of which {one.untried} are untried."
            )
        tried[offset] = one
    return tried


def _number(value: int) -> bytes:
    """Encode a number in groups of seven bits, lowest first. In each byte except the last, the highest bit is set."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def _numbers(packed: bytes) -> list[int]:
    numbers, value, shift = list[int](), 0, 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
        elif shift == 7 * _LONGEST_NUMBER:
            raise OffsetMapError("The trailer of the commit metadata has a number of more than 63 bits.")
    if shift:
        raise OffsetMapError("The trailer of the commit metadata is cut off.")
    return numbers
