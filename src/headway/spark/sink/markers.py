"""Marked parts: which rows a marker of the sink stands for, and whether the present rows are the same.

The numbers of a task and a batch do not suffice: Spark reuses them for other rows after a start from an older
checkpoint. So a marker also has a digest of its rows. Pure: markers and digests in, an answer or a sentence out.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import msgspec

from headway.core.untrusted import Text, read_json
from headway.errors import TransactionError
from headway.spark.sink.digest import RowsDigest

_MOST_REMEMBERED = 32


class Part(NamedTuple):
    """The rows of one partition in one version of an application's writes; for a query, in one micro-batch.

    `run` is the same for all attempts at its task that Spark makes before a restart.
    """

    app_id: str
    version: int
    partition: int
    run: str = ""
    is_micro_batch: bool = False

    @property
    def slot(self) -> str:
        """The name that all versions of this part share."""
        return f"{self.app_id}/{self.partition}"

    @property
    def key(self) -> bytes:
        """The key of the slot's markers."""
        return self.slot.encode()


class Marker(msgspec.Struct, frozen=True):
    """The rows of a part that are in Kafka: their number, their digest, and the run of the write that wrote them.

    `what` and `when` are the two parts of the digest. `before` has both for the slot's earlier versions, newest first.
    """

    version: int
    rows: int
    what: Text = ""
    when: Text = ""
    run: Text = ""
    before: tuple[Text, ...] = ()

    @property
    def history(self) -> tuple[str, ...]:
        """The digests of this version and of the earlier ones."""
        return (self.what + self.when, *self.before)

    def encode(self) -> bytes:
        """Return the value for Kafka."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(Marker)


def read_marker(value: bytes) -> Marker:
    """Return a marker from the value of its record; raise `UnreadableError` if no sink wrote the value."""
    return read_json(value, _decoder, "A marker")


class Marked(NamedTuple):
    """The existing markers: the one of a part's own slot, and the newest version of its application."""

    own: Marker | None
    newest: int

    @classmethod
    def read(cls, markers: Mapping[bytes, bytes], key: bytes) -> Self:
        """Return the markers from the result of `CommitMarkers.newest`."""
        read = {slot: read_marker(value) for slot, value in markers.items()}
        return cls(read.get(key), max((marker.version for marker in read.values()), default=-1))

    def is_by_this_run(self, part: Part) -> bool:
        """Return whether another attempt at this task has written the part; its rows may differ from these."""
        return self.own is not None and (self.own.version, self.own.run) == (part.version, part.run)

    def has_none_of(self, part: Part) -> bool:
        """Return whether Kafka has nothing of the part: no later version of any slot, nor this version of this slot."""
        own = -1 if self.own is None else self.own.version
        return own < part.version and self.newest <= part.version

    def has(self, part: Part, digest: RowsDigest, keep_version: int | None) -> bool:
        """Return whether Kafka has the rows with this digest, or rows that are to count as theirs.

        In the same version the rows may have other due times, which mostly come from a clock.
        """
        if self.own is None:
            return False
        if self.own.version == part.version:
            return keep_version == part.version or digest.what == self.own.what
        return digest.what + digest.when in self.own.history

    def with_this(self, part: Part, rows: int, digest: RowsDigest) -> Marker:
        """Return the marker for a part that is written now."""
        before = () if self.own is None else self.own.history
        return Marker(part.version, rows, digest.what, digest.when, part.run, before[:_MOST_REMEMBERED])

    def refusal(self, part: Part, digest: RowsDigest, marker_topic: str) -> TransactionError:
        """Return the error for rows that `has` does not find, with advice."""
        kind = "micro-batch" if part.is_micro_batch else f"txnAppId {part.app_id}, version"
        how_to_write = _WRITE_MICRO_BATCH.format(marker_topic) if part.is_micro_batch else _WRITE.format(self.newest)
        if self.own is not None and self.own.version == part.version:
            found = f"Kafka has {self.own.rows:,} others of it"
            how_to_keep = _KEEP.format(part.version)
        else:
            found, how_to_keep = f"Kafka has others, up to number {self.newest}", ""
        return TransactionError(
            f"Task {part.partition} of {kind} {part.version} has {digest.rows:,} rows, and {found}, so it writes none. "
            f"{how_to_write}{how_to_keep}"
        )


_WRITE_MICRO_BATCH = (
    "If the checkpoint is an older copy, go on from the latest; or write all that came since the copy, some of it a "
    'second time, with .option("markerTopic", "{}-2") from now on.'
)
_WRITE = "If these are new rows, write them under another txnAppId, or with a txnVersion above {}."
_KEEP = (
    " If they are the same rows, which come out otherwise each time, keep those in Kafka with "
    '.option("keepVersion", "{}"); rows with a column identity need no such help.'
)
