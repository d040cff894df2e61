"""Offset maps: the complete offsets above a committed one, as text in the commit's metadata.

Java's reader decodes Base64, takes a magic byte, and reads the body after it. It does not look at bytes after the bits
of a bitset, and its decompressor skips any frame that the zstd format declares skippable. The trailer goes in these
places: after a bitset, or in such a frame before a compressed body. Uncompressed run lengths have no place for it.

Invariants:
- Without a trailer, the text is byte for byte what the Java parallel consumer writes. With one, Java reads the same
  map.
- Nothing in a text is trusted. The text itself bounds the memory that is allocated for it, and the log end bounds the
  offsets that it claims. Whatever the text, only `OffsetMapError` is raised.
- A map is canonical: its runs alternate, only the first can be zero, and the last is complete. No runs, no text.
- A map that is lost costs a replay; a wrong one loses records. If in doubt, there is no map.
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
LEAST_WINDOW = 1000  # how many offsets a partition may get ahead of its first gap, even if few of them fit in the map

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
_INTEGER = {b"l": "h", b"o": "i", b"n": "h", b"e": "i"}  # the `struct` code of a length: v1 has 16 bits, v2 has 32
_LONGEST = {"h": 2**15 - 1, "i": 2**31 - 1}  # Java's integers are signed
_TWINS = {b"l": b"a", b"o": b"s", b"n": b"J", b"e": b"p"}
_PLAIN = {twin: plain for plain, twin in _TWINS.items()}
_BITSETS = (b"l", b"o")

_ZSTD_FROM_BYTES = 200  # compression is tried only if no plain body is smaller than this, as Java does
_ZSTD_WITH_TRAILER_FROM_BYTES = 20  # with a trailer, run lengths must be compressed, and are about this large
_WIDEST_BITSET = 2**20  # in offsets; beyond this, run lengths are as small and cheaper to build
_MAX_BODY_BYTES = 2**20  # of a decompressed body; a bitset of 8 million offsets
_MAX_RUNS = 2**20  # none of our maps has more; a run can take a single bit of text but bytes of memory
_MAX_WINDOW_BYTES = 2**23  # Java's frames declare 2 MiB

_EMPTY_BITSET = b"l\0\0"  # carries a trailer without a map
_SKIPPABLE = struct.pack("<I", 0x184D2A5D)  # the start of a frame that every zstd decoder skips; its size comes next
_SKIPPABLE_HEADER = 8  # bytes
_LEAST_FRAME = 9  # at least this many bytes are added by zstd


class OffsetMap(NamedTuple):
    """The state of a partition from its committed offset on: lengths of alternately incomplete and complete runs.

    >>> OffsetMap(100, (1, 2, 1, 3)).complete
    [range(101, 103), range(104, 107)]
    """

    offset: int
    runs: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The offset after the highest complete one, or `offset` if nothing above it is complete."""
        return self.offset + sum(self.runs)

    @property
    def complete(self) -> list[range]:
        """The complete offsets, ascending."""
        return self._ranges()[1::2]

    @property
    def incomplete(self) -> list[range]:
        """The incomplete offsets below the highest complete one, ascending."""
        return [offsets for offsets in self._ranges()[::2] if offsets]

    def _ranges(self) -> list[range]:
        return [range(start, stop) for start, stop in pairwise(accumulate(self.runs, initial=self.offset))]


class Commit(NamedTuple):
    """An offset and map to commit for a partition. `pressed` if the map is so large that no new records should start.

    If the map did not fit, `kept` is the part that is in the text.
    """

    offset: int
    metadata: str
    pressed: bool
    kept: OffsetMap | None = None


def canonical(offset: int, runs: Sequence[int]) -> OffsetMap:
    """Return the canonical map for alternating run lengths (zeros are allowed), which is the same for equal states.

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
    """Return the size of a map, in characters, above which its partition takes no new records, for a broker's limit."""
    return limit * 3 // 4


def commit_of(
    offset_map: OffsetMap,
    limit: int = MAX_CHARACTERS,
    remembered: OffsetMap | None = None,
    trailer: Trailer | None = None,
) -> Commit:
    """Build the commit: the offset, and as much of its map as fits in `limit` characters.

    If the map does not fit, the text keeps the part that an earlier commit already `remembered`, and as much of the
    map's beginning as fits next to it. The trailer's attempts get the space that is left; the lowest counts are left
    out first.

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
    """Return the part of a map that fits, and its payload. The remembered part has precedence, if it fits at all.

    `length` is the length of the whole map's text.
    """
    pairs = len(whole.runs) // 2
    while pairs > 0:
        # Estimate from the size so far, assuming runs of equal length.
        pairs = min(pairs - 1, int(pairs * limit / length) if length else 0)
        kept = _with_more(OffsetMap(whole.offset, whole.runs[: 2 * pairs]), remembered)
        payload = _encoded(kept, stamp)
        length = _characters(payload)
        if length <= limit and (payload or not kept.runs):
            return kept, payload
    return OffsetMap(whole.offset), b""


def _with_attempts(offset_map: OffsetMap, payload: bytes, limit: int, trailer: Trailer) -> bytes:
    """Return the payload of this map with as many of the trailer's attempts as fit in `limit` characters."""
    size = limit // 4 * 3  # the size of a payload in bytes
    if not payload:  # without a map, no trailer was needed so far
        packed = pack_within(trailer, size - len(_EMPTY_BITSET))
        with_attempts = _EMPTY_BITSET + packed
        has_any = len(packed) > len(encode_trailer(trailer._replace(tried=NOTHING_TRIED)))
        return with_attempts if has_any and len(with_attempts) <= size else b""
    stamp = encode_trailer(trailer._replace(tried=NOTHING_TRIED))
    return _encoded(offset_map, pack_within(trailer, size - len(payload) + len(stamp)))


def _with_more(beginning: OffsetMap, other: OffsetMap) -> OffsetMap:
    """Return a map with the complete offsets of another one added, from its own end on."""
    ranges = [each for each in other.complete if each.stop > beginning.end]
    edges = [beginning.end, *(edge for each in ranges for edge in (max(each.start, beginning.end), each.stop))]
    return canonical(beginning.offset, [*beginning.runs, *(stop - start for start, stop in pairwise(edges))])


def encode(offset_map: OffsetMap, trailer: Trailer | None = None) -> str:
    """Return the smallest text for a map, whatever its length; empty if nothing above the offset is complete.

    It is also empty if no encoding can hold the map: a run of 2³¹ offsets or more.

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
    """Read the map that was committed with `offset`. Without text, nothing above the offset is complete.

    Args:
        text: The commit's metadata.
        offset: The committed offset, which Java's text does not contain.
        log_end: The partition's end offset, if known. A map that reaches beyond it belongs to another log.

    Raises:
        OffsetMapError: The text is damaged, another program's, from another commit, or makes an impossible claim.

    >>> decode_map("bAAFGgA=", 100)
    OffsetMap(offset=100, runs=(1, 1, 1, 2))
    """
    return decode_with_trailer(text, offset, log_end)[0]


def decode_with_trailer(
    text: str | bytes, offset: int, log_end: int | None = None, log: bytes | None = None
) -> tuple[OffsetMap, Trailer | None]:
    """Read the map that was committed with `offset`, and the trailer, or None if there is none.

    `log` is the mark of the log that is read, as `log_mark` makes it, or None if it is not known. Otherwise this is the
    same as `decode_map`.
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
        raise OffsetMapError(f"The offset map reaches to {end}, but the log ends at {log_end}.")
    return offset_map, trailer


def names_a_log(text: str | bytes) -> bool:
    """Return whether a text can only be used by a reader that knows the id of its topic."""
    try:
        packed = _runs(_payload(text))[1] if text else b""
        return bool(packed) and bool(unpack(packed).log)
    except OffsetMapError:
        return False


def encoding_name(text: str | bytes) -> str:
    """Return the name of the encoding of commit metadata. Kafka Streams' metadata is recognised too.

    >>> encoding_name("bAAFGgA="), encoding_name("AQAAAZrwQVAA")
    ('bitset v1', 'Kafka Streams v1')
    """
    return _name(_payload(text))


def _characters(payload: bytes) -> int:
    """Return the length of a payload as text."""
    return (len(payload) + 2) // 3 * 4


def _encoded(offset_map: OffsetMap, trailer: bytes) -> bytes:
    """Return the smallest payload for a map. Empty if nothing is complete, or if no encoding can hold the map."""
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
    """Return the smallest payload: a bitset followed by the trailer, or a frame preceded by it."""
    bodies = list(_plain_bodies(runs, more=_SKIPPABLE_HEADER + _LEAST_FRAME))
    # The last byte of a bitset is the zero byte that Java adds.
    payloads = [magic + body[:-1] for magic, body in bodies if magic in _BITSETS]
    if min(map(len, payloads), default=_ZSTD_FROM_BYTES) >= _ZSTD_WITH_TRAILER_FROM_BYTES:
        skippable = _SKIPPABLE + struct.pack("<I", len(trailer))
        payloads = [payload + trailer for payload in payloads]
        payloads += [_TWINS[magic] + skippable + trailer + _compress(body) for magic, body in bodies]
        return min(payloads, key=len, default=b"")
    return min(payloads, key=len) + trailer


def _plain_bodies(runs: Sequence[int], more: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yield each uncompressed encoding that can hold the map and might turn out smallest, as (magic, body).

    Run lengths will take `more` bytes than their body.
    """
    smallest = _WIDEST_BITSET
    for magic in (b"n", b"e"):
        if max(runs) <= _LONGEST[_INTEGER[magic]]:
            body = struct.pack(f">{len(runs)}{_INTEGER[magic]}", *runs)
            smallest = min(smallest, len(body) + more)
            yield magic, body
    width = sum(runs)
    # A bitset is never shorter than its bits unless it is compressed, which happens at 200 bytes or more.
    if width <= (8 * smallest if smallest < _ZSTD_FROM_BYTES else _WIDEST_BITSET):
        bits = _bits(runs, width)
        for magic in (b"l", b"o"):
            if width <= _LONGEST[_INTEGER[magic]]:
                yield magic, struct.pack(f">{_INTEGER[magic]}", width) + bits


def _bits(runs: Sequence[int], width: int) -> bytes:
    """Return one bit per offset, lowest first, 1 for complete, and the zero byte that Java's buffers end with."""
    digits = b"".join(map(mul, cycle((b"0", b"1")), runs))
    return int(digits[::-1], 2).to_bytes((width + 7) // 8 + 1, "little")


def _compress(body: bytes) -> bytes:
    # Compress as a stream, so that the frame's header has no size, as in Java's.
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    return compressor.compress(body) + compressor.flush()


def _payload(text: str | bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError if it is not ASCII
        raise OffsetMapError("The commit metadata is not Base64: it is damaged, or another program's.") from None


def _name(payload: bytes) -> str:
    name = _NAMES.get(payload[:1]) if payload else "none"
    # Kafka Streams: a version byte, 8 bytes of time, and in version 2 possibly a processor's metadata.
    if name is None or (payload[:1] in (b"\x01", b"\x02") and len(payload) < 9):
        raise OffsetMapError(f"The commit metadata starts with 0x{payload[:1].hex()}, which is not a known encoding.")
    return name


def _uncompressed(magic: bytes, body: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the plain encoding's magic byte and body, and the trailer in front of a compressed one."""
    if magic not in _PLAIN:
        return magic, body, b""
    trailer, frame = _skipped(body)
    try:
        size = zstandard.frame_content_size(frame)  # -1 if unknown
        if size > _MAX_BODY_BYTES:
            raise OffsetMapError(f"The offset map unpacks to {size} bytes; at most {_MAX_BODY_BYTES} are allowed.")
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        return _PLAIN[magic], decompressor.decompress(frame, _MAX_BODY_BYTES, allow_extra_data=False), trailer
    except zstandard.ZstdError:
        raise OffsetMapError(f"The offset map's zstd frame is damaged or over {_MAX_BODY_BYTES} bytes.") from None


def _skipped(body: bytes) -> tuple[bytes, bytes]:
    """Return the content of a skippable frame, or empty bytes, and what follows it."""
    if not body.startswith(_SKIPPABLE) or len(body) < _SKIPPABLE_HEADER:
        return b"", body
    end = _SKIPPABLE_HEADER + int(struct.unpack_from("<I", body, len(_SKIPPABLE))[0])
    if end > len(body):
        raise OffsetMapError("The trailer of the commit's metadata is cut off.")
    return body[_SKIPPABLE_HEADER:end], body[end:]


def _runs(payload: bytes) -> tuple[Sequence[int], bytes]:
    """Return the run lengths, and the trailer."""
    magic, body, trailer = _uncompressed(payload[:1], payload[1:])
    if magic in (b"n", b"e"):
        return _runs_of_lengths(body, _INTEGER[magic]), trailer
    if magic in _BITSETS:
        runs, behind = _runs_of_bits(body, _INTEGER[magic])
        return runs, behind or trailer
    raise OffsetMapError(f"The commit metadata is not an offset map but that of {_name(payload)}.")


def _runs_of_lengths(body: bytes, integer: str) -> Sequence[int]:
    count, rest = divmod(len(body), struct.calcsize(f">{integer}"))
    if rest:
        raise OffsetMapError("The offset map's last run length is cut off.")
    runs = struct.unpack(f">{count}{integer}", body)
    if min(runs, default=0) < 0:
        raise OffsetMapError("The offset map has a negative run length.")
    return runs


def _runs_of_bits(body: bytes, integer: str) -> tuple[Sequence[int], bytes]:
    """Return the runs of a bitset, and the bytes after its bits, unless they are all zero, as Java's are."""
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
