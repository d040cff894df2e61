"""Offset maps: the complete offsets above a committed offset, encoded as text in the metadata of the commit.

The Java parallel consumer decodes the text from Base64, and reads a magic byte and the body after it. That consumer
ignores bytes after the bits of a bitset, and its decompressor skips frames that the zstd format declares skippable. So
Headway puts its trailer after a bitset, or in a skippable frame before a compressed body. Uncompressed run lengths
leave no space for a trailer.

Invariants:
- Without a trailer, the text is byte for byte equal to what the Java parallel consumer writes. With a trailer, the Java
  parallel consumer reads the same map from it.
- Nothing in a text is trusted. The length of the text bounds the memory that is allocated, and the end of the log
  bounds the offsets. Whatever the text is, decoding raises no error except `OffsetMapError`.
- A map is canonical: incomplete and complete runs alternate, only the first run can have the length 0, and the last run
  is complete. If there are no runs, the text is empty.
- A lost map only causes records to be delivered again, but a wrong map causes records to be lost. So a doubtful map is
  ignored.
"""

import binascii
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle, pairwise
from operator import mul
from typing import NamedTuple

import zstandard

from headway.core.offsets.trailer import NOTHING_TRIED, Trailer, check_fits, encode_trailer, pack_within, unpack
from headway.errors import OffsetMapError

MAX_CHARACTERS = 4096  # the brokers' default offset.metadata.max.bytes
LEAST_WINDOW = 1000  # how many offsets a partition may always get ahead of its first gap, even if the map is too large

_NAMES = {
    b"l": "bitset v1",
    b"o": "bitset v2",
    b"n": "run length v1",
    b"e": "run length v2",
    b"a": "bitset v1, zstd",
    b"s": "bitset v2, zstd",
    b"J": "run length v1, zstd",
    b"p": "run length v2, zstd",
    b"\x01": "Kafka Streams v1",
    b"\x02": "Kafka Streams v2",
}
# the `struct` code of a length, which has 16 bits in v1 and 32 in v2
_INTEGER = {b"l": "h", b"o": "i", b"n": "h", b"e": "i"}
_LONGEST = {"h": 2**15 - 1, "i": 2**31 - 1}  # the maximum of each code; Java's integers are signed
_TWINS = {b"l": b"a", b"o": b"s", b"n": b"J", b"e": b"p"}
_PLAIN = {twin: plain for plain, twin in _TWINS.items()}
_BITSETS = (b"l", b"o")

_ZSTD_FROM_BYTES = 200  # as in Java, compression is tried only if all plain bodies have at least this many bytes
_ZSTD_WITH_TRAILER_FROM_BYTES = 20  # run lengths with a trailer must be compressed, which takes about this many bytes
# the maximum number of offsets in a bitset; for more offsets, run lengths are as small and take less time
_WIDEST_BITSET = 2**20
_MAX_BODY_BYTES = 2**20  # the maximum size of a decompressed body: the size of a bitset for 8 million offsets
_MAX_RUNS = 2**20  # more than Headway writes; bounded because a run takes one bit of the text but many bytes of memory
_MAX_WINDOW_BYTES = 2**23  # the memory limit for decompression; the Java parallel consumer's frames need 2 MiB

_EMPTY_BITSET = b"l\0\0"  # written before a trailer if there is no map
# the start of a frame that every zstd decoder skips; the frame's size follows
_SKIPPABLE = struct.pack("<I", 0x184D2A5D)
_SKIPPABLE_HEADER = 8  # the number of bytes before the content of a skippable frame
_LEAST_FRAME = 9  # zstd adds at least this many bytes to a body


class OffsetMap(NamedTuple):
    """The complete and incomplete offsets of a partition, starting at its committed offset.

    `runs` has the lengths of alternating runs of incomplete and complete offsets.

    >>> OffsetMap(100, (1, 2, 1, 3)).complete
    [range(101, 103), range(104, 107)]
    """

    offset: int
    runs: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The offset after the highest complete offset, or `offset` if no offset above it is complete."""
        return self.offset + sum(self.runs)

    @property
    def complete(self) -> list[range]:
        """The ranges of complete offsets, in ascending order."""
        return self._ranges()[1::2]

    @property
    def incomplete(self) -> list[range]:
        """The ranges of incomplete offsets below the highest complete offset, in ascending order."""
        return [offsets for offsets in self._ranges()[::2] if offsets]

    def _ranges(self) -> list[range]:
        return [range(start, stop) for start, stop in pairwise(accumulate(self.runs, initial=self.offset))]


class Commit(NamedTuple):
    """The offset and the metadata to commit for a partition.

    `pressed` is True if the map is so large that the partition should receive no new records. If the map did not fit,
    `kept` is the part of the map that the metadata contains; otherwise `kept` is None.
    """

    offset: int
    metadata: str
    pressed: bool
    kept: OffsetMap | None = None


def canonical(offset: int, runs: Sequence[int]) -> OffsetMap:
    """Return the canonical map for the lengths of alternating incomplete and complete runs. Lengths can be 0.

    Equal states of a partition have equal canonical maps.

    >>> canonical(5, [2, 0, 1, 4, 7])
    OffsetMap(offset=5, runs=(3, 4))
    """
    merged = [0]
    for index, run in enumerate(runs):
        if run and index % 2 == len(merged) % 2:
            merged.append(run)
        else:
            merged[-1] += run
    return OffsetMap(offset, tuple(merged[: len(merged) // 2 * 2]))


def pressure(limit: int) -> int:
    """Return the size of a map, in characters, above which its partition should receive no new records.

    `limit` is the maximum number of characters that the broker accepts.
    """
    return limit * 3 // 4


def commit_of(
    offset_map: OffsetMap,
    limit: int = MAX_CHARACTERS,
    remembered: OffsetMap | None = None,
    trailer: Trailer | None = None,
) -> Commit:
    """Build a commit with the offset and as much of its map as fits in `limit` characters.

    If the map does not fit, the text contains the part that an earlier commit already contained (`remembered`), and as
    much of the map's beginning as fits in addition. The remaining space is for the failed attempts in the trailer. If
    not all attempts fit, the lowest counts are left out first.

    >>> commit_of(OffsetMap(5, (1, 49995)))
    Commit(offset=5, metadata='ZQAAAAEAAMNL', pressed=False, kept=None)
    >>> commit_of(OffsetMap(5, (1, 49995)), limit=8)
    Commit(offset=5, metadata='', pressed=True, kept=OffsetMap(offset=5, runs=()))
    """
    stamp = encode_trailer(trailer._replace(tried=NOTHING_TRIED)) if trailer else b""
    payload = _encoded(offset_map, stamp)
    length = _characters(payload)
    fits = not offset_map.runs or 0 < length <= limit
    is_large = length > pressure(limit) or not fits
    pressed = is_large and offset_map.end - offset_map.offset >= LEAST_WINDOW
    kept = None
    if not fits:
        kept, payload = _shortened(offset_map, length, limit, remembered or OffsetMap(offset_map.offset), stamp)
    if trailer and trailer.tried:
        payload = _with_attempts(kept or offset_map, payload, limit, trailer)
    return Commit(offset_map.offset, b64encode(payload).decode(), pressed, kept)


def _shortened(
    whole: OffsetMap, length: int, limit: int, remembered: OffsetMap, stamp: bytes
) -> tuple[OffsetMap, bytes]:
    """Return the part of a map that fits, and its payload.

    The result includes the remembered part of the map if that part fits at all.

    `length` is the length of the text for the whole map.
    """
    pairs = len(whole.runs) // 2
    while pairs > 0:
        # Estimate how many runs fit from the length of the last text, assuming that all runs take equal space.
        pairs = min(pairs - 1, int(pairs * limit / length) if length else 0)
        kept = _with_more(OffsetMap(whole.offset, whole.runs[: 2 * pairs]), remembered)
        payload = _encoded(kept, stamp)
        length = _characters(payload)
        if length <= limit and (payload or not kept.runs):
            return kept, payload
    return OffsetMap(whole.offset), b""


def _with_attempts(offset_map: OffsetMap, payload: bytes, limit: int, trailer: Trailer) -> bytes:
    """Return the payload of this map with as many of the trailer's attempts as fit in `limit` characters."""
    size = limit // 4 * 3  # the maximum size of a payload, in bytes
    if not payload:  # a text without a map has a trailer only if the trailer has attempts
        packed = pack_within(trailer, size - len(_EMPTY_BITSET))
        with_attempts = _EMPTY_BITSET + packed
        has_any = len(packed) > len(encode_trailer(trailer._replace(tried=NOTHING_TRIED)))
        return with_attempts if has_any and len(with_attempts) <= size else b""
    stamp = encode_trailer(trailer._replace(tried=NOTHING_TRIED))
    return _encoded(offset_map, pack_within(trailer, size - len(payload) + len(stamp)))


def _with_more(beginning: OffsetMap, other: OffsetMap) -> OffsetMap:
    """Return the map `beginning`, extended by the complete offsets of `other` that are above the end of `beginning`."""
    ranges = [each for each in other.complete if each.stop > beginning.end]
    edges = [beginning.end, *(edge for each in ranges for edge in (max(each.start, beginning.end), each.stop))]
    return canonical(beginning.offset, [*beginning.runs, *(stop - start for start, stop in pairwise(edges))])


def encode(offset_map: OffsetMap, trailer: Trailer | None = None) -> str:
    """Return the smallest text for a map, whatever its length is.

    The text is empty if no offset above the map's offset is complete, or if a run has 2³¹ offsets or more, which is too
    long for every encoding.

    >>> encode(OffsetMap(0, (1, 1, 1, 2)))
    'bAAFGgA='
    >>> encode(OffsetMap(0, (1, 1, 1, 2)), Trailer(0))
    'bAAFGmgA'
    """
    if trailer is None or not (offset_map.runs or trailer.tried):
        return b64encode(_encoded(offset_map, b"")).decode()
    packed = encode_trailer(trailer)
    return b64encode(_encoded(offset_map, packed) if offset_map.runs else _EMPTY_BITSET + packed).decode()


def decode_map(text: str | bytes, offset: int, log_end: int | None = None) -> OffsetMap:
    """Decode the map that was committed with `offset`. If the text is empty, no offset above `offset` is complete.

    Args:
        text: The metadata of the commit.
        offset: The committed offset. A text that the Java parallel consumer wrote does not contain it.
        log_end: The end offset of the partition, if known. A map that reaches beyond this offset belongs to another
            log.

    Raises:
        OffsetMapError: The text is damaged, was written by another program or for another commit, or claims an
            impossible state.

    >>> decode_map("bAAFGgA=", 100)
    OffsetMap(offset=100, runs=(1, 1, 1, 2))
    """
    return decode_with_trailer(text, offset, log_end)[0]


def decode_with_trailer(
    text: str | bytes, offset: int, log_end: int | None = None, log: bytes | None = None
) -> tuple[OffsetMap, Trailer | None]:
    """Decode the map that was committed with `offset`, and the trailer, which is None if the text has no trailer.

    `log` is the mark of the partition's log, as returned by `log_mark`, or None if the mark is not known. The other
    arguments and the errors are the same as in `decode_map`.
    """
    payload = _payload(text)
    if not payload:
        return OffsetMap(offset), None
    runs, packed = _runs(payload)
    trailer = unpack(packed) if packed else None
    if trailer:
        check_fits(trailer, offset, log)
    offset_map = canonical(offset, runs)
    end = max([offset_map.end, *(at + 1 for at in trailer.tried)]) if trailer else offset_map.end
    if log_end is not None and end > log_end:
        raise OffsetMapError(f"The offset map reaches offset {end}, but the log ends at offset {log_end}.")
    return offset_map, trailer


def names_a_log(text: str | bytes) -> bool:
    """Return whether a text names a log.

    Such a text can be used safely only by a reader that has the id of the topic.
    """
    try:
        packed = _runs(_payload(text))[1] if text else b""
        return bool(packed) and bool(unpack(packed).log)
    except OffsetMapError:
        return False


def encoding_name(text: str | bytes) -> str:
    """Return the name of the encoding of commit metadata. The function also recognises the metadata of Kafka Streams.

    >>> encoding_name("bAAFGgA="), encoding_name("AQAAAZrwQVAA")
    ('bitset v1', 'Kafka Streams v1')
    """
    return _name(_payload(text))


def _characters(payload: bytes) -> int:
    """Return the number of characters that a payload takes as text."""
    return (len(payload) + 2) // 3 * 4


def _encoded(offset_map: OffsetMap, trailer: bytes) -> bytes:
    """Return the smallest payload for a map.

    The payload is empty if no offset is complete, or if no encoding can represent the map.
    """
    if not offset_map.runs:
        return b""
    if trailer:
        return _encoded_with_trailer(offset_map.runs, trailer)
    bodies = list(_plain_bodies(offset_map.runs))
    if bodies and min(len(body) for _, body in bodies) >= _ZSTD_FROM_BYTES:
        bodies += [(_TWINS[magic], _compress(body)) for magic, body in bodies]
    magic, body = min(bodies, key=lambda encoded: len(encoded[1]), default=(b"", b""))
    return magic + body


def _encoded_with_trailer(runs: Sequence[int], trailer: bytes) -> bytes:
    """Return the smallest payload that includes a trailer, which is after a bitset or before a compressed body."""
    bodies = list(_plain_bodies(runs, more=_SKIPPABLE_HEADER + _LEAST_FRAME))
    # The trailer replaces the zero byte that Java adds after a bitset.
    payloads = [magic + body[:-1] for magic, body in bodies if magic in _BITSETS]
    if min(map(len, payloads), default=_ZSTD_FROM_BYTES) >= _ZSTD_WITH_TRAILER_FROM_BYTES:
        skippable = _SKIPPABLE + struct.pack("<I", len(trailer))
        payloads = [payload + trailer for payload in payloads]
        payloads += [_TWINS[magic] + skippable + trailer + _compress(body) for magic, body in bodies]
        return min(payloads, key=len, default=b"")
    return min(payloads, key=len) + trailer


def _plain_bodies(runs: Sequence[int], more: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yield a pair (magic, body) for each uncompressed encoding that can represent the map and might be the smallest.

    `more` is the number of bytes that run lengths need in addition to their body.
    """
    smallest = _WIDEST_BITSET
    for magic in (b"n", b"e"):
        if max(runs) <= _LONGEST[_INTEGER[magic]]:
            body = struct.pack(f">{len(runs)}{_INTEGER[magic]}", *runs)
            smallest = min(smallest, len(body) + more)
            yield magic, body
    width = sum(runs)
    # Build a bitset only if it might be the smallest body. The length of an uncompressed bitset is known in advance,
    # and bodies shorter than `_ZSTD_FROM_BYTES` are never compressed.
    if width <= (8 * smallest if smallest < _ZSTD_FROM_BYTES else _WIDEST_BITSET):
        bits = _bits(runs, width)
        for magic in (b"l", b"o"):
            if width <= _LONGEST[_INTEGER[magic]]:
                yield magic, struct.pack(f">{_INTEGER[magic]}", width) + bits


def _bits(runs: Sequence[int], width: int) -> bytes:
    """Return one bit per offset, lowest first, where 1 means complete.

    The zero byte that Java adds follows the bits.
    """
    digits = b"".join(map(mul, cycle((b"0", b"1")), runs))
    return int(digits[::-1], 2).to_bytes((width + 7) // 8 + 1, "little")


def _compress(body: bytes) -> bytes:
    # Compress as a stream to omit the content size from the frame header, as the Java parallel consumer does.
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    return compressor.compress(body) + compressor.flush()


def _payload(text: str | bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError means that the text is not ASCII
        raise OffsetMapError(
            "The commit metadata is not Base64: it is damaged, or another program has written it."
        ) from None


def _name(payload: bytes) -> str:
    name = _NAMES.get(payload[:1]) if payload else "none"
    # Metadata of Kafka Streams has a version byte and 8 bytes of time. Version 2 can have more bytes.
    if name is None or (payload[:1] in (b"\x01", b"\x02") and len(payload) < 9):
        raise OffsetMapError(f"The commit metadata starts with 0x{payload[:1].hex()}, which is not a known encoding.")
    return name


def _uncompressed(magic: bytes, body: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the magic byte of the uncompressed encoding, the uncompressed body, and the trailer before the frame."""
    if magic not in _PLAIN:
        return magic, body, b""
    trailer, frame = _skipped(body)
    try:
        size = zstandard.frame_content_size(frame)  # -1 if the frame does not contain its size
        if size > _MAX_BODY_BYTES:
            raise OffsetMapError(f"The offset map unpacks to {size} bytes; at most {_MAX_BODY_BYTES} are allowed.")
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        return _PLAIN[magic], decompressor.decompress(frame, _MAX_BODY_BYTES, allow_extra_data=False), trailer
    except zstandard.ZstdError:
        raise OffsetMapError(
            f"The zstd frame of the offset map is damaged, or unpacks to more than {_MAX_BODY_BYTES} bytes."
        ) from None


def _skipped(body: bytes) -> tuple[bytes, bytes]:
    """Return the content of the skippable frame at the start, and the bytes after this frame.

    If there is no such frame, the content is empty.
    """
    if not body.startswith(_SKIPPABLE) or len(body) < _SKIPPABLE_HEADER:
        return b"", body
    end = _SKIPPABLE_HEADER + int(struct.unpack_from("<I", body, len(_SKIPPABLE))[0])
    if end > len(body):
        raise OffsetMapError("The trailer of the commit metadata is cut off.")
    return body[_SKIPPABLE_HEADER:end], body[end:]


def _runs(payload: bytes) -> tuple[Sequence[int], bytes]:
    """Return the run lengths and the bytes of the trailer."""
    magic, body, trailer = _uncompressed(payload[:1], payload[1:])
    if magic in (b"n", b"e"):
        return _runs_of_lengths(body, _INTEGER[magic]), trailer
    if magic in _BITSETS:
        runs, behind = _runs_of_bits(body, _INTEGER[magic])
        return runs, behind or trailer
    raise OffsetMapError(f"The commit metadata is not an offset map: it was written by {_name(payload)}.")


def _runs_of_lengths(body: bytes, integer: str) -> Sequence[int]:
    count, rest = divmod(len(body), struct.calcsize(f">{integer}"))
    if rest:
        raise OffsetMapError("The last run length of the offset map is cut off.")
    runs = struct.unpack(f">{count}{integer}", body)
    if min(runs, default=0) < 0:
        raise OffsetMapError("The offset map has a negative run length.")
    return runs


def _runs_of_bits(body: bytes, integer: str) -> tuple[Sequence[int], bytes]:
    """Return the runs of a bitset, and the bytes after its bits.

    If the bytes after the bits are all zero, like the byte that Java adds, they are replaced by empty bytes.
    """
    header = struct.calcsize(f">{integer}")
    width = struct.unpack_from(f">{integer}", body)[0] if len(body) >= header else -1
    if not 0 <= width <= 8 * (len(body) - header):
        raise OffsetMapError(f"The offset map claims {width} offsets in {len(body)} bytes.")
    end = header + (width + 7) // 8
    bits = int.from_bytes(body[header:end], "little") & ((1 << width) - 1)
    behind = body[end:]
    if (runs := (bits ^ bits >> 1).bit_count()) > _MAX_RUNS:
        raise OffsetMapError(f"The offset map has {runs} runs; at most {_MAX_RUNS} are allowed.")
    digits = f"{bits:0{width}b}"[::-1][:width]
    lengths = [len(run) for run in re.findall("0+|1+", digits)]
    return [0, *lengths] if digits.startswith("1") else lengths, behind if any(behind) else b""
