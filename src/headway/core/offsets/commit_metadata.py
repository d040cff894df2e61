"""The metadata of a group's commit: an offset map, or metadata that Kafka Streams or another program has written."""

import struct
from base64 import b64decode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from headway.core.offsets.offset_map import OffsetMap, canonical, decode_with_trailer, encoding_name
from headway.core.offsets.progress import Progress
from headway.core.offsets.trailer import Trailer
from headway.errors import OffsetMapError

UNKNOWN = "unknown"

_STREAMS = "Kafka Streams"


class CommitMetadata(NamedTuple):
    """The content of a commit's metadata.

    `encoding` is "none" if there is no metadata. Otherwise `encoding` is the name of an encoding of offset maps, or a
    version of Kafka Streams, or "unknown". If the encoding is unknown, `reason` says why. `stream_time` is the time of
    the partition in Kafka Streams, in milliseconds since the epoch, or -1 if the partition has no time yet. Only offset
    maps that Headway has written have a `trailer`.
    """

    encoding: str
    offset_map: OffsetMap | None = None
    stream_time: int | None = None
    reason: str | None = None
    trailer: Trailer | None = None


def read_metadata(
    text: str | bytes, offset: int, log_end: int | None = None, log: bytes | None = None
) -> CommitMetadata:
    """Decode the metadata of a commit. This function raises no error, whatever the content is.

    The encoding is "unknown" for an offset map that was written for another offset, or for a log whose mark is not
    `log`.

    >>> read_metadata("bAAFGgA=", 100).offset_map
    OffsetMap(offset=100, runs=(1, 1, 1, 2))
    >>> read_metadata("AQAAAZrwQVAA", 100).stream_time
    1764967403520
    >>> read_metadata("checkpoint 7", 100).encoding
    'unknown'
    """
    try:
        encoding = encoding_name(text)
        if encoding.startswith(_STREAMS):
            return CommitMetadata(encoding, stream_time=_stream_time(text))
        offset_map, trailer = decode_with_trailer(text, offset, log_end, log)
        return CommitMetadata(encoding, offset_map, trailer=trailer)
    except OffsetMapError as error:
        return CommitMetadata(UNKNOWN, reason=str(error))


class Done:
    """The offsets that a commit marks as done, for fast lookup: those below its offset, and those in its map.

    >>> done = Done(OffsetMap(5, (1, 2)))
    >>> [offset for offset in range(10) if offset in done]
    [0, 1, 2, 3, 4, 6, 7]
    """

    def __init__(self, offset_map: OffsetMap) -> None:
        self._edges = list(accumulate(offset_map.runs, initial=offset_map.offset))

    def __contains__(self, offset: object) -> bool:
        # Each edge is between an offset that is done and one that is not. Offsets below the first edge are done. The
        # number of edges is odd, because the last run of a map is complete.
        return isinstance(offset, int) and bisect_right(self._edges, offset) % 2 == 0


def with_done(before: OffsetMap, existing: Sequence[int], done: Iterable[int]) -> OffsetMap:
    """Return the map that results when more offsets are marked as done.

    Args:
        before: The map of the offsets that are already done.
        existing: The offsets of all records in the part of the log that was read, from the start of the log, in
            ascending order. An offset that is missing has no record, so the committed offset can pass it.
        done: The offsets to mark as done.

    >>> with_done(OffsetMap(0), [3, 4, 6, 7], [4, 6])
    OffsetMap(offset=3, runs=(1, 3))
    """
    progress = Progress(before)
    progress.receive([offset for offset in existing if offset >= before.offset])
    for offset in done:
        progress.complete(offset)
    return progress.snapshot()


def without_done(before: OffsetMap, undone: Iterable[int]) -> OffsetMap:
    """Return the map that results when these offsets are marked as not done. Some can be below the map's own offset.

    >>> without_done(OffsetMap(5, (1, 3)), [3, 7])
    OffsetMap(offset=3, runs=(1, 1, 1, 1, 1, 1))
    """
    removed = sorted(set(undone))
    offset = min(before.offset, removed[0]) if removed else before.offset
    edges = [offset]  # runs of offsets lie between two edges; the first run is not done, the second is done, and so on
    for done in (range(offset, before.offset), *before.complete):
        start = done.start
        for hole in removed[bisect_left(removed, done.start) : bisect_left(removed, done.stop)]:
            edges += start, hole
            start = hole + 1
        edges += start, done.stop
    return canonical(offset, [stop - start for start, stop in pairwise(edges)])


def _stream_time(text: str | bytes) -> int:
    version_and_time = b64decode(text)[:9]
    return int(struct.unpack(">xq", version_and_time)[0])
