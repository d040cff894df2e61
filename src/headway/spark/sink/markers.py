"""Markers of the sink: each stands for the rows that one task has written, so that another run can compare its own.

The numbers of a task and a batch are not enough. After a start from an older checkpoint, Spark reuses them for other
rows, and on other cores it divides the same rows into other tasks. So a marker also has a digest of its rows, and a
sample of them, and the driver closes a version with the digest of all its rows. Does no I/O: markers and digests in, an
answer or a sentence out.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

import msgspec

from headway.core.untrusted import Text, read_json
from headway.errors import TransactionError
from headway.spark.sink.digest import RowsDigest, target_of
from headway.spark.sink.row_sample import SampledRows, in_common

MOST_REMEMBERED = 32
"""How many earlier versions a marker has the digests of. A restored checkpoint can be that many micro-batches old."""


class WritePart(NamedTuple):
    """The rows of one partition in one version of an application's writes; for a query, in one micro-batch.

    `run` is the same for all attempts at the task that Spark makes before a restart.
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

    @property
    def closing_key(self) -> bytes:
        """The key of the marker that closes a version."""
        return f"{self.app_id}/closed".encode()

    @property
    def misfit_key(self) -> bytes:
        """The key of the marker for a run whose tasks have different rows from those of an earlier run."""
        return f"{self.app_id}/misfit".encode()

    @property
    def version_name(self) -> str:
        """The version, as sentences name it."""
        kind = "micro-batch" if self.is_micro_batch else f"txnAppId {self.app_id}, version"
        return f"{kind} {self.version}"


class Marker(msgspec.Struct, frozen=True):
    """The rows of a part that are in Kafka: their number, their digest, and the run of the write that wrote them.

    `what` and `when` are the two parts of the digest. `before` has both for the slot's earlier versions, newest first.
    `sample` holds some of the rows. The marker that closes a version stands for the rows of all its parts.
    """

    version: int
    rows: int
    what: Text = ""
    when: Text = ""
    run: Text = ""
    before: tuple[Text, ...] = ()
    sample: bytes = b""

    @property
    def history(self) -> tuple[str, ...]:
        """The digests of this version and of earlier ones."""
        return (self.what + self.when, *self.before)

    def encode(self) -> bytes:
        """Encode the value for Kafka."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(Marker)


def read_marker(value: bytes) -> Marker:
    """Read a marker from the value of its record. Raises `UnreadableError` if no sink can have written it."""
    return read_json(value, _decoder, "A marker")


class Marked(NamedTuple):
    """The existing markers of an application, as a part sees them.

    `own` is the marker of the part's own slot, `others` those of other slots, `closed` that of the last complete
    version, and `misfit` that of the last run that did not match an earlier one.
    """

    own: Marker | None = None
    others: tuple[Marker, ...] = ()
    closed: Marker | None = None
    misfit: Marker | None = None

    @classmethod
    def read(cls, markers: Mapping[bytes, bytes], part: WritePart) -> Self:
        """Read the markers from the result of `CommitMarkers.newest`."""
        read = {slot: read_marker(value) for slot, value in markers.items()}
        own, closed, misfit = (read.pop(key, None) for key in (part.key, part.closing_key, part.misfit_key))
        return cls(own, tuple(read.values()), closed, misfit)

    def _all(self) -> Iterator[Marker]:
        yield from filter(None, (self.own, self.closed))
        yield from self.others

    @property
    def newest(self) -> int:
        """The newest version in any slot, or -1."""
        return max((marker.version for marker in self._all()), default=-1)

    def is_by_this_run(self, part: WritePart) -> bool:
        """Return whether another attempt at this task has written the part.

        Its rows may differ from the present ones.
        """
        return self.own is not None and (self.own.version, self.own.run) == (part.version, part.run)

    def is_open(self, part: WritePart) -> bool:
        """Return whether the part may still be written.

        It must not if its slot has this version, if any slot has a later one, if this version is complete, or after
        another task of this run did not match an earlier run.
        """
        done = max((marker.version for marker in (self.own, self.closed) if marker), default=-1)
        return done < part.version and self.newest <= part.version and not self.is_misfit(part)

    def is_misfit(self, part: WritePart) -> bool:
        """Return whether a task of the part's run found rows that do not match those of an earlier run."""
        return self.misfit is not None and (self.misfit.version, self.misfit.run) == (part.version, part.run)

    def may_be_closed(self, part: WritePart) -> bool:
        """Return whether the part's version can still be closed: neither it nor a later one is known to be complete."""
        done = -1 if self.closed is None else self.closed.version
        return done < part.version and self.newest <= part.version

    def has(self, part: WritePart, digest: RowsDigest, keep_version: int | None) -> bool:
        """Return whether Kafka has the rows of this digest in the part's slot, or rows that should count as these.

        In the same version, the rows may have other due times, because these mostly come from a clock.
        """
        own, closed = self.own, self.closed
        if keep_version == part.version and any(each and each.version == part.version for each in (own, closed)):
            return True
        if own is None:
            return False
        if own.version == part.version:
            return digest.what == own.what
        return digest.what + digest.when in own.history

    def of_other_runs(self, part: WritePart) -> list[Marker]:
        """Return the markers in other slots that another run has written for this same version."""
        return [each for each in self.others if each.version == part.version and each.run != part.run]

    def written_elsewhere(self, part: WritePart) -> SampledRows:
        """Return the rows of this version that another run may have written under another task's number."""
        return SampledRows(each.sample for each in self.of_other_runs(part))

    def since(self, earlier: "Marked", part: WritePart, digest: RowsDigest) -> bool:
        """Return whether another run has written some of these rows since the earlier check."""
        known = {each.sample for each in earlier.of_other_runs(part)}
        own = digest.sample.encode()
        return any(in_common(own, each.sample) for each in self.of_other_runs(part) if each.sample not in known)

    def report(
        self,
        part: WritePart,
        digest: RowsDigest,
        keep_version: int | None,
        *,
        is_new: bool = False,
        doubt: "Doubt | None" = None,
    ) -> "WriteReport":
        """Return a task's report about its part. If Kafka already has the part, it reports what Kafka has."""
        own = self.own
        is_kept = keep_version == part.version
        there = own if own is not None and own.version == part.version and not doubt and not is_new else None
        what, when = (digest.what, digest.when) if there is None else (there.what, there.when)
        runs = {each.run for each in self._all() if each.version == part.version}
        is_again = bool(runs - {part.run})
        return WriteReport(part, what, when, is_new, doubt, self.closed, self.newest, is_again, is_kept)

    def with_this(self, part: WritePart, rows: int, digest: RowsDigest) -> Marker:
        """Return the marker for a part that is being written now."""
        before = () if self.own is None else self.own.history
        known = before[:MOST_REMEMBERED]
        return Marker(part.version, rows, digest.what, digest.when, part.run, known, digest.sample.encode())

    def for_another_target(self, part: WritePart, target: str) -> TransactionError | None:
        """Return an error if Kafka has rows of this version that went to another target, or else None."""
        found = [each for each in self._all() if each.version == part.version and each.run != part.run]
        if all(target_of(each.what) == target for each in found):
            return None
        return TransactionError(
            f"Task {part.partition} of {part.version_name} writes to other topics, or another cluster, than in an "
            f"earlier run, so it writes none of its rows. {_OTHER_TARGET}"
            + (_COPIED if part.is_micro_batch else "")
            + _KEEP_OTHERS.format(part.version)
        )

    def refusal(self, part: WritePart, digest: RowsDigest, marker_topic: str) -> "Doubt":
        """Return the doubt of a task whose rows must not be written and are not found by `has`."""
        if self.is_misfit(part) and (self.own is None or self.own.version < part.version):
            return Doubt(0, f"Another task of {part.version_name} does not match what an earlier run has written.")
        who = f"Task {part.partition} of"
        sentence = _refusal(who, part, digest.rows, self.own, self.newest, marker_topic)
        if self.may_be_closed(part):
            sentence += f" If the same rows are now divided into other tasks, {_DIVIDE_ALIKE}"
        return Doubt(1, sentence)


class Doubt(NamedTuple):
    """A sentence for a task whose rows are neither known to be in Kafka nor known to be missing there.

    If several tasks have doubts, one with the highest rank is shown.
    """

    rank: int
    sentence: str


def divided_otherwise(part: WritePart) -> Doubt:
    """Return the doubt of a task with rows that another run has written in other tasks."""
    return Doubt(
        2,
        f"Task {part.partition} of {part.version_name} has rows that an earlier run has written in another task, so it "
        f"writes none: the same rows are now divided into other tasks. So {_DIVIDE_ALIKE}"
        + _KEEP_ALIKE.format(part.version),
    )


class WriteReport(NamedTuple):
    """What a task reports to the driver about its part: the digest of its rows, and whether it has written them.

    There is a `doubt` if the task's own marker does not show that the rows are in Kafka, and those of others do not
    show that they are not. `closed` is the marker of the last complete version, and `newest` the newest version of any
    slot. `is_again` means that an earlier run has written some of this version, and `is_kept` that this should stand.
    """

    part: WritePart
    what: str
    when: str
    is_new: bool = False
    doubt: Doubt | None = None
    closed: Marker | None = None
    newest: int = -1
    is_again: bool = False
    is_kept: bool = False


def _refusal(who: str, part: WritePart, rows: int, there: Marker | None, newest: int, marker_topic: str) -> str:
    how_to_write = _WRITE_MICRO_BATCH.format(marker_topic) if part.is_micro_batch else _WRITE.format(newest)
    if there is not None and there.version == part.version:
        found, how_to_keep = f"Kafka has {there.rows:,} different ones", _KEEP.format(part.version)
    else:
        found, how_to_keep = f"Kafka has others, up to version {newest}", ""
    return f"{who} {part.version_name} has {rows:,} rows, but {found}, so it writes none. {how_to_write}{how_to_keep}"


def refusal_of_all(part: WritePart, rows: int, closed: Marker, newest: int, marker_topic: str) -> str:
    """Return the sentence for a version that is closed, or older than a closed one, and now has different rows."""
    return _refusal("As a whole,", part, rows, closed, newest, marker_topic)


_WRITE_MICRO_BATCH = (
    "If the checkpoint is an older copy, continue from the latest one. Or write everything since the copy, some of it "
    'a second time, with .option("markerTopic", "{}-2") from now on.'
)
_WRITE = "If these are new rows, write them under another txnAppId, or with a txnVersion above {}."
_KEEP = (
    " If they are the same rows, but come out differently each time, keep those in Kafka with "
    '.option("keepVersion", "{}"). Rows with a column identity do not need this.'
)
_DIVIDE_ALIKE = (
    "divide them as before, which needs the same number of cores, or whatever else decides the tasks. For later "
    'versions, put repartition(n, "key") with a fixed n before the write.'
)
_KEEP_ALIKE = (
    ' If these are different rows that only look alike, write the missing ones with .option("keepVersion", "{}").'
)
_OTHER_TARGET = "Use the same topics as before, and go on from there."
_COPIED = (
    " If this is a second query that started with a copy of the first one's checkpoint, give it its own markerTopic "
    "from its first start on."
)
_KEEP_OTHERS = (
    " To write only what is not there yet, and no rows of that version to the new topics, use "
    '.option("keepVersion", "{}").'
)
